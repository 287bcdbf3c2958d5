"""Function words, which vocabularies can exclude."""

from __future__ import annotations

import os
from pathlib import Path

from chimera.core.errors import DataError
from chimera.data.text.reading.tokens import Rules

_ENGLISH = """
a an the this that these those
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves one ones oneself who whom whose which what
am is are was were be been being have has had having do does did doing done
will would shall should can could may might must ought cannot
and or but nor so yet if then else than as because while although though unless until till whether since
of in on at by for with from to into onto upon about above below over under between among through during before after
against within without along across behind beyond toward towards up down off out near
not no none neither either both each every all any some such same other another only own
very too just also even still again ever never now here there when once where why how
more most less least much many few
s t d m o re ve ll don doesn didn isn aren wasn weren hasn haven hadn won wouldn shouldn couldn mustn mightn needn shan ain
"""

ENGLISH = frozenset(_ENGLISH.split())
"""The English function words, and the parts of contractions, since apostrophes become spaces."""


def stop_words(which: str | os.PathLike[str] | None) -> frozenset[str]:
    """Return the words to exclude: none, those of ``"english"``, or those of a file, tokenized as a text is.

    Raises
    ------
    DataError : the file is missing or empty.
    """
    if which is None:
        return frozenset()
    if which == "english":
        return ENGLISH
    try:
        words = frozenset(Rules().words(Path(which).expanduser().read_bytes()))
    except OSError as error:
        raise DataError(f"the stop words {str(which)!r} cannot be read: {error.strerror}; known: english") from error
    if not words:
        raise DataError(f"the file of stop words {str(which)!r} has no words")
    return words
