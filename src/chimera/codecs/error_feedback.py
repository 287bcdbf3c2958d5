"""Error feedback: the error of a message is added to the next message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature, State, Table
from chimera.codecs.reduction import Mean, Reduction
from chimera.codecs.scratch import Scratch
from chimera.core.device import namespace, on_host, to_device_of, to_host
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite


@CODECS.register("error-feedback")
class ErrorFeedback(Codec):
    """Stich, Cordonnier and Jaggi, 2018: Sparsified SGD with Memory. Any codec; its error is added to the next vector.

    Message t encodes v_t + m_t, and m_(t+1) = v_t + m_t - decoded, with m_0 = 0. ``error_feedback = true`` in the table of a
    codec does the same. The memory is lost with its worker.

    Parameters
    ----------
    codec : the codec, by name or as a table; default ``identity``.
    """

    on_device = True

    def __init__(self, *, codec: Table | Codec = "identity") -> None:
        self._inner = CODECS.inside("error-feedback", codec)
        self._memory: Flat | None = None
        self._spare: Flat | None = None  # memory that a message may view
        self._scratch = Scratch()

    @property
    def carries(self) -> bool:
        """True."""
        return True

    @property
    def memory(self) -> Flat | None:
        """The accumulated error of all messages so far, shape (n,)."""
        return self._memory

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode the sum of vector and memory, and keep the error of the message.

        The memory is the float32 difference of that sum and the decoded message. Nothing is lost if float32 represents it
        exactly.
        """
        xp = namespace(vector)
        if self._memory is None or len(self._memory) != len(vector):
            self._memory, self._spare = xp.zeros_like(vector), None
        memory = to_device_of(self._memory, vector)  # it may come from a checkpoint
        with np.errstate(over="ignore"):
            total = xp.add(vector, memory, out=memory)
        try:
            encoded = self._inner.pack(total, layout)
            left = total
            if _views(encoded, total):
                left, self._spare = xp.empty_like(total) if self._spare is None else self._spare, total
            for where, decoded in self._inner.decode_pieces(encoded, total, self._scratch):
                with np.errstate(over="ignore"):
                    piece = xp.subtract(total[where], decoded, out=left[where])
                if not all_finite(piece):
                    raise CodecError("the residual of error feedback is not finite")
        except CodecError:
            self._memory = None  # it was overwritten by the sum, which cannot be encoded
            raise
        self._memory = left
        return encoded

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Decode a message of the codec."""
        return self._inner.unpack(encoded, out)

    def reduction(self) -> FeedbackReduction | None:
        """Return the all-reduce form of the codec, with a memory; None if the codec has none."""
        inner = self._inner.reduction()
        return None if inner is None else FeedbackReduction(inner)

    def use_curvature(self, curvature: Curvature) -> None:
        """Pass the curvature to the codec."""
        self._inner.use_curvature(curvature)

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        self._inner.reseed(seed)

    def state(self) -> State:
        """Return the memory and the state of the codec."""
        own = {} if self._memory is None else {"memory": to_host(self._memory)}
        return own | {f"codec.{name}": value for name, value in self._inner.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        self._memory = self._spare = None
        if "memory" in state:
            self._memory = np.array(state["memory"], np.float32)
        self._inner.restore({name[6:]: value for name, value in state.items() if name.startswith("codec.")})


def _views(encoded: Encoded, vector: Flat) -> bool:
    """Return whether a message views memory of its vector. The vector must not be changed then."""
    return on_host(vector) and any(np.may_share_memory(array, vector) for array in encoded.arrays)


class FeedbackReduction(Reduction):
    """The all-reduce form of a codec with error feedback of this member's vectors.

    As in Vogels et al., 2019, algorithm 2, a member keeps the error of its own contribution, not the error of the mean. The sum
    over members is the same, and the memory does not grow with the differences between members (decisions/0013).
    """

    def __init__(self, inner: Reduction) -> None:
        self._inner = inner
        self._memory = self._next = np.zeros(0, np.float32)

    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:
        """Reduce the sums of vectors and memories."""
        if self._memory.size != vector.size:
            self._memory = np.zeros(vector.size, np.float32)
        if self._next.size != vector.size:
            self._next = np.empty(vector.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(vector, self._memory, out=vector)
        if left is not None:
            left.fill(0)  # this object keeps the error
        return self._inner.all_reduce(vector, layout, mean, self._next)

    def commit(self, participated: bool = True) -> None:
        """Keep what was left out. A member whose vector is not in the mean keeps its old memory."""
        if participated:
            self._memory, self._next = self._next, self._memory
        self._inner.commit(participated)

    def shared(self) -> State:
        """Return the shared state of the codec."""
        return self._inner.shared()

    def restore_shared(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the shared state of another member's codec."""
        self._inner.restore_shared(state)

    def state(self) -> State:
        """Return the memory and the member's own state of the codec."""
        return {"memory": self._memory, **{f"codec.{name}": value for name, value in self._inner.state().items()}}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        self._memory = np.array(state["memory"], np.float32)
        self._inner.restore({name[6:]: value for name, value in state.items() if name.startswith("codec.")})
