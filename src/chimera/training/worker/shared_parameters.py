"""Shared and personal parameters: which tensors are exchanged with servers, and which stay with each worker."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

from chimera.core.device import namespace
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Layout


class SharedParameters:
    """Splits vectors of all parameters into shared and personal ones, and joins them, on any device.

    Parameters
    ----------
    layout : layout of all parameters.
    personal : indices, in the layout, of the tensors that stay with each worker.

    Attributes
    ----------
    layout : layout of the shared parameters, in the same order.

    Raises
    ------
    ConfigurationError : no parameters are shared.
    """

    def __init__(self, layout: Layout, personal: Collection[int]) -> None:
        shared = [place for place in range(len(layout.names)) if place not in personal]
        if not shared:
            raise ConfigurationError(
                "all parameters would stay with each worker, so there is nothing to train together"
            )
        self.layout = Layout(tuple(layout.names[i] for i in shared), tuple(layout.shapes[i] for i in shared))
        offsets = layout.offsets
        self._shared = [slice(offsets[i], offsets[i + 1]) for i in shared]
        self._personal = [slice(offsets[i], offsets[i + 1]) for i in range(len(layout.names)) if i in personal]

    def of(self, flat: Any) -> Any:
        """Return the shared parameters, shape (S,), of a vector of all parameters, shape (P,)."""
        return _taken(flat, self._shared)

    def rest(self, flat: Any) -> Any:
        """Return the personal parameters of a vector of all parameters."""
        return _taken(flat, self._personal)

    def put(self, shared: Any, flat: Any) -> None:
        """Write shared parameters, shape (S,), into a vector of all parameters, shape (P,)."""
        _put(shared, flat, self._shared)

    def put_rest(self, rest: Any, flat: Any) -> None:
        """Write personal parameters into a vector of all parameters, shape (P,)."""
        _put(rest, flat, self._personal)


def _taken(flat: Any, places: list[slice]) -> Any:
    return namespace(flat).concatenate([flat[place] for place in places])


def _put(part: Any, flat: Any, places: list[slice]) -> None:
    ends = itertools.accumulate(place.stop - place.start for place in places)
    for place, end in zip(places, ends, strict=True):
        flat[place] = part[end - (place.stop - place.start) : end]
