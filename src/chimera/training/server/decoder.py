"""Decoding of the messages that a server receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chimera.codecs.codec import decode, rows_of
from chimera.core.call import coded
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.core.rows import RowLayout
from chimera.training.messages.rejection import Rejected


class Decoder:
    """Decodes messages for a slice, and rejects those that cannot be decoded.

    Parameters
    ----------
    weights : the slice, shape (p,). Decoded vectors have its size and type.
    rows : layout of the rows of the slice.
    """

    def __init__(self, weights: Flat, rows: RowLayout) -> None:
        self._weights, self._rows = weights, rows
        self._buffers: dict[int, Flat] = {}

    def vectors(
        self, messages: Mapping[int, Encoded], total: int, step: int, *, by_rows: bool
    ) -> tuple[dict[int, Any], list[Rejected]]:
        """Return the vectors by index, and rejections, as `read` does.

        Parameters
        ----------
        by_rows : return sparse rows if all messages hold rows. Otherwise vectors have shape (p,).
        """
        found: dict[int, Any] = {}
        unread: list[Rejected] = []
        if by_rows:
            found, unread = self.read(messages, total, step, lambda each, _: rows_of(each, self._rows))
        if not by_rows or any(rows is None for rows in found.values()):
            found, unread = self.read(messages, total, step, self.vector)
        return found, unread

    def read(
        self, messages: Mapping[int, Encoded], total: int, step: int, read: Callable[[Encoded, int], Any]
    ) -> tuple[dict[int, Any], list[Rejected]]:
        """Return the results of ``read`` by index among ``total`` messages, and rejections of messages that it cannot decode.

        Parameters
        ----------
        messages : messages by index.
        total : number of messages that arrived, for the texts of rejections.
        step : steps that the server has taken, for rejections.
        read : called with a message and its index; raises `CodecError`.
        """
        found: dict[int, Any] = {}
        unread: list[Rejected] = []
        for i, each in messages.items():
            try:
                found[i] = read(each, i)
            except CodecError as error:
                unread.append(Rejected(None, step, f"gradient {i} of {total} cannot be read: {error}"))
        return found, unread

    def vector(self, message: Encoded, place: int) -> Flat:
        """Decode into memory that is kept for this place, unless the message already holds the vector; return the vector.

        Raises
        ------
        CodecError : the message cannot be decoded.
        """
        buffer = self._buffers.get(place)
        if buffer is None:
            buffer = self._buffers[place] = np.empty_like(self._weights)
        vector = decode(message, buffer.size, buffer)
        if message.codec != "identity":  # identity takes no modelled time
            coded(message.codec, "decode", buffer.size)
        return vector
