"""Models of which a part stays with each worker: which tensors travel, and which do not."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

from chimera.core.device import namespace
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Layout


class SharedParameters:
    """Takes vectors of all parameters apart, and together again, wherever they lie.

    Parameters
    ----------
    layout : of all parameters.
    personal : the places, in the layout, of the tensors that stay.

    Attributes
    ----------
    layout : of the vector of those that travel, in the same order.

    Raises
    ------
    ConfigurationError : none travels.
    """

    def __init__(self, layout: Layout, personal: Collection[int]) -> None:
        shared = [place for place in range(len(layout.names)) if place not in personal]
        if not shared:
            raise ConfigurationError("all parameters would stay with each worker: nothing is left to learn together")
        self.layout = Layout(tuple(layout.names[i] for i in shared), tuple(layout.shapes[i] for i in shared))
        offsets = layout.offsets
        self._travels = [slice(offsets[i], offsets[i + 1]) for i in shared]
        self._stays = [slice(offsets[i], offsets[i + 1]) for i in range(len(layout.names)) if i in personal]

    def of(self, flat: Any) -> Any:
        """Return a vector of what travels, shape (shared,), of all parameters, shape (P,)."""
        return _taken(flat, self._travels)

    def rest(self, flat: Any) -> Any:
        """Return a vector of what stays."""
        return _taken(flat, self._stays)

    def put(self, shared: Any, flat: Any) -> None:
        """Write what travels to where it belongs in ``flat``, shape (P,)."""
        _put(shared, flat, self._travels)

    def put_rest(self, rest: Any, flat: Any) -> None:
        """Write what stays to where it belongs."""
        _put(rest, flat, self._stays)


def _taken(flat: Any, places: list[slice]) -> Any:
    return namespace(flat).concatenate([flat[place] for place in places])


def _put(part: Any, flat: Any, places: list[slice]) -> None:
    ends = itertools.accumulate(place.stop - place.start for place in places)
    for place, end in zip(places, ends, strict=True):
        flat[place] = part[end - (place.stop - place.start) : end]
