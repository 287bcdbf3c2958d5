"""What one server sends of its weights: the same to all, or to each receiver what builds upon what it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Held, State, decode
from chimera.codecs.rows import check_numbers, pack_rows
from chimera.core.call import work
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.rows import SparseRows


class Downlink:
    """The codec of a server's weights, and what each receiver has of its messages.

    Those who got the same messages share what they have, so that in synchronous training there is one encoding for all. Who
    missed some, or asks at another time, as in asynchronous training, has a reference of its own from then on.

    Parameters
    ----------
    codec : its name and options.
    weights : the slice, shape (p,); the server steps this memory.
    layout : the tensors in it.
    curvature : see `Codec.use_curvature`.
    seed : of what is random in the codec.
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
        self._made: dict[int, tuple[Encoded, Held]] = {}  # of the weights as they are, by what the receivers had before

    def broadcast(self) -> Encoded:
        """Return the new weights for all workers, or, if there is a message for each, a note that has none of them."""
        self._made.clear()
        if self._codec.chained or self._codec.by_rows:
            return Encoded("delta", self._weights.size, ())
        return self._codec.encode(self._weights, self._layout)

    def model(self) -> Encoded:
        """Return the weights for whoever looks at the model: as they are, or as workers have them where that is the model."""
        if not self._codec.makes_model:
            return Encoded("identity", self._weights.size, (self._weights,))
        return self._fresh().encode(self._weights, self._layout)  # so that a look changes no message

    def message(self, receiver: str, session: int) -> Encoded:
        """Return the weights as they are now for one receiver; it must get all these messages, in order.

        Parameters
        ----------
        receiver : its name.
        session : where it is another number than before, nobody has anything: all get the weights in full first.
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
        """Return the rows of these numbers as they are now; see `Codec.by_rows`."""
        rows = self._layout.rows
        numbers = check_numbers(wanted, rows)
        values = rows.gather(self._weights, numbers)
        work(elements=values.size)
        return pack_rows(SparseRows(numbers, values), rows)

    def vector(self, message: Encoded) -> Flat:
        """Return what a receiver, whose last message this is, has computed with, shape (p,)."""
        number = message.meta.get("number")
        for held in self._held.values():
            if held.number == number and held.value is not None:
                return held.value
        return decode(message, self._weights.size)

    def forget(self) -> None:
        """Begin anew with all receivers."""
        self._held.clear()
        self._made.clear()

    def _fresh(self) -> Codec:
        """Return a codec that has packed nothing yet."""
        made = CODECS.create(*self._made_of, seed=self._seed)
        made.use_curvature(self._curvature)
        return made

    def state(self) -> State:
        """Return what the codec remembers; what receivers have is not part of it, for they begin anew after a checkpoint."""
        return self._codec.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self.forget()
        self._codec.restore(state)
