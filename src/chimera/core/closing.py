"""Objects that a ``with`` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A base class whose objects are closed at the end of a ``with`` block, also after an exception."""

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the object."""
        self.close()
