"""Synthetic folders of comparisons as `chimera.compare` writes them, without training or clock."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

CODECS = {  # what is sent, against identity; how many rounds training takes, against identity; the accuracy in the end
    "identity": (1.0, 1.0, 0.951),
    "cast": (0.5, 1.0, 0.951),
    "int8": (0.26, 1.02, 0.950),
    "qsgd:levels=4": (0.1, 1.1, 0.947),
    "terngrad": (0.066, 1.3, 0.938),
    "sign": (0.034, 1.6, 0.921),
    "top-k:ratio=0.01:error_feedback=true": (0.016, 1.15, 0.949),
    "random-k:ratio=0.01": (0.0103, 2.5, 0.902),
    "powersgd:rank=2": (0.021, 1.08, 0.948),
    "natural": (0.28, 1.03, 0.9495),
    "dgc:ratio=0.001": (0.004, 1.4, 0.940),
    "onebit": (0.034, 1.2, 0.944),
}
ROUND_BYTES, ROUNDS, EVALUATIONS = 400_000, 200, 20


def make(
    folder: Path,
    *,
    cells: int = 2,
    bandwidths: tuple[float, ...] = (),
    target: float | None = 0.9,
    failed: tuple[int, ...] = (),
    virtual: bool = True,
) -> Path:
    """Write a comparison of ``codecs`` codecs at each bandwidth."""
    rows = []
    for i, (codec, bandwidth) in enumerate(itertools.product(list(CODECS)[:cells], bandwidths or (125e6,))):
        row: dict[str, Any] = {"cell": codec, "folder": f"cell {i}", "settings": {"codec": codec}, "state": "finished"}
        if bandwidths:
            row["settings"]["engine.bandwidth_bytes_s"] = f"{bandwidth:g}"
            row["cell"] += f" · bandwidth_bytes_s={bandwidth:g}"
        row |= {"engine": "simulated" if virtual else "local", "virtual": virtual, "metrics": {}}
        if i in failed:
            row |= {"state": "failed", "error": "the codec's <vector> is too long"}
        else:
            row |= run(folder / row["folder"], codec, bandwidth, target)
            row["times_fewer_bytes"] = 1 / CODECS[codec][0]
            row["times_sooner"] = 0.99 / CODECS[codec][1]
        rows.append(row)
    comparison = {
        "experiment": "some folder/mnist.toml",
        "varied": {"codec": list(CODECS)[:cells]},
        "target": {"accuracy": target} if target else None,
        "notes": ["Simulated: all seconds are virtual."] if virtual else [],
        "rows": rows,
        "runs": rows,
        "folder": str(folder),
    }
    if bandwidths:
        comparison["varied"]["engine.bandwidth_bytes_s"] = [f"{bandwidth:g}" for bandwidth in bandwidths]
    (folder / "comparison.json").write_text(json.dumps(comparison), encoding="utf-8")
    return folder


def run(folder: Path, codec: str, bandwidth: float, target: float | None) -> dict[str, Any]:
    """Write the files of a run, and return its results."""
    share, slower, best = CODECS[codec]
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("the report", encoding="utf-8")
    lines: list[dict[str, Any]] = []
    for n in range(1, EVALUATIONS + 1):
        rounds = n * ROUNDS // EVALUATIONS
        moved = int(rounds * ROUND_BYTES * share)
        line: dict[str, Any] = {"round": rounds, "seconds": rounds * 0.01 + 2 * moved / bandwidth}
        line |= {"bytes_up": moved, "bytes_down": moved, "train_loss": 2.3 * math.exp(-rounds / 40 / slower)}
        rest = math.exp(-rounds / 30 / slower)
        line |= {"loss": 2.3 * rest + 0.15, "accuracy": best - (best - 0.1) * rest}
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    last = lines[-1]
    row = {key: last[key] for key in ("seconds", "bytes_up", "bytes_down")} | {"rounds": ROUNDS}
    row |= {"metrics": {"loss": last["loss"], "accuracy": last["accuracy"]}, "bits_per_element_up": 32 * share}
    row |= {"bits_per_element_down": 32.0, "compression_ratio": 1 / share}
    if target:
        row["seconds_to_target"] = next((line["seconds"] for line in lines if line["accuracy"] >= target), None)
    return row
