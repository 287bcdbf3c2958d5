"""The protocol of codecs, their registry, and the decoding of messages of any codec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.fields import output_for
from chimera.codecs.held import Held
from chimera.codecs.random_key import key_of
from chimera.codecs.scratch import Scratch
from chimera.core.device import copy_to, host_memory, on_host, to_host
from chimera.core.errors import CodecError, ConfigurationError, UnknownNameError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.core.registry import Registry
from chimera.core.rows import RowLayout, SparseRows

if TYPE_CHECKING:
    from chimera.codecs.reduction import Reduction

State: TypeAlias = dict[str, NDArray[Any]]
"""The state of a codec, by name."""
Table: TypeAlias = str | dict[str, Any]
"""A codec by name, or a table of ``name`` and its options."""
Curvature: TypeAlias = Callable[[], Flat | None]
"""Returns the diagonal of the loss's curvature at the encoded vector, shape (n,); None if it is unknown."""

_NOTHING = Held()


class Codec(ABC):
    """Encodes vectors for messages. Each sender and key has one instance, which may keep state; decoding is stateless.

    Attributes
    ----------
    seed : seed of random numbers; the owner of the codec sets it by `reseed`.
    count : number of random messages so far. Seed and count determine a message's random numbers, on any engine.
    feedback : whether `CODECS` adds error feedback by default.
    on_device : whether its methods accept torch tensors besides arrays, and compute on their device. For any other codec,
        `pack` and `unpack` copy the vector to the host.
    chained : whether a message depends on earlier messages to its receiver. Such a codec must know its receivers. It is for the
        downlink only, and cannot be wrapped.
    by_rows : whether, on the downlink, it sends each worker only the rows that the worker asks for.
    """

    seed: int = 0
    count: int = 0
    feedback: ClassVar[bool] = False
    on_device: ClassVar[bool] = False
    _host_copy: Flat | None = None
    chained: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False

    @property
    def carries(self) -> bool:
        """Whether the codec adds the error of a message to the next message."""
        return False

    @property
    def makes_model(self) -> bool:
        """Whether the encoded weights are the model that is trained, evaluated and saved, and not an approximation of it."""
        return False

    @abstractmethod
    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode ``vector``, shape (n,), whose tensors ``layout`` describes.

        The result may view memory of the vector or of the codec, and is valid until the next call.

        Raises
        ------
        CodecError : the vector holds NaN or infinity, and the codec cannot encode that.
        """

    @abstractmethod
    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector, shape (n,), possibly read-only. It is in ``out``, if given, unless the message already holds it.

        Raises
        ------
        CodecError : the message is invalid.
        """

    def pack(self, vector: Any, layout: Layout) -> Encoded:
        """Encode a vector, an array or a tensor on any device. If the codec computes there, only the message is copied."""
        if self.on_device or on_host(vector):
            return self.encode(vector, layout)
        if self._host_copy is None or len(self._host_copy) != len(vector):
            self._host_copy = host_memory(len(vector), np.float32, vector)
        return self.encode(to_host(vector, self._host_copy), layout)

    def unpack(self, encoded: Encoded, out: Any = None) -> Flat:
        """Decode into ``out``, an array or a tensor on any device. A tensor is always filled."""
        return self.unpack_with(_NOTHING, encoded, out)[0]

    def unpack_with(self, held: Held, encoded: Encoded, out: Any = None) -> tuple[Flat, Held]:
        """Decode into ``out`` for a receiver with the state ``held``, see `decode_with`."""
        if out is None or isinstance(out, np.ndarray):
            return self.decode_with(held, encoded, out)
        found, held = self.decode_with(held, encoded, output_for(encoded, out) if self.on_device else None)
        if found is not out:
            copy_to(found, output_for(encoded, out))
        return out, held

    def decode_pieces(self, encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
        """Decode piece by piece, in order: yield slices of the vector and their values, which are valid until the next piece.

        A caller that adds pieces to a vector finds them in the processor's cache, and needs no second vector. By default there
        is one piece.

        Parameters
        ----------
        encoded : a message of this codec.
        like : a vector on the device where the pieces must be.
        scratch : the caller's memory for the pieces.
        """
        yield slice(0, encoded.size), self.unpack(encoded, scratch.like(like, "decoded", encoded.size, "float32"))

    def rows(self, encoded: Encoded, layout: RowLayout) -> SparseRows | None:  # noqa: ARG002 - most messages hold all rows
        """Return the rows in a message that omits other rows; None if the message must be decoded.

        Raises
        ------
        CodecError : the message is invalid, or its rows are not those of ``layout``.
        """
        return None

    def reduction(self) -> Reduction | None:
        """Return the form of the codec for collectives of a group; None if it has none."""
        return None

    def encode_for(self, held: Held, vector: Flat, layout: Layout) -> tuple[Encoded, Held]:
        """Encode ``vector`` for a receiver with the state ``held``; return the message, and the receiver's state after it.

        For most codecs the state is empty, and the message is the same for all. Messages of a chained codec stay valid.
        """
        return self.encode(vector, layout), held

    def decode_with(self, held: Held, encoded: Encoded, out: Flat | None = None) -> tuple[Flat, Held]:
        """Return the vector of a message, as `decode` does, and the receiver's state after it.

        Raises
        ------
        CodecError : the message is invalid, or it depends on a message other than the receiver's last one.
        """
        return self.decode(encoded, out), held

    def use_curvature(self, curvature: Curvature) -> None:  # noqa: B027 - most codecs do without
        """Set the source of the curvature of the loss. The server calls this once, before the first message."""

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        self.seed, self.count = seed, 0

    def next_key(self) -> tuple[np.uint32, np.uint32]:
        """Return the key of the next message's random numbers, and count the message."""
        key = key_of(self.seed, self.count)
        self.count += 1
        return key

    def state(self) -> State:
        """Return the state of the codec, for a checkpoint."""
        return {"count": np.array([self.count], np.int64)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        self.count = int(state["count"][0])


class Codecs(Registry[Codec]):
    """The codecs by name. All accept the options ``error_feedback`` and ``lossless``, which wrap the codec."""

    def create(self, name: str, options: Mapping[str, Any] | None = None, /, *, seed: int = 0, **given: Any) -> Codec:
        """Create the codec ``name`` with a user's ``options``, checked, with its wrappers and a seed.

        Raises
        ------
        ConfigurationError : an option is missing, unknown, or of the wrong type.
        """
        own = dict(options or {})
        wrap = {key: own.pop(key) for key in ("error_feedback", "lossless") if key in own}
        for key, value in wrap.items():
            if not isinstance(value, bool):
                raise ConfigurationError(f"codec {name!r}, option {key!r}: {value!r} is neither true nor false")
        codec = super().create(name, own, **given)
        if ":" in name:
            # Messages have the name of a file and its class, without the folder that an experiment has put before it.
            _decoders[name] = _decoders[name.rpartition("/")[2]] = codec
        if wrap.get("error_feedback", codec.feedback):
            codec = super().create("error-feedback", {"codec": codec})
        if wrap.get("lossless", False):
            codec = super().create("lossless", {"codec": codec})
        codec.reseed(seed)
        return codec

    def reduction(self, name: str, options: Mapping[str, Any] | None = None, /, *, seed: int = 0) -> Reduction:
        """Create the all-reduce form of the codec ``name``; ``seed`` must be the same on all members of a group.

        Raises
        ------
        ConfigurationError : the codec has no all-reduce form; or see `create`.
        """
        made = self.create(name, options, seed=seed).reduction()
        if made is None:
            able = [repr(entry.name) for entry in self.entries() if entry.factory().reduction() is not None]
            known = f"{', '.join(able[:-1])} or {able[-1]}"
            raise ConfigurationError(f"codec {name!r}, as it is set, has no form for all-reduce: use {known}")
        return made

    def of(self, table: Any) -> Codec:
        """Create a codec from a name, or from a table with ``name`` and options. Return a codec object unchanged."""
        if isinstance(table, Codec):
            return table
        options = {"name": table} if isinstance(table, str) else dict(table)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError(f"the codec {table!r} needs a 'name'")
        return self.create(name, options)

    def inside(self, outer: str, table: Any) -> Codec:
        """Create the codec that the codec ``outer`` wraps, see `of`."""
        codec = self.of(table)
        if codec.chained:
            name = table if isinstance(table, str) else type(codec).__name__.lower()
            raise ConfigurationError(f"codec {outer!r} cannot be put around {name!r}: put it inside, as its 'codec'")
        return codec


CODECS = Codecs(
    "codec",
    "chimera.codecs",
    Codec,
    preload=["chimera.core.jit_warm_up", "chimera.codecs.kernels.compiled"],
    family="codecs",
)

_decoders: dict[str, Codec] = {}


def decode(encoded: Encoded, size: int, out: Any = None) -> Flat:
    """Decode a message of any codec. The message names its codec; ``size`` is the expected number of elements.

    The vector is in ``out`` if that is a tensor, or if the message does not already hold it. A codec that is not registered
    must have been created in this process before: a message can cause the import of a registered plug-in only.

    Raises
    ------
    CodecError : the message is invalid.
    """
    return decode_with(_NOTHING, encoded, size, out)[0]


def decode_with(held: Held, encoded: Encoded, size: int, out: Any = None) -> tuple[Flat, Held]:
    """Decode as `decode` does, for a receiver with the state ``held``; return also its state after the message."""
    if (
        type(encoded) is Encoded
        and encoded.plain
        and encoded.size == size
        and (out is None or isinstance(out, np.ndarray))
    ):
        return encoded.arrays[0], held
    return _decoder_of(encoded, size).unpack_with(held, encoded, out)


def decode_pieces(encoded: Encoded, like: Flat, scratch: Scratch) -> Iterator[tuple[slice, Flat]]:
    """Decode a message of any codec piece by piece, see `Codec.decode_pieces`. It must have as many elements as ``like``."""
    return _decoder_of(encoded, len(like)).decode_pieces(encoded, like, scratch)


def rows_of(encoded: Encoded, layout: RowLayout) -> SparseRows | None:
    """Return the rows in a message of any codec, see `Codec.rows`."""
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
