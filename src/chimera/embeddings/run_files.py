"""The files of word vectors in the folder of a run, written during the run and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import safe_path
from chimera.data.text.stop_words import ENGLISH
from chimera.embeddings.word_vectors import WordVectors
from chimera.training.artifacts.signature import Signature
from chimera.training.artifacts.tensor_file import read_tensors, write_tensors
from chimera.training.progress.callback import Callback
from chimera.training.progress.history import atomically, write_atomically

if TYPE_CHECKING:
    from chimera.models.model import Model

VECTORS, WORDS, WEIGHTS = "embeddings.csv", "vocabulary.txt", "weights.safetensors"
STOP_WORDS = "stop_words.txt"
"""Words that the report's plot of frequent words excludes."""
_MAX_TIME_SHARE = 0.1
"""Share of a run's time that writing the files may take before its end."""


class VectorWriter(Callback):
    """A callback that writes the weights and vectors after evaluations; evaluations are skipped if writing takes too long.

    Parameters
    ----------
    folder : returns the folder of the run, which is final when the run has begun.
    also : further files of vectors to write at the end, such as ``embeddings.bin``; their endings set the formats.
    """

    def __init__(self, folder: Callable[[], Path], also: Sequence[str] = ()) -> None:
        self._folder, self._also = folder, tuple(also)
        self._words: tuple[str, ...] = ()
        self._next_s = 0.0

    def on_model(self, model: Model, last: bool) -> None:
        """Write the current weights and vectors."""
        begin = time.monotonic()
        if begin < self._next_s and not last:
            return
        folder = self._folder()
        if not self._words:
            self._words = _write_words(folder)
        tensors = model.layout.split(model.parameters())
        with atomically(folder / WEIGHTS) as file:
            write_tensors(file, tensors)
        vectors = WordVectors(self._words, _table(tensors, len(self._words)))
        for name in (VECTORS, *(self._also if last else ())):
            vectors.save(folder / name)
        end = time.monotonic()
        self._next_s = end + (end - begin) / _MAX_TIME_SHARE


def write_vectors(folder: Path, also: Sequence[str] = ()) -> None:
    """Write the vectors of a finished run that had no `VectorWriter`, from its weights."""
    _write_words(folder)
    vectors = vectors_of(folder)
    for name in (VECTORS, *also):
        vectors.save(folder / name)


def words_of(folder: Path) -> tuple[str, ...]:
    """Return the vocabulary of a run.

    Raises
    ------
    ConfigurationError : the run has no vocabulary.
    """
    words = Signature.read(folder).classes
    if words is None:
        raise ConfigurationError(f"{folder} is not a run with a vocabulary")
    return words


def vectors_of(folder: Path) -> WordVectors:
    """Return the vectors of a run of a word model, from its file of vectors or from its weights.

    Raises
    ------
    ConfigurationError : the folder has no vectors that can be read.
    """
    if safe_path(folder, VECTORS).exists():
        return WordVectors.load(folder / VECTORS, words_of(folder))
    if not safe_path(folder, WEIGHTS).exists():
        raise ConfigurationError(f"{folder} has no {VECTORS}: give the folder of a run of chimera embed")
    words = words_of(folder)
    return WordVectors(words, _table(read_tensors(folder / WEIGHTS), len(words)))


def _write_words(folder: Path) -> tuple[str, ...]:
    """Write the vocabulary of a run and the stop words of its plot; return the vocabulary."""
    known = words_of(folder)
    for name, words in ((WORDS, known), (STOP_WORDS, sorted(ENGLISH))):
        write_atomically(folder / name, "".join(f"{word}\n" for word in words).encode())
    return known


def _table(tensors: Mapping[str, Any], words: int) -> Any:
    """Return the vectors: the tensor with a row for each word whose name begins with "embedding", or else the first one."""
    found = {name: tensor for name, tensor in tensors.items() if tensor.ndim == 2 and len(tensor) == words}
    if not found:
        raise ConfigurationError("the model has no vector for each word of the vocabulary")
    return next((tensor for name, tensor in found.items() if name.startswith("embedding")), next(iter(found.values())))
