"""On slow links codecs save time: the order of docs/benchmarks.md, with a small network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chimera

EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "slow_network.toml"
INT8 = {"name": "int8", "block": 256}
BEST = {"name": "qsgd", "levels": 7, "norm": "max", "downlink": INT8}
CODECS: list[Any] = ["identity", BEST, {**INT8, "downlink": INT8}, INT8]


@pytest.mark.long
def test_codecs_reach_the_target_sooner_and_more_so_on_slow_links(tmp_path: Path) -> None:
    """Ten times fewer parameters, and links ten times as slow as in the benchmark."""
    small = chimera.Experiment.load(EXAMPLE).with_settings(
        ["data=digits", "model.hidden=[512,512,512]", "train.batch_size=16", "train.epochs=30"]
    )
    links = [12.5e6, 1.25e6]
    found = chimera.compare(small, {"codec": CODECS, "engine.bandwidth_bytes_s": links}, out=tmp_path / "out")
    assert found.finished
    sooner = [[found.rows[2 * codec + link]["times_sooner"] for codec in range(4)] for link in range(2)]
    for identity, best, int8, up_only in sooner:
        assert identity == 1
        assert best > int8 > up_only > 1
    assert sooner[1][1] > 3.5
    assert sooner[1][1] > sooner[0][1]
    page = found.report.read_text(encoding="utf-8")
    assert "Virtual time to target" in page
