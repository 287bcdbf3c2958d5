"""Differences from the receiver's last message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature, State, Table, decode, decode_pieces
from chimera.codecs.envelope import header_of, read_header
from chimera.codecs.fields import array, integer, number, output_for
from chimera.codecs.held import Held
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite

_MAX = 2**53  # numbers of a message travel as float64
_SUM = (1 << 48) - 1


@CODECS.register("delta")
class Delta(Codec):
    """Philippenko and Dieuleveut, 2021: Preserved central model for faster bidirectional compression (MCM). For the downlink.

    Server and receiver keep the same reference h. The server encodes w - h; the receiver computes with h + decoded. Both then
    update h <- h + ``rate`` * decoded. The error of a message is part of the next difference. A receiver without a reference
    gets the full weights. References are arrays on the host, on any engine and device: they must be equal bit for bit, and
    devices may decode with other bits.

    Parameters
    ----------
    codec : codec of the difference, by name or as a table; default ``identity``. Without error feedback, since the difference
        carries the error already.
    rate : default 1, for codecs that shrink the error (``top-k``, ``sign``, ``int8``). An unbiased codec with relative variance
        v needs 1 / (1 + v), and diverges above twice that: ``terngrad``, ``qsgd`` with few levels, ``random-k`` with
        ``scaled``.
    """

    chained = True

    def __init__(self, *, codec: Table | Codec = "identity", rate: float = 1.0) -> None:
        if not 0 < rate <= 1:
            raise ConfigurationError(f"rate must be above 0 and at most 1, not {rate}")
        self._inner, self._rate, self._scratch, self._held = CODECS.inside("delta", codec), rate, Scratch(), Held()
        if self._inner.carries:
            raise ConfigurationError(
                "codec 'delta' carries the error itself: its codec must have error_feedback = false, and no memory of its own"
            )

    @property
    def carries(self) -> bool:
        """True: the difference keeps what was not sent."""
        return True

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode the vector for a single receiver that gets all messages of this method."""
        encoded, self._held = self.encode_for(self._held, vector, layout)
        return encoded

    def encode_for(self, held: Held, vector: Flat, layout: Layout) -> tuple[Encoded, Held]:
        """Encode the difference from the receiver's reference, or the full vector if there is none."""
        old = held.reference
        meta: dict[str, float]
        if old is None or old.size != vector.size:
            if not all_finite(vector):
                raise CodecError("a vector with NaN or infinity cannot be packed")
            value = reference = vector.copy()
            message, meta = Encoded("identity", vector.size, (value,)), {"upon": 0, "sum": 0, "rate": 1}
        else:
            with np.errstate(over="ignore"):  # the codec rejects values that are not finite
                difference = np.subtract(vector, old, out=self._scratch.array("difference", old.size, np.float32))
            message = _kept(self._inner.encode(difference, layout))
            pieces = self._inner.decode_pieces(message, difference, self._scratch)
            value, reference, total = _updated_reference(old, pieces, self._rate)
            meta = {"upon": held.number, "sum": total, "rate": self._rate}
        self.count += 1
        arrays = (header_of([message]), *message.arrays)
        return Encoded("delta", vector.size, arrays, {"number": self.count, **meta}), Held(self.count, reference, value)

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector, if the message does not depend on another one."""
        return self.decode_with(Held(), encoded, out)[0]

    def decode_with(self, held: Held, encoded: Encoded, out: Flat | None = None) -> tuple[Flat, Held]:
        """Return the vector, if the message depends on no message or on the receiver's last one."""
        if not encoded.arrays:
            raise CodecError(
                "these weights are a note without them: a strategy asks for each worker's, `Cluster.addressed`"
            )
        upon, rate = integer(encoded, "upon", 0, _MAX), number(encoded, "rate", 0, 1)
        own, total = integer(encoded, "number", 1, _MAX), integer(encoded, "sum", 0, _SUM)
        if upon and (held.number != upon or held.reference is None or held.reference.size != encoded.size):
            has = f"number {held.number}" if held.number else "none"
            raise CodecError(f"a delta message builds upon number {upon} of its sender, and its receiver has {has}")
        described = read_header(array(encoded, 0, np.uint8).data, without=("delta",))
        kinds = [each for one in described for each in one.arrays]
        if len(described) != 1 or len(kinds) != len(encoded.arrays) - 1:
            raise CodecError(f"a delta message has {len(encoded.arrays) - 1} arrays, its header says {len(kinds)}")
        arrays = [array(encoded, i, kind, size) for i, (kind, size) in enumerate(kinds, 1)]
        inner = Encoded(described[0].codec, described[0].size, tuple(arrays), described[0].meta)
        if not upon or held.reference is None:
            decoded = decode(inner, encoded.size, output_for(encoded, out))
            if not all_finite(decoded):
                raise CodecError("a delta message holds NaN or infinity")
            return decoded, Held(own, decoded.copy())
        pieces = decode_pieces(inner, held.reference, Scratch())
        value, reference, found = _updated_reference(
            held.reference, pieces, rate, None if out is None else output_for(encoded, out)
        )
        if found != total:
            raise CodecError(
                f"number {upon}, which a delta message builds upon, is not the same here and where it was made"
            )
        return value, Held(own, reference)

    def use_curvature(self, curvature: Curvature) -> None:
        """Pass the curvature to the codec: the curvature at the weights also applies to their differences."""
        self._inner.use_curvature(curvature)

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        super().reseed(seed)
        self._inner.reseed(seed)

    def state(self) -> State:
        """Return the state of the codec, and the state of the receiver of `encode`."""
        own = super().state() | {f"codec.{name}": value for name, value in self._inner.state().items()}
        return own if self._held.reference is None else own | {"reference": self._held.reference}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        reference = np.array(state["reference"], np.float32) if "reference" in state else None
        self._held = Held() if reference is None else Held(self.count, reference)
        self._inner.restore({name[6:]: value for name, value in state.items() if name.startswith("codec.")})


