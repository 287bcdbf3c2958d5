"""A value in the driver: an object, its packed form, or both."""

from __future__ import annotations

from typing import Any

from chimera.core.call import nbytes
from chimera.engines.http.wire import Packed, pack
from chimera.engines.stored import Stored


class Value:
    """An immutable value.

    Attributes
    ----------
    nbytes : size of its arrays, in bytes.
    """

    __slots__ = ("_packed", "_stored", "nbytes")

    def __init__(self, value: Any) -> None:
        self._stored: Stored | None = Stored(value)
        self._packed: Packed | None = None
        self.nbytes = self._stored.nbytes

    @classmethod
    def packed_as(cls, packed: Packed, size: int) -> Value:
        """Keep a received value in packed form; it is unpacked if the driver needs it."""
        value = cls.__new__(cls)
        value._stored, value._packed, value.nbytes = None, packed, size
        return value

    def open(self) -> Any:
        """Return the value for one receiver, with its own containers; arrays in it are read-only."""
        if self._stored is not None:
            return self._stored.open()
        assert self._packed is not None
        return self._packed.open()

    def packed(self) -> Packed:
        """Return the packed form. The value is packed once for any number of receivers.

        Raises
        ------
        ConfigurationError : it contains something that cannot be sent.
        """
        if self._packed is None:
            self._packed = Packed(pack(self.open()))
        return self._packed


def size_of(values: Any) -> int:
    """Return the size of the arrays in a list of values, in bytes."""
    return sum(map(nbytes, values))
