"""Tests of `adaptive`: it selects a codec by the change of the norm, or by the speed of the link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.codecs.codec import CODECS, decode
from chimera.core.errors import ConfigurationError
from codecs_kit import hard_vectors, layout_of

NORMAL = hard_vectors()["normal"]
LAYOUT = layout_of(NORMAL.size)
CODECS_BY_SPEED = ["sign", {"name": "qsgd", "levels": 1, "block": 0}, {"name": "top-k", "ratio": 0.2}, "int8", "cast"]


def chosen(options: dict[str, Any], scales: list[float]) -> list[str]:
    codec = CODECS.create("adaptive", options)
    return [codec.encode(NORMAL * np.float32(scale), LAYOUT).codec for scale in scales]


def test_by_norm_selects_the_fine_codec_at_first_and_after_changes() -> None:
    options = {"codecs": ["sign", "int8"], "every": 3}
    still, less, more = [1.0] * 9, [0.4] * 6, [1.0] * 6
    names = chosen(options, still + less + more)
    assert names == ["int8"] * 6 + ["sign"] * 3 + ["sign"] * 3 + ["int8"] * 3 + ["sign"] * 3 + ["int8"] * 3


def test_by_norm_continues_after_a_checkpoint_amid_a_window() -> None:
    options, scales = {"codecs": ["sign", "int8"], "every": 4, "change": 0.15}, [1.0] * 9 + [0.8] * 12
    names = chosen(options, scales)
    assert len(set(names)) == 2
    for cut in range(1, len(scales)):
        before, after = (CODECS.create("adaptive", options) for _ in range(2))
        for scale in scales[:cut]:
            before.encode(NORMAL * np.float32(scale), LAYOUT)
        after.restore(before.state())
        assert [after.encode(NORMAL * np.float32(scale), LAYOUT).codec for scale in scales[cut:]] == names[cut:], cut


def test_by_norm_uses_the_given_threshold() -> None:
    scales = [1.0] * 4 + [0.7] * 6
    assert chosen({"codecs": ["sign", "int8"], "every": 2, "change": 0.2}, scales)[-4:-2] == ["int8", "int8"]
    assert chosen({"codecs": ["sign", "int8"], "every": 2, "change": 0.4}, scales)[-6:] == ["sign"] * 6


@pytest.mark.parametrize("bits", [0.5, 1.1, 2.1, 7.9, 8.1, 30])
def test_by_speed_selects_the_finest_codec_within_the_time(bits: float) -> None:
    """The link carries ``bits`` an element in the given time."""
    bandwidth_bytes_s = bits * NORMAL.size / 8 / 0.25
    options = {
        "by": "speed",
        "codecs": CODECS_BY_SPEED,
        "seconds": 0.25,
        "bandwidth_bytes_s": bandwidth_bytes_s,
    }
    codec = CODECS.create("adaptive", options)
    finest = {0.5: "sign", 1.1: "sign", 2.1: "qsgd", 7.9: "top-k", 8.1: "int8", 30: "cast"}[bits]
    for _ in range(3):
        encoded = codec.encode(NORMAL, LAYOUT)
        assert encoded.codec == finest
        assert encoded.nbytes <= 0.25 * bandwidth_bytes_s or bits < 1
        assert decode(encoded, NORMAL.size).shape == NORMAL.shape


def fit(out: Path, **options: Any) -> chimera.Run:
    given = {"model": "mlp", "data": "digits", "workers": 2, "rounds": 4, "out": out, **options}
    return chimera.train(**given)


def test_by_speed_uses_each_workers_link_in_virtual_time(tmp_path: Path) -> None:
    codec = {"name": "adaptive", "by": "speed", "codecs": ["sign", "int8"], "seconds": 0.01}
    bits = []
    for slow in ([], ["worker 0"], ["worker 0", "worker 1"]):
        nodes = {name: {"bandwidth_bytes_s": 1e6} for name in slow}
        engine = {"name": "simulated", "network": {"bandwidth_bytes_s": 1e9, "nodes": nodes}}
        bits.append(fit(tmp_path / str(len(slow)), codec=codec, engine=engine).cost.bits_per_element_up)
    assert bits[0] == pytest.approx(8, rel=0.01)
    assert bits[2] == pytest.approx(1, rel=0.05)
    assert bits[1] == pytest.approx((bits[0] + bits[2]) / 2)


@pytest.mark.long
def test_by_speed_without_a_known_bandwidth_raises_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not know the link, give the option") as caught:
        fit(tmp_path / "run", codec={"name": "adaptive", "by": "speed", "seconds": 0.01}, engine="local")
    assert "\n" not in str(caught.value)
