"""The codec's protocol, the registry of codecs, and the decoding of whatever any codec packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import room
from chimera.codecs.scratch import Scratch
from chimera.core.device import on_host, put, to_host
from chimera.core.errors import CodecError, ConfigurationError, UnknownNameError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry
from chimera.core.rows import RowLayout, SparseRows

if TYPE_CHECKING:
    from chimera.codecs.reduction import Reduction

State: TypeAlias = dict[str, NDArray[Any]]
"""What a codec remembers, by name."""
Table: TypeAlias = str | dict[str, Any]
"""A codec by name, or a table of ``name`` and its options."""
Curvature: TypeAlias = Callable[[], Flat | None]
"""Returns the diagonal of the loss's curvature at the vector that is packed, shape (n,), or None where nobody knows it."""


@dataclass(frozen=True)
class Held:
    """What a receiver has of one sender's messages, where they build upon one another; sender and receiver keep the same.

    Attributes
    ----------
    number : of the last message, from 1; 0 before the first.
    reference : what the next difference is taken from and added to, shape (n,); nobody writes to it.
    value : the vector that the last message stood for, shape (n,).
    """

    number: int = 0
    reference: Flat | None = None
    value: Flat | None = None


_NOTHING = Held()
_MASK = (1 << 64) - 1


