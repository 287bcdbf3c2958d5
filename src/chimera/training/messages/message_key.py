"""Keys of messages: a key names the block of a step, so that copies count once and late messages are ignored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from chimera.core.errors import DataError
from chimera.core.message import Encoded


class Key(NamedTuple):
    """The key of a message.

    Attributes
    ----------
    epoch : epoch of the training data, from 0.
    step : step of the run, from 0.
    block : index of the block of the step; messages with the same block are copies.
    sender : rank of the worker that sent the message.
    """

    epoch: int
    step: int
    block: int
    sender: int


_NAMES = tuple(
    f"key_{name}" for name in Key._fields
)  # the prefix separates them from the numbers that codecs store there


def keyed(message: Encoded, key: Key) -> Encoded:
    """Return the message with a key in its metadata: 8 bytes for each of the four numbers."""
    numbers = dict(zip(_NAMES, key, strict=True))
    return Encoded(message.codec, message.size, message.arrays, {**message.meta, **numbers})


def key_of(message: Encoded) -> Key:
    """Return the key of a message.

    Raises
    ------
    DataError : the message has no key.
    """
    try:
        return Key(*(int(message.meta[name]) for name in _NAMES))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"a {message.codec} message came without its key ({', '.join(Key._fields)})") from error


def merged(messages: Iterable[Encoded], step: int) -> dict[int, Encoded]:
    """Return one message for each block of a step, in ascending order of blocks.

    The result does not depend on the order of arrival: of several copies, the one from the lowest rank is used. Messages of
    other steps and messages without a key are ignored.
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
