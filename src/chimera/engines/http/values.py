"""A value in the driver: as it is, as it travels, or both."""

from __future__ import annotations

from typing import Any

from chimera.core.call import nbytes
from chimera.engines.http.wire import Packed, pack
from chimera.engines.stored import Stored


class Value:
    """A value that never changes.

    Attributes
    ----------
    nbytes : how many bytes of array data it holds.
    """

    __slots__ = ("_packed", "_stored", "nbytes")

    def __init__(self, value: Any) -> None:
        self._stored: Stored | None = Stored(value)
        self._packed: Packed | None = None
        self.nbytes = self._stored.nbytes

    @classmethod
    def packed_as(cls, packed: Packed, size: int) -> Value:
        """Keep what came over the wire as it came; it is opened if somebody in the driver wants it."""
        value = cls.__new__(cls)
        value._stored, value._packed, value.nbytes = None, packed, size
        return value

    def open(self) -> Any:
        """Return the value for one receiver, who gets containers of his own; arrays in it are read-only."""
        if self._stored is not None:
            return self._stored.open()
        assert self._packed is not None
        return self._packed.open()

    def packed(self) -> Packed:
        """Return it as it travels; packed once, however many receive it.

        Raises
        ------
        ConfigurationError : it holds something that cannot travel.
        """
        if self._packed is None:
            self._packed = Packed(pack(self.open()))
        return self._packed


def size_of(values: Any) -> int:
    """Return how many bytes of array data a list of values holds."""
    return sum(map(nbytes, values))
