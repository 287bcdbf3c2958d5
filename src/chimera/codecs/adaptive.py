"""A choice between codecs for each message."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature, State, Table, decode, decode_pieces
from chimera.codecs.kernels.layout import SQUARE
from chimera.codecs.moments import moments
from chimera.codecs.scratch import Scratch
from chimera.core.call import bandwidth_bytes_s as speed_here
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_QSGD = ({"name": "qsgd", "levels": 1}, {"name": "qsgd", "levels": 7})


@CODECS.register("adaptive")
class Adaptive(Codec):
    """Agarwal et al., 2021 (Accordion), by norm; Xin et al., 2023 (Kimad), by speed. A codec chosen for each message.

    - ``norm``: the last codec while training changes fast, else the first. Training changes fast at its start. It also changes
      fast if the mean norm of the last ``every`` vectors differs from the mean norm of the ``every`` before by at least
      ``change`` times the latter. (The paper uses the norm of a sum over epochs, layer by layer.)
    - ``speed``: the last codec whose latest message takes at most ``seconds`` on the link; the first if none does.

    Parameters
    ----------
    codecs : two or more codecs, coarsest first; exactly two for ``norm``.
    by : ``norm`` (default) or ``speed``.
    change : for ``norm``: relative change; 0.5 in the paper.
    every : for ``norm``: number of messages between two decisions.
    seconds : for ``speed``: longest time of a message on the link.
    bandwidth_bytes_s : for ``speed``: bandwidth of the link in bytes per second. The engine ``simulated`` provides it; other
        engines require this option.
    """

    on_device = True

    def __init__(
        self,
        *,
        codecs: list[Any] | None = None,
        by: Literal["norm", "speed"] = "norm",
        change: float | None = None,
        every: int | None = None,
        seconds: float | None = None,
        bandwidth_bytes_s: float | None = None,
    ) -> None:
        tables: list[Table | Codec] = list(_QSGD if codecs is None else codecs)
        idle = {"seconds": seconds, "bandwidth_bytes_s": bandwidth_bytes_s}
        if by == "speed":
            idle = {"change": change, "every": every}
        if given := [name for name, value in idle.items() if value is not None]:
            raise ConfigurationError(f"codec 'adaptive': {given[0]} says nothing where it goes by {by}")
        if len(tables) < 2 or (by == "norm" and len(tables) > 2):
            raise ConfigurationError(
                f"codec 'adaptive' by {by} chooses among {'2' if by == 'norm' else '2 or more'} codecs, not {len(tables)}"
            )
        if by == "speed" and seconds is None:
            raise ConfigurationError("codec 'adaptive' by speed needs the option 'seconds'")
        self._change, self._every = 0.5 if change is None else change, 10 if every is None else every
        for name, value in (("change", self._change), ("seconds", seconds), ("bandwidth_bytes_s", bandwidth_bytes_s)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"{name} must be above 0 and finite, not {value}")
        if self._every < 1:
            raise ConfigurationError(f"every must be at least 1, not {every}")
        self._tables, self._codecs = tables, [CODECS.inside("adaptive", table) for table in tables]
        self._seconds, self._bandwidth_bytes_s = seconds, bandwidth_bytes_s
        self._fine, self._norms, self._before = True, 0.0, 0.0
        self._bytes = np.zeros(0)  # size of the latest message of each codec

    @property
    def carries(self) -> bool:
        """Whether one of the codecs adds errors to its next message."""
        return any(codec.carries for codec in self._codecs)

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Choose a codec, and encode with it."""
        place = self._by_norm(vector) if self._seconds is None else self._by_speed(self._seconds, vector, layout)
        encoded = self._codecs[place].pack(vector, layout)
        if self._seconds is not None:
            self._bytes[place] = encoded.nbytes
        return encoded

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Decode a message of one of the codecs."""
        return decode(encoded, encoded.size, out)

    def decode_pieces(self, encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
        """Decode a message of one of the codecs piece by piece."""
        return decode_pieces(encoded, like, scratch)

    def use_curvature(self, curvature: Curvature) -> None:
        """Pass the curvature to all codecs."""
        for codec in self._codecs:
            codec.use_curvature(curvature)

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        super().reseed(seed)
        for place, codec in enumerate(self._codecs):
            codec.reseed(seed + place)

    def state(self) -> State:
        """Return norms, lengths of messages, and the states of the codecs."""
        own = {"norms": np.array([self._fine, self._norms, self._before]), "bytes": self._bytes}
        states = {f"{i}.{key}": value for i, codec in enumerate(self._codecs) for key, value in codec.state().items()}
        return super().state() | own | states

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        fine, self._norms, self._before = map(float, state["norms"])
        self._fine, self._bytes = bool(fine), np.array(state["bytes"])
        for i, codec in enumerate(self._codecs):
            own = f"{i}."
            codec.restore({key[len(own) :]: value for key, value in state.items() if key.startswith(own)})

    def _by_norm(self, vector: Flat) -> int:
        """Return the number of the codec; every ``every`` messages, compare the mean norms."""
        if self.count and self.count % self._every == 0:
            self._fine = not abs(self._norms - self._before) < self._change * self._before
            self._norms, self._before = 0.0, self._norms
        found = moments(vector, [0, len(vector)] if len(vector) else [0], columns=SQUARE)
        self._norms += math.sqrt(sum(each.square for each in found))
        self.count += 1
        return int(self._fine)

    def _by_speed(self, seconds: float, vector: Flat, layout: Layout) -> int:
        """Return the number of the codec by the lengths of its messages; the first lengths are measured by trial."""
        bandwidth_bytes_s = self._bandwidth_bytes_s or speed_here()
        if bandwidth_bytes_s is None:
            raise ConfigurationError(
                "codec 'adaptive' by speed: this engine does not know the link, give the option 'bandwidth_bytes_s'"
            )
        if not self._bytes.size:
            trials = [CODECS.of(table) for table in self._tables]
            self._bytes = np.array([codec.pack(vector, layout).nbytes for codec in trials], np.float64)
        fitting = np.flatnonzero(self._bytes <= seconds * bandwidth_bytes_s)
        return int(fitting[-1]) if fitting.size else 0
