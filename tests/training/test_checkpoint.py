from __future__ import annotations

import errno
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera.core.errors import ConfigurationError, RunError
from chimera.training.artifacts.checkpoint import Checkpoints

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)
)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
states = st.recursive(
    plain | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


keys = st.text() | st.sampled_from(["__array__", "___array__", "____array__"])


@given(st.dictionaries(keys, states, max_size=4))
@example({"a": {"__array__": []}})
@example({"__array__": None})
@example({"___array__": np.zeros(2), "__array__": {"____array__": "0/a"}})
def test_reading_a_checkpoint_returns_what_was_written(state: dict[str, Any]) -> None:
    checkpoints = Checkpoints("memory://checkpoints")
    checkpoints.write(1, state)
    assert same(checkpoints.read_last(), state)


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for round_ in (1, 20, 300):
        checkpoints.write(round_, {"round": round_})
    assert [path.rpartition("/")[2] for path in checkpoints.paths()] == [
        "round-000000020.safetensors",
        "round-000000300.safetensors",
    ]
    assert checkpoints.read_last() == {"round": 300}


def test_reading_without_a_checkpoint_returns_none(tmp_path: Path) -> None:
    assert Checkpoints(str(tmp_path / "none")).read_last() is None


def test_a_partially_written_file_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, {"a": np.ones(3)})
    (tmp_path / "round-000000002.safetensors.part").write_bytes(b"half")
    assert checkpoints.read_last()["a"].sum() == 3


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 64])
def test_a_foreign_file_raises_a_one_line_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "round-000000002.safetensors").write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a checkpoint") as caught:
        Checkpoints(str(tmp_path)).read_last()
    assert "\n" not in str(caught.value)
    assert "remove it to resume from an earlier one, or from the start" in str(caught.value)


def test_a_full_disk_raises_a_one_line_error_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, {"a": np.ones(3)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(
            RunError, match=r"cannot be written: .*the last complete checkpoint is .*round-000000001"
        ) as caught:
            checkpoints.write(2, {"a": np.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000001.safetensors"]
    assert caught.value.__cause__.errno == errno.EFBIG
