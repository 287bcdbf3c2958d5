"""Codecs on a device encode the same messages as on the host, and only messages are copied to the host.

Where there is no GPU, `apart` plays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from chimera.codecs.codec import CODECS, Codec, decode, decode_with
from chimera.codecs.held import Held
from chimera.core import device as crossing
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite
from codecs_kit import SETUPS, damaged, hard_vectors, kept, layout_of, same
from fake_device import on_each_device

VECTORS = hard_vectors()
NORMAL = VECTORS["normal"]
SUMS = {  # they send, or choose by, sums that are added up otherwise on a device: equal to about six digits
    "qsgd tensors",
    "terngrad",
    "sign",
    "onebit",
    "onebit without feedback",
    "binary",
    "powersgd",
    "dgc",
    "adaptive speed",  # terngrad among them
    "delta of ternary",
    "lossless",  # of terngrad
    "layer-wise",  # a sign among them
    "all of them",
}
ARRAYS = {"identity", "delta", "delta of ternary", "delta of rows", "rows", "rows, compressed"}  # their bytes cross
FLUSHED = {"powersgd"}  # its products are those of a library, which may take denormals for zero


def make(setup: str, seed: int = 7) -> Codec:
    codec = CODECS.of(SETUPS[setup])
    codec.reseed(seed)
    return codec


def there(vector: Flat, device: str) -> Any:
    return torch.from_numpy(vector.copy()).to(device)


def back(tensor: Any) -> Flat:
    return crossing.to_host(tensor)


def close(one: Flat, other: Flat) -> bool:
    """Return whether two decoded vectors agree, but for a few elements for which a coin was thrown, or a rank was close."""
    scale = np.abs(other).max(initial=0)
    return bool((np.abs(one - other) > 1e-5 * scale).mean() < 1e-3) if one.size else True


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize("setup", SETUPS)
def test_device_messages_equal_host_messages(setup: str, device: str) -> None:
    here, away, held_here, held_away = make(setup), make(setup), Held(), Held()
    for name, vector in VECTORS.items():
        layout = layout_of(vector.size)
        expected, tensor = kept(here.pack(vector, layout)), there(vector, device)
        message = away.pack(tensor, layout)
        assert all(type(each) is np.ndarray for each in message.arrays), name
        assert back(tensor).tobytes() == vector.tobytes(), name
        one, held_here = decode_with(held_here, expected, vector.size)
        other, held_away = decode_with(held_away, message, vector.size)
        if setup not in SUMS:
            assert same(message, expected), name
        elif name == "normal":  # in others a deviation is what rounding left of it
            assert close(other, one), name


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize("setup", SETUPS)
def test_device_vectors_equal_host_vectors(setup: str, device: str) -> None:
    codec, held = make(setup), Held()
    for name, vector in VECTORS.items():
        message = kept(codec.pack(vector, layout_of(vector.size)))
        room = there(np.full(vector.size, 7, np.float32), device)
        assert decode_with(held, message, vector.size, room)[0] is room, name
        expected, held = decode_with(held, message, vector.size)
        if setup in FLUSHED:
            np.testing.assert_allclose(back(room), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(initial=1e-30))
        else:
            assert back(room).tobytes() == expected.tobytes(), name


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("first", ["host", "device"])
def test_codec_state_moves_between_host_and_device(setup: str, device: str, first: str) -> None:
    layout = layout_of(NORMAL.size)
    vectors = [NORMAL, there(NORMAL, device)]
    if first == "device":
        vectors.reverse()
    one, other = make(setup), make(setup)
    held = Held()
    for _ in range(2):
        _, held = decode_with(held, one.pack(vectors[0], layout), NORMAL.size)
    held_on = held_moved = held
    state = {name: value.copy() for name, value in one.state().items()}
    assert all(type(value) is np.ndarray for value in state.values())
    other.restore(state)
    for _ in range(2):
        goes_on, moved = kept(one.pack(vectors[0], layout)), kept(other.pack(vectors[1], layout))
        expected, held_on = decode_with(held_on, goes_on, NORMAL.size)
        found, held_moved = decode_with(held_moved, moved, NORMAL.size)
        if setup in SUMS:
            assert close(found, expected)
        else:
            assert same(moved, goes_on)


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize(
    "inner", ["sign", "top-k", "terngrad", "int8", "random-k", "powersgd", "threshold", "onebit", "identity"]
)
def test_error_feedback_loses_nothing(inner: str, device: str) -> None:
    """As on the host, the residual is the float32 difference of the vector and the decoded message."""
    codec = CODECS.of({"name": "error-feedback", "codec": {**SETUPS[inner], "error_feedback": False}})
    old = np.zeros(NORMAL.size, np.float32)
    for i in range(4):
        vector = np.roll(NORMAL, i * 17)
        message = codec.pack(there(vector, device), layout_of(NORMAL.size))
        decoded = back(decode(message, NORMAL.size, there(old, device)))
        memory = codec.state()["memory"]
        assert (memory == vector + old - decoded).all()
        old = memory.copy()


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize("setup", SETUPS)
def test_damaged_messages_raise_the_same_errors_as_on_the_host(setup: str, device: str) -> None:
    rng = np.random.default_rng(3)
    for size in (0, 1, 9, 1234, 9000):
        message = kept(make(setup).pack(NORMAL[:size], layout_of(size)))
        for _ in range(40 if size > 9 else 10):
            broken = damaged(message, rng)
            room = there(np.zeros(size, np.float32), device)
            try:
                expected = decode(broken, size)
            except CodecError:
                with pytest.raises(CodecError):
                    decode(broken, size, room)
            else:
                np.testing.assert_allclose(back(decode(broken, size, room)), expected, rtol=1e-5, atol=1e-30)


@on_each_device
@pytest.mark.parametrize("setup", sorted(set(SETUPS) - {"identity", "random-k", "random-k scaled"}))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_vectors_are_rejected(setup: str, device: str, bad: float) -> None:
    vector = NORMAL.copy()
    vector[123] = bad
    assert not all_finite(there(vector, device))
    with pytest.raises(CodecError, match=r"finite|NaN"):
        make(setup).pack(there(vector, device), layout_of(vector.size))


@on_each_device
def test_an_output_of_another_length_or_type_is_rejected(device: str) -> None:
    for setup in ("identity", "int8"):
        message = make(setup).pack(NORMAL, layout_of(NORMAL.size))
        for room in (torch.zeros(1, device=device), torch.zeros(NORMAL.size, dtype=torch.float64, device=device)):
            with pytest.raises(CodecError, match="do not go into"):
                decode(message, NORMAL.size, room)


class Halves(Codec):
    """A codec that supports arrays only."""

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        assert type(vector) is np.ndarray
        return Encoded("halves", vector.size, (vector.astype(np.float16),))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        assert out is None or type(out) is np.ndarray
        return encoded.arrays[0].astype(np.float32)


@on_each_device
def test_a_host_only_codec_receives_arrays(device: str) -> None:
    layout, expected = layout_of(NORMAL.size), NORMAL.astype(np.float16).astype(np.float32)
    for codec in (Halves(), CODECS.create("error-feedback", {"codec": Halves()})):
        message = codec.pack(there(NORMAL, device), layout)
        room = there(np.zeros_like(NORMAL), device)
        assert codec.unpack(message, room) is room
        assert (back(room) == expected).all()


class NoOtherWay(TorchFunctionMode):
    """Nothing but a few numbers leaves or enters a device but through `chimera.core.device`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_view = name == "numpy" and args[0].device.type == "cpu"  # of memory of the host
        assert is_view or name not in ("numpy", "cpu", "tolist", "__array__", "cuda", "from_numpy"), name
        if name in ("tensor", "as_tensor", "asarray") and not isinstance(args[0], torch.Tensor):
            assert np.size(args[0]) <= 1
        return func(*args, **kwargs or {})


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes of each crossing."""
    bytes_: list[int] = []
    view: Callable[[NDArray[Any]], Any] = crossing._as_tensor

    def counted(array: NDArray[Any]) -> Any:
        bytes_.append(array.nbytes)
        with torch._C.DisableTorchFunction():
            return view(array)

    monkeypatch.setattr(crossing, "_as_tensor", counted)
    with NoOtherWay():
        yield bytes_


@pytest.mark.sampled(4)
@on_each_device
@pytest.mark.parametrize("setup", sorted(set(SETUPS) - ARRAYS - {"lossless", "all of them"}))  # zstandard is the host's
def test_only_messages_are_copied_to_the_host(setup: str, device: str, crossed: list[int]) -> None:
    vector = torch.randn(400_000, device=device)
    codec, layout = make(setup), layout_of(len(vector))
    if setup == "adaptive speed":
        codec.pack(vector, layout)  # it tries all
        crossed.clear()
    message = codec.pack(vector, layout)
    both = sum(crossed)
    feedback = 2 if "memory" in "".join(codec.state()) else 1  # its own message is unpacked too
    spare = 150_000  # counts of magnitudes, or a sample of them
    if setup.startswith("loss-aware"):  # made for weights, which servers have on the host, it packs there
        assert both == 4 * len(vector)
    else:
        assert both <= feedback * 1.1 * message.nbytes + spare
    crossed.clear()
    decode(message, len(vector), vector)
    assert sum(crossed) <= 1.1 * message.nbytes + 100