def _updated_reference(
    reference: Flat, pieces: Iterator[tuple[slice, Flat]], rate: float, out: Flat | None = None
) -> tuple[Flat, Flat, int]:
    """Return the vector of a message, the next reference, and the checksum of the last reference.

    Both sides use the same operations, and so get the same bits. If ``out`` is given, it receives the vector, and the reference
    has memory of its own.
    """
    value, total = np.empty_like(reference) if out is None else out, 0
    following = value if rate == 1 and out is None else np.empty_like(reference)
    for where, decoded in pieces:
        old = reference[where]
        with np.errstate(over="ignore", invalid="ignore"):
            new = np.add(old, decoded, out=value[where])
            if rate != 1:
                np.add(old, np.float32(rate) * decoded, out=following[where])
            elif following is not value:
                following[where] = new
        if not all_finite(new):
            raise CodecError("a delta message leads to NaN or infinity")
        total += _sum_of(old, where.start)
    return value, following, (total ^ total >> 48) & _SUM


def _sum_of(piece: Flat, begin: int) -> int:
    """Return a checksum of the bits of elements from number ``begin`` on; it detects references that differ.

    The checksum is the sum of all pairs of elements as 64-bit numbers, with the first of a pair as the low half. It does not
    depend on the pieces into which a vector is cut.
    """
    bits = piece[begin % 2 :]
    pairs = bits.size // 2
    total = int(np.add.reduce(bits[: 2 * pairs].view(np.uint64)))
    for first in piece[: begin % 2].view(np.uint32):
        total += int(first) << 32
    for last in bits[2 * pairs :].view(np.uint32):
        total += int(last)
    return total


def _kept(message: Encoded) -> Encoded:
    return Encoded(message.codec, message.size, tuple(a.copy() for a in message.arrays), message.meta)