class Codec(ABC):
    """Packs vectors for the way. There is one instance per sender and key, so it may remember; decoding remembers nothing.

    Attributes
    ----------
    seed : of whatever is random; whoever makes the codec sets it by `reseed`.
    count : how many random messages it has made. Seed and count decide a message's random numbers, on any engine.
    feedback : whether `CODECS` puts error feedback around it unless told otherwise.
    on_device : whether its methods take tensors of torch too, in place of arrays, and do their work where those are; for any
        other codec `pack` and `unpack` bring the vector to the host.
    chained : whether a message builds upon those that its receiver got before. Such a codec has to know its receivers, and
        so it is for the downlink, and nothing can be wrapped around it.
    by_rows : whether, on the downlink, it sends each worker those rows that the worker asks for.
    """

    seed: int = 0
    count: int = 0
    feedback: ClassVar[bool] = False
    on_device: ClassVar[bool] = False
    _landing: Flat | None = None
    chained: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False

    @property
    def carries(self) -> bool:
        """Whether it keeps what a message leaves out for the next one."""
        return False

    @property
    def makes_model(self) -> bool:
        """Whether weights as it packs them are the model that is trained, to be evaluated and saved; else they stand for it."""
        return False

    @abstractmethod
    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Pack ``vector``, shape (n,). ``layout`` tells the tensors in it.

        The result may view the vector's memory, or memory of the codec's: it holds until the next call.

        Raises
        ------
        CodecError : the vector holds NaN or infinity, and the codec cannot pack that.
        """

    @abstractmethod
    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector, shape (n,), possibly read-only; in ``out`` if that is given and the message has it not at hand.

        Raises
        ------
        CodecError : no codec can have made this message.
        """

    def pack(self, vector: Any, layout: Layout) -> Encoded:
        """Encode a vector, an array or a tensor on any device; only the message comes from there, if the codec can do that."""
        if self.on_device or on_host(vector):
            return self.encode(vector, layout)
        if self._landing is None or len(self._landing) != len(vector):
            self._landing = np.empty(len(vector), np.float32)
        return self.encode(to_host(vector, self._landing), layout)

    def unpack(self, encoded: Encoded, out: Any = None) -> Flat:
        """Decode into ``out``, an array or a tensor on any device; a tensor is filled even if the vector is at hand."""
        return self.unpack_with(_NOTHING, encoded, out)[0]

    def unpack_with(self, held: Held, encoded: Encoded, out: Any = None) -> tuple[Flat, Held]:
        """Do the same for a receiver who has ``held``, see `decode_with`."""
        if out is None or isinstance(out, np.ndarray):
            return self.decode_with(held, encoded, out)
        found, held = self.decode_with(held, encoded, room(encoded, out) if self.on_device else None)
        if found is not out:
            put(found, room(encoded, out))
        return out, held

    def decode_pieces(self, encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
        """Decode piece by piece, in order: yield which elements these are, and their values, which hold until the next piece.

        Who adds them to a vector finds them in the cache, and needs no memory of the vector's size. Here all is one piece.

        Parameters
        ----------
        encoded : a message of this codec.
        like : a vector that lies where the pieces are to be.
        scratch : memory of the caller's, for the pieces.
        """
        yield slice(0, encoded.size), self.unpack(encoded, scratch.beside(like, "decoded", encoded.size, "float32"))

    def rows(self, encoded: Encoded, layout: RowLayout) -> SparseRows | None:  # noqa: ARG002 - most messages hold all rows
        """Return the rows that a message consists of, if it leaves out others; None if it has to be decoded.

        Raises
        ------
        CodecError : no codec can have made this message, or its rows are not those of ``layout``.
        """
        return None

    def reduction(self) -> Reduction | None:
        """Return its all-reduce form, for where workers meet in a group and send no messages; None if it has none."""
        return None

    def encode_for(self, held: Held, vector: Flat, layout: Layout) -> tuple[Encoded, Held]:
        """Pack ``vector`` for a receiver who has ``held``; return the message, and what he has with it.

        For most codecs that is nothing, and the message is the same for all. A chained codec's messages hold for ever.
        """
        return self.encode(vector, layout), held

    def decode_with(self, held: Held, encoded: Encoded, out: Flat | None = None) -> tuple[Flat, Held]:
        """Return the vector of a message, as `decode` does, and what its receiver has from now on.

        Raises
        ------
        CodecError : no codec can have made this message, or it builds upon another one than the receiver has.
        """
        return self.decode(encoded, out), held

    def use_curvature(self, curvature: Curvature) -> None:  # noqa: B027 - most codecs do without
        """Take note of where the curvature of the loss is to be had; the server calls it once, before the first message."""

    def reseed(self, seed: int) -> None:
        """Begin the random numbers of another seed."""
        self.seed, self.count = seed, 0

    def next_key(self) -> tuple[np.uint32, np.uint32]:
        """Return the key of the next message's random numbers, and count the message."""
        key = key_of(self.seed, self.count)
        self.count += 1
        return key

    def state(self) -> State:
        """Return what it remembers, for a checkpoint."""
        return {"count": np.array([self.count], np.int64)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        self.count = int(state["count"][0])


def key_of(seed: int, count: int) -> tuple[np.uint32, np.uint32]:
    """Return two words that seed and count are mixed into (SplitMix64)."""
    x = _mixed(_mixed(seed & _MASK) + count)
    return np.uint32(x & 0xFFFFFFFF), np.uint32(x >> 32)


def _mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Codecs(Registry[Codec]):
    """The codecs by name. Any of them takes the options ``error_feedback`` and ``lossless`` too, which wrap it."""

    def create(self, name: str, options: Mapping[str, Any] | None = None, /, *, seed: int = 0, **given: Any) -> Codec:
        """Make the codec ``name`` with a user's ``options``, checked, with wrappers around it, and with a seed.

        Raises
        ------
        ConfigurationError : an option that the codec does not take, lacks, or that is of the wrong type.
        """
        own = dict(options or {})
        wrap = {key: own.pop(key) for key in ("error_feedback", "lossless") if key in own}
        for key, value in wrap.items():
            if not isinstance(value, bool):
                raise ConfigurationError(f"codec {name!r}, option {key!r}: {value!r} is neither true nor false")
        codec = super().create(name, own, **given)
        if ":" in name:
            # Messages bear the name of a file and its class, whatever folder an experiment has put before it.
            _decoders[name] = _decoders[name.rpartition("/")[2]] = codec
        if wrap.get("error_feedback", codec.feedback):
            codec = super().create("error-feedback", {"codec": codec})
        if wrap.get("lossless", False):
            codec = super().create("lossless", {"codec": codec})
        codec.reseed(seed)
        return codec

    def reduction(self, name: str, options: Mapping[str, Any] | None = None, /, *, seed: int = 0) -> Reduction:
        """Make the all-reduce form of the codec ``name``; ``seed`` must be the same on all members of a group.

        Raises
        ------
        ConfigurationError : it has none; or see `create`.
        """
        made = self.create(name, options, seed=seed).reduction()
        if made is None:
            able = [repr(entry.name) for entry in self.entries() if entry.factory().reduction() is not None]
            known = f"{', '.join(able[:-1])} or {able[-1]}"
            raise ConfigurationError(f"codec {name!r}, as it is set, has no form for all-reduce: use {known}")
        return made

    def of(self, table: Any) -> Codec:
        """Make a codec of a name or of a table with ``name`` and options; one that is made already stays what it is."""
        if isinstance(table, Codec):
            return table
        options = {"name": table} if isinstance(table, str) else dict(table)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError(f"the codec {table!r} needs a 'name'")
        return self.create(name, options)

    def inside(self, outer: str, table: Any) -> Codec:
        """Make the codec that the codec ``outer`` is to be put around, see `of`."""
        codec = self.of(table)
        if codec.chained:
            name = table if isinstance(table, str) else type(codec).__name__.lower()
            raise ConfigurationError(f"codec {outer!r} cannot be put around {name!r}: put it inside, as its 'codec'")
        return codec


CODECS = Codecs("codec", "chimera.codecs", Codec, preload=["chimera.core.jit_ready", "chimera.codecs.kernels.compiled"])

_decoders: dict[str, Codec] = {}


def decode(encoded: Encoded, size: int, out: Any = None) -> Flat:
    """Unpack what any codec packed; the message names its codec, ``size`` says how many elements there must be.

    The vector is in ``out``, if that is given and is a tensor, or the message has it not at hand. A codec that is no registered
    one must have been made in this process before: a message cannot make it import anything.

    Raises
    ------
    CodecError : no codec can have made this message.
    """
    return decode_with(_NOTHING, encoded, size, out)[0]


def decode_with(held: Held, encoded: Encoded, size: int, out: Any = None) -> tuple[Flat, Held]:
    """Unpack, as `decode` does, for a receiver who has ``held`` of this sender; return what he has from now on, too."""
    if (
        type(encoded) is Encoded
        and encoded.plain
        and encoded.size == size
        and (out is None or isinstance(out, np.ndarray))
    ):
        return encoded.arrays[0], held
    return _decoder_of(encoded, size).unpack_with(held, encoded, out)


def decode_pieces(encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
    """Unpack a message of any codec piece by piece, see `Codec.decode_pieces`; as many elements as ``like`` has."""
    return _decoder_of(encoded, len(like)).decode_pieces(encoded, like, scratch)


def rows_of(encoded: Encoded, layout: RowLayout) -> SparseRows | None:
    """Return the rows of a vector with these rows that a message of any codec consists of, see `Codec.rows`."""
    return _decoder_of(encoded, layout.size).rows(encoded, layout)


def _decoder_of(encoded: Encoded, size: int) -> Codec:
    if type(encoded) is not Encoded:
        raise CodecError(f"a {type(encoded).__name__} came where a message of a codec is expected")
    if encoded.size != size:
        raise CodecError(f"a message of {encoded.size!r} elements came where {size} are expected")
    decoder = _decoders.get(encoded.codec) if isinstance(encoded.codec, str) else None
    if decoder is None:
        decoder = _decoders[encoded.codec] = _decoder(encoded.codec)
    return decoder


def _decoder(name: Any) -> Codec:
    if not isinstance(name, str) or ":" in name:
        raise CodecError(f"a message of the codec {name!r} came, which is not known here")
    try:
        return CODECS.find(name).factory()
    except UnknownNameError as error:
        raise CodecError(f"a message of the codec {name!r} came, which is not known here") from error
