"""Messages that say which block they are of, so that two copies count once and one that comes late does no harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from chimera.core.errors import DataError
from chimera.core.message import Encoded


class Key(NamedTuple):
    """Whose message of what it is.

    Attributes
    ----------
    epoch : of the training data, from 0.
    step : of the run, from 0.
    block : what of the step it holds; who sends the same block sends a copy.
    sender : the rank of the worker.
    """

    epoch: int
    step: int
    block: int
    sender: int


_NAMES = tuple(f"key_{name}" for name in Key._fields)  # codecs have numbers of their own there, also of blocks


def keyed(message: Encoded, key: Key) -> Encoded:
    """Return the message with its key, which travels in its meta data: 8 bytes for each number."""
    numbers = dict(zip(_NAMES, key, strict=True))
    return Encoded(message.codec, message.size, message.arrays, {**message.meta, **numbers})


def key_of(message: Encoded) -> Key:
    """Return the key of a message.

    Raises
    ------
    DataError : it has none.
    """
    try:
        return Key(*(int(message.meta[name]) for name in _NAMES))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"a {message.codec} message came without its key ({', '.join(Key._fields)})") from error


def merged(messages: Iterable[Encoded], step: int) -> dict[int, Encoded]:
    """Return one message of each block of a step, by block in ascending order.

    In whatever order they come, and however often: of several copies it is the one of the lowest rank. Messages of other
    steps, and those without a key, are left out.
    """
    found = []
    for message in messages:
        with contextlib.suppress(DataError):
            found.append((key_of(message), message))
    there: dict[int, Encoded] = {}
    for key, message in sorted(found, key=lambda pair: pair[0]):
        if key.step == step:
            there.setdefault(key.block, message)
    return there
