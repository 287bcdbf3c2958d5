"""The downlink of a server: one message of the weights for all receivers, or one for each, with changes since its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, State, decode
from chimera.codecs.held import Held
from chimera.codecs.rows import check_numbers, pack_rows
from chimera.core.call import work
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.rows import SparseRows


class Downlink:
    """The codec of a server's weights, and the reference weights that each receiver holds.

    Receivers of the same messages share a reference, so that synchronous training needs one encoding for all. A receiver that
    missed a message, or that pulls at another time as in asynchronous training, has a reference of its own from then on.

    Parameters
    ----------
    codec : name and options of the codec.
    weights : the server's slice, shape (p,), which the server updates in place.
    layout : layout of the slice.
    curvature : see `Codec.use_curvature`.
    seed : seed of the codec.
    """

    def __init__(
        self,
        codec: tuple[str, Mapping[str, Any]],
        weights: Flat,
        layout: Layout,
        *,
        curvature: Callable[[], Flat | None],
        seed: int = 0,
    ) -> None:
        self._weights, self._layout = weights, layout
        self._made_of, self._curvature, self._seed = codec, curvature, seed
        self._codec = self._fresh()
        self._session = 0
        self._held: dict[str, Held] = {}
        self._made: dict[int, tuple[Encoded, Held]] = {}  # messages of the current weights, by the receivers' reference

    def broadcast(self) -> Encoded:
        """Return the new weights for all workers; an empty message if each worker gets a message of its own."""
        self._made.clear()
        if self._codec.chained or self._codec.by_rows:
            return Encoded("delta", self._weights.size, ())
        return self._codec.encode(self._weights, self._layout)

    def model(self) -> Encoded:
        """Return the weights of the model to evaluate: exact, or as workers decode them if the codec makes the model."""
        if not self._codec.makes_model:
            return Encoded("identity", self._weights.size, (self._weights,))
        return self._fresh().encode(
            self._weights, self._layout
        )  # a new codec, so that evaluation does not change later messages

    def message(self, receiver: str, session: int) -> Encoded:
        """Return the current weights for one receiver, which must get all of these messages, in order.

        Parameters
        ----------
        receiver : name of the receiver.
        session : if it changes, no receiver has a reference any more: each first gets all weights.
        """
        if session != self._session:
            self.forget()
            self._session = session
        held = self._held.get(receiver, Held())
        if held.number not in self._made:
            self._made[held.number] = self._codec.encode_for(held, self._weights, self._layout)
            work(elements=self._weights.size * 2)
        encoded, self._held[receiver] = self._made[held.number]
        return encoded

    def rows(self, wanted: NDArray[np.uint32]) -> Encoded:
        """Return the current rows with these indices; see `Codec.by_rows`."""
        rows = self._layout.rows
        numbers = check_numbers(wanted, rows)
        values = rows.gather(self._weights, numbers)
        work(elements=values.size)
        return pack_rows(SparseRows(numbers, values), rows)

    def vector(self, message: Encoded) -> Flat:
        """Return the weights, shape (p,), of the receiver whose last message this is."""
        number = message.meta.get("number")
        for held in self._held.values():
            if held.number == number and held.value is not None:
                return held.value
        return decode(message, self._weights.size)

    def forget(self) -> None:
        """Discard the references of all receivers."""
        self._held.clear()
        self._made.clear()

    def _fresh(self) -> Codec:
        """Return a new codec."""
        made = CODECS.create(*self._made_of, seed=self._seed)
        made.use_curvature(self._curvature)
        return made

    def state(self) -> State:
        """Return the codec's state. References are not part of it: after a checkpoint, receivers get all weights first."""
        return self._codec.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.forget()
        self._codec.restore(state)
