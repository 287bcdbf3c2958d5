"""Results of functions are returned as plain values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chimera.core.errors import RunError
from chimera.jobs.driver.results import read_results, write_results


def test_results_of_numpy_become_plain_values(tmp_path: Path) -> None:
    write_results([np.int64(3), (np.float32(0.5), {"a": np.arange(3)}), b"bytes", None], tmp_path / "run")
    assert read_results(tmp_path / "run") == [3, [0.5, {"a": [0, 1, 2]}], b"bytes", None]


@pytest.mark.parametrize("value", [object(), np.array([object()]), 2**70])
def test_a_result_that_is_not_plain_is_an_error(value: object, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"the result of the function cannot be sent: .*; return plain values"):
        write_results([value], tmp_path)
