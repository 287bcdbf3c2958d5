"""The compiled kernels and those in NumPy give the same bits."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.codecs.codec import CODECS
from chimera.codecs.held import Held
from chimera.codecs.kernels import compiled, on_cpu, plain
from chimera.codecs.kernels.layout import (
    ABSOLUTE,
    BLOCK,
    CHUNK,
    PAIR_DISTANCE,
    SPAN,
    SQUARE,
    STREAMED,
    code_width,
    packed_size,
)
from chimera.codecs.moments import ALL
from chimera.codecs.scratch import Scratch
from chimera.core.kernels import VARIABLE
from codecs_kit import SETUPS, hard_vectors, kept, layout_of, same

VECTORS = hard_vectors()
USERS = [
    "levels",
    "cast",
    "signs",
    "natural",
    "nonuniform",
    "sparse",
    "selection",
    "threshold",
    "powersgd",
    "rows",
    "moments",
    "loss_aware",
]


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    for user in USERS:
        monkeypatch.setattr(f"chimera.codecs.{user}.kernels", lambda *_: module)


@pytest.mark.parametrize("setup", SETUPS)
def test_kernels_give_the_same_messages_and_vectors(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Any]] = []
    for module in (compiled, plain):
        use(monkeypatch, module)
        codec = CODECS.of(SETUPS[setup])
        codec.reseed(11)
        results, held = [], Held()
        for vector in VECTORS.values():
            encoded = kept(codec.encode(vector, layout_of(vector.size)))
            decoded, held = codec.decode_with(held, encoded)
            results.append((encoded, decoded.tobytes()))
        found.append(results)
    for (name, _), one, other in zip(VECTORS.items(), *found, strict=True):
        assert same(one[0], other[0]), name
        assert one[1] == other[1], name


@given(st.integers(0, 20_000), st.integers(1, 16), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_unpacking_inverts_packing(size: int, width: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << width, size).astype(np.uint16)
    packed = [np.full(packed_size(size, width), 99, np.uint8) for _ in range(2)]
    for module, out in zip((compiled, plain), packed, strict=True):
        module.pack(codes, width, out)
        back = np.full(size, 7, np.uint16)
        module.unpack(out, width, back)
        assert (back == codes).all()
    assert (packed[0] == packed[1]).all()
    assert packed[0].size <= size * width / 8 + 3


@given(
    st.integers(1, 3 * SPAN),
    st.sampled_from([1, 2, 4, 7, 127, 128, 32767]),
    st.sampled_from([0, 16, 64, 512, CHUNK, SPAN]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1.0, 1e-30, 3e-41]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_kernels_give_the_same_levels(
    size: int, levels: int, block: int, stochastic: bool, euclidean: bool, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    vector = (rng.standard_normal(size) * scale).astype(np.float32)
    vector[: size // 3] = 0  # whole blocks of zeros
    width, blocks = code_width(2 * levels + 1), -(-size // block) if block else 1
    found = []
    for module in (compiled, plain):
        norms, packed = (
            np.full(blocks, np.abs(vector).max() / 2, np.float32),
            np.empty(packed_size(size, width), np.uint8),
        )
        codes, back = np.empty(CHUNK, np.uint8 if levels <= 127 else np.uint16), np.empty(size, np.float32)
        module.quantize(
            vector, norms, block or size, block > 0, euclidean, levels, width, stochastic or not block,
            np.uint32(seed), np.uint32(7), 3, codes, packed,
        )  # fmt: skip
        largest = module.dequantize(packed, norms, block or size, levels, width, codes, back)
        found.append((norms.tobytes(), packed.tobytes(), back.tobytes(), largest))
    assert found[0] == found[1]
    assert found[0][3] <= 2 * levels


@pytest.mark.parametrize(("levels", "stochastic"), [(127, False), (127, True), (7, True), (1, True)])
def test_streaming_stores_write_the_same_bytes(levels: int, stochastic: bool) -> None:
    """That of a long tensor, from a place that a line begins at, and from any other."""
    vector = np.random.default_rng(0).standard_normal(STREAMED + CHUNK + 77, np.float32)
    norms, codes, width = np.array([np.abs(vector).max()]), np.empty(CHUNK, np.uint8), code_width(2 * levels + 1)
    size, found = packed_size(vector.size, width), []
    room = Scratch().array("packed", size + 1, np.uint8)
    for module, shift in ((plain, 0), (compiled, 0), (compiled, 1)):
        out, keys = room[shift : shift + size], (np.uint32(3), np.uint32(7))
        module.quantize(vector, norms, vector.size, False, False, levels, width, stochastic, *keys, 0, codes, out)
        found.append(out.copy())
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("columns", [ALL, ABSOLUTE, SQUARE])
def test_moments_of_tensors_across_blocks_are_equal(backwards: bool, columns: int) -> None:
    rng = np.random.default_rng(0)
    size = 2 * BLOCK + 3 * CHUNK + 77
    vector = rng.standard_normal(size, np.float32) + np.float32(0.1)
    bounds = np.array([0, 5, CHUNK, BLOCK - 1, BLOCK + 1, 2 * BLOCK + CHUNK, size - 1, size])
    tables = np.zeros((2, bounds.size - 1, 5))
    for module, table in zip((compiled, plain), tables, strict=True):
        module.moments(vector, bounds, backwards, columns, np.empty(0, np.uint8), table)
        assert module.abs_max(vector) == np.abs(vector).max()
    assert (tables[0] == tables[1]).all()
    for row, begin, end in zip(tables[0], bounds, bounds[1:], strict=False):
        part = vector[begin:end].astype(np.float64)
        exact = [part.sum(), np.abs(part).sum(), (part**2).sum(), np.abs(part).max(), np.signbit(part).sum()]
        wanted = [each if columns & 1 << j else 0 for j, each in enumerate(exact)]
        assert row == pytest.approx(wanted, rel=1e-5, abs=1e-6 * part.size)


def test_half_floats_match_numpy() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[np.isfinite(bits.view(np.float16))]
    out = np.empty(finite.size, np.float32)
    compiled.from_half(finite, out)
    assert out.tobytes() == finite.view(np.float16).astype(np.float32).tobytes()
    between = np.nextafter(out, np.float32(1))
    halves = np.empty(finite.size, np.uint16)
    compiled.to_half(between, halves)
    assert (halves == between.astype(np.float16).view(np.uint16)).all()


def test_random_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    size = 1 << 18
    for key in ((1, 2), (0xDEADBEEF, 77), (2**32 - 1, 2**31)):
        out = np.empty(size, np.uint32)
        compiled.random_bits(np.uint32(key[0]), np.uint32(key[1]), 0, out)
        unit = (out >> 9) / 2.0**23 - 0.5
        error = 1 / np.sqrt(12 * size)
        assert abs(unit.mean()) < 5 * error
        for lag in (1, 2, 16, PAIR_DISTANCE, 2 * PAIR_DISTANCE, 512, CHUNK):
            assert abs(np.mean(unit[lag:] * unit[:-lag]) * 12) < 5 / np.sqrt(size)
        counts = np.bincount(out >> 24, minlength=256)
        assert ((counts - size / 256) ** 2).sum() / (size / 256) < 400  # chi square with 255 degrees of freedom
        halves = (out >> 28).reshape(-1, 2, PAIR_DISTANCE)  # elements that share a state
        pairs = np.bincount((16 * halves[:, 0] + halves[:, 1]).reshape(-1), minlength=256)
        assert ((pairs - size / 512) ** 2).sum() / (size / 512) < 400


def test_without_numba_the_fallback_is_used_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> ModuleType:
        raise OSError("no LLVM here")

    monkeypatch.setattr("chimera.codecs.kernels._compiled", broken)
    with caplog.at_level(logging.WARNING):
        assert on_cpu.__wrapped__() is plain
    assert "no LLVM here" in caplog.text
    monkeypatch.setenv(VARIABLE, "compiled")
    with pytest.raises(OSError, match="no LLVM"):
        on_cpu.__wrapped__()


def test_an_environment_variable_selects_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "plain")
    assert on_cpu.__wrapped__() is plain
    monkeypatch.setenv(VARIABLE, "compiled")
    assert on_cpu.__wrapped__() is compiled


def test_listing_codecs_imports_no_compiler() -> None:
    code = "import sys; from chimera.codecs.codec import CODECS; [CODECS.create(e.name) for e in CODECS.entries()]"
    code += "; print([m for m in ('numba', 'llvmlite', 'zstandard', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
