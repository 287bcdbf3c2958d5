"""The codec's protocol, the registry of codecs, and the decoding of whatever any codec packed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import room
from chimera.core.device import on_host, put, to_host
from chimera.core.errors import CodecError, ConfigurationError, UnknownNameError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry

State: TypeAlias = dict[str, NDArray[Any]]
"""What a codec remembers, by name."""
Table: TypeAlias = str | dict[str, Any]
"""A codec by name, or a table of ``name`` and its options."""

_MASK = (1 << 64) - 1


class Codec(ABC):
    """Packs vectors for the way. There is one instance per sender and key, so it may remember; decoding remembers nothing.

    Attributes
    ----------
    seed : of whatever is random; whoever makes the codec sets it by `reseed`.
    count : how many random messages it has made. Seed and count decide a message's random numbers, on any engine.
    feedback : whether `CODECS` puts error feedback around it unless told otherwise.
    on_device : whether `encode` and `decode` take tensors of torch too, in place of arrays, and do their work where those are;
        for any other codec `pack` and `unpack` bring the vector to the host.
    """

    seed: int = 0
    count: int = 0
    feedback: ClassVar[bool] = False
    on_device: ClassVar[bool] = False
    _landing: Flat | None = None

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
        if out is None or on_host(out):
            return self.decode(encoded, out)
        found = self.decode(encoded, room(encoded, out) if self.on_device else None)
        if found is not out:
            put(found, room(encoded, out))
        return out  # type: ignore[no-any-return]

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
            _decoders[name] = codec
        if wrap.get("error_feedback", codec.feedback):
            codec = super().create("error-feedback", {"codec": codec})
        if wrap.get("lossless", False):
            codec = super().create("lossless", {"codec": codec})
        codec.reseed(seed)
        return codec

    def of(self, table: Any) -> Codec:
        """Make a codec of a name or of a table with ``name`` and options; one that is made already stays what it is."""
        if isinstance(table, Codec):
            return table
        options = {"name": table} if isinstance(table, str) else dict(table)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError(f"the codec {table!r} needs a 'name'")
        return self.create(name, options)


CODECS = Codecs("codec", "chimera.codecs")

_decoders: dict[str, Codec] = {}


def decode(encoded: Encoded, size: int, out: Any = None) -> Flat:
    """Unpack what any codec packed; the message names its codec, ``size`` says how many elements there must be.

    The vector is in ``out``, if that is given and is a tensor, or the message has it not at hand. A codec that is no registered
    one must have been made in this process before: a message cannot make it import anything.

    Raises
    ------
    CodecError : no codec can have made this message.
    """
    if encoded.size != size:
        raise CodecError(f"a message of {encoded.size!r} elements came where {size} are expected")
    decoder = _decoders.get(encoded.codec) if isinstance(encoded.codec, str) else None
    if decoder is None:
        decoder = _decoders[encoded.codec] = _decoder(encoded.codec)
    return decoder.unpack(encoded, out)


def _decoder(name: Any) -> Codec:
    if not isinstance(name, str) or ":" in name:
        raise CodecError(f"a message of the codec {name!r} came, which is not known here")
    try:
        return CODECS.find(name).factory()
    except UnknownNameError as error:
        raise CodecError(f"a message of the codec {name!r} came, which is not known here") from error
