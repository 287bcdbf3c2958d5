"""The safetensors library reads the files that Chimera writes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load

from chimera.training.artifacts.tensor_file import write_tensors


def test_safetensors_reads_written_files() -> None:
    arrays = {
        "bytes": np.arange(5, dtype=np.uint8),
        "floats": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(7, np.int64),
        "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "flags": np.array([True, False]),
        "é/ü": np.array([1], np.int32),
    }
    file = io.BytesIO()
    write_tensors(file, arrays, {"format": "test"})
    found = load(file.getvalue())
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tolist() == array.tolist()
        assert found[name].shape == array.shape


def test_metadata_are_written_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        write_tensors(file, {"x": np.ones(3, np.float32)}, {"format": "test"})
    with safe_open(path, "numpy") as found:
        assert found.metadata() == {"format": "test"}
        assert list(found.keys()) == ["x"]
