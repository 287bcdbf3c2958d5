"""A run that is interrupted anywhere and resumed equals an uninterrupted run."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.training.artifacts.checkpoint import Checkpoints
from training.conftest import Fit

ROUNDS = 22
SCRIPT = Path(__file__).with_name("interrupted.py")
STRAGGLERS = {"name": "simulated", "compute": {"straggler_spread": 0.9, "spread": 0.4}}
CASES = {
    "served": ("simulated", {"name": "parameter-server", "shards": 2}),
    "reduced": ("simulated", {"name": "all-reduce"}),
    "alone": ("simulated", {"name": "single-worker"}),
    "quorum of stragglers": (STRAGGLERS, {"name": "parameter-server", "quorum": 0.6}),
    "at their own pace": (STRAGGLERS, {"name": "async-parameter-server", "shards": 2}),
    "at most one ahead": (STRAGGLERS, {"name": "stale-synchronous", "max_staleness": 1}),
    "compensated": (STRAGGLERS, {"name": "delay-compensated", "lambda_": 0.5, "decay": 0.9}),
    "double": (STRAGGLERS, {"name": "double-buffering"}),
    "buffered": (STRAGGLERS, {"name": "fed-buff", "local_steps": 2}),
    "averaged": (
        STRAGGLERS,
        {
            "name": "fed-avg",
            "local_steps": 3,
            "fraction": 0.7,
        },
    ),
    "controlled": (
        STRAGGLERS,
        {
            "name": "scaffold",
            "local_epochs": 0.05,
            "fraction": 0.4,
            "weighted": True,
            "shards": 2,
        },
    ),
}
QUICK = "served", "reduced", "at their own pace"
"""What the default run has of them."""


def train(
    out: Path, engine: Any, strategy: Any, dies_at: int = 0, how: str = "SIGKILL"
) -> subprocess.CompletedProcess[str]:
    arguments = [str(out), json.dumps(engine), json.dumps(strategy), str(ROUNDS), str(dies_at), how]
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs that never stopped, made when they are asked for."""

    @functools.cache
    def run(case: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert train(folder, *CASES[case]).returncode == 0
        return folder

    return run


@pytest.mark.parametrize(
    ("case", "dies_at"),
    [
        pytest.param(
            case, at, marks=pytest.mark.slow if at == 13 else [] if at == 7 and case in QUICK else pytest.mark.long
        )
        for case in CASES
        for at in (
            [7, 21] if case in ("compensated", "double", "buffered", "averaged", "controlled") else [1, 7, 13, 21]
        )
    ],
)
@pytest.mark.sampled(1)
@pytest.mark.takes("it kills and resumes processes that import torch")
def test_a_killed_and_resumed_run_leaves_the_same_bytes(
    tmp_path: Path, whole: Callable[[str], Path], case: str, dies_at: int
) -> None:
    engine, strategy = CASES[case]
    assert train(tmp_path / "run", engine, strategy, dies_at).returncode == -signal.SIGKILL
    again = train(tmp_path / "run", engine, strategy)
    assert again.returncode == 0, again.stderr
    for file in ("weights.safetensors", "metrics.jsonl", "trace.jsonl"):
        assert (tmp_path / "run" / file).read_bytes() == (whole(case) / file).read_bytes(), file
    summaries = [json.loads((run / "summary.json").read_text()) for run in (tmp_path / "run", whole(case))]
    for key in ("staleness", "largest_lead"):
        assert summaries[0].get(key) == summaries[1].get(key)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce"])
def test_a_resumed_run_on_processes_has_the_same_weights(tmp_path: Path, strategy: str) -> None:
    assert train(tmp_path / "whole", "local", strategy).returncode == 0
    assert train(tmp_path / "run", "local", strategy, dies_at=14).returncode == -signal.SIGKILL
    again = train(tmp_path / "run", "local", strategy)
    assert again.returncode == 0, again.stderr
    weights = [(tmp_path / run / "weights.safetensors").read_bytes() for run in ("whole", "run")]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_ctrl_c_writes_a_checkpoint_of_the_current_round(tmp_path: Path, whole: Callable[[str], Path]) -> None:
    engine, strategy = CASES["served"]
    stopped = train(tmp_path / "run", engine, strategy, dies_at=6, how="SIGINT")
    assert "KeyboardInterrupt" in stopped.stderr
    last = Checkpoints(str(tmp_path / "run" / "checkpoints")).paths()[-1]
    assert last.endswith("round-000000006.safetensors")
    assert train(tmp_path / "run", engine, strategy).returncode == 0
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (tmp_path / "run", whole("served"))]
    assert weights[0] == weights[1]


def test_a_longer_budget_continues_a_finished_run(fit: Fit) -> None:
    whole = fit("whole", rounds=20, evaluate_every=10)
    fit("run", rounds=10, evaluate_every=10)
    longer = fit("run", rounds=20, evaluate_every=10, resume=True)
    assert longer.cost.rounds == 20
    assert (longer.run_dir / "weights.safetensors").read_bytes() == (whole.run_dir / "weights.safetensors").read_bytes()


def test_a_run_whose_last_rows_are_lost_resumes_and_reports_it(fit: Fit, tmp_path: Path) -> None:
    """As after a loss of power: the checkpoint is on the disk, and the end of the growing files is not."""
    whole = fit("whole", rounds=20, evaluate_every=5)
    fit("run", rounds=10, evaluate_every=5)
    metrics, trace = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "trace.jsonl"
    rows = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(rows)[:-7])
    lost_of_trace = trace.stat().st_size
    trace.unlink()
    run = fit("run", rounds=20, evaluate_every=5, resume=True)
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
    assert metrics.read_bytes().startswith(b"".join(rows[:-1]) + b'{"round":')
    assert [row["round"] for row in run.rows] == [row["round"] for row in whole.rows if row["round"] != 10]
    assert [(event.event, event.detail.partition(" that ")[0]) for event in run.events] == [
        ("rows missing", f"metrics.jsonl lacks {len(rows[-1])} bytes"),
        ("rows missing", f"trace.jsonl lacks {lost_of_trace} bytes"),
    ]


def test_a_run_that_lost_rows_resumes_again_if_it_wrote_other_rows_but_no_checkpoint(fit: Fit, tmp_path: Path) -> None:
    fit("run", rounds=10, evaluate_every=5)
    trace = tmp_path / "run" / "trace.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(
        b"".join(lines[:-1]) + 3 * (lines[-1][:-1] + b" " * 7 + b"\n")
    )  # longer than the checkpoint knows
    assert fit("run", rounds=20, evaluate_every=5, resume=True).cost.rounds == 20


def test_workers_resume_at_their_own_step_after_the_loss_of_another_one(fit: Fit, tmp_path: Path) -> None:
    options = {"strategy": {"name": "fed-buff", "buffer": 1}, "workers": 4, "on_worker_loss": "drop"}
    slow = {"engine": {"name": "simulated", "compute": {"slow": {"worker 2": 4.0}}}}

    def steps() -> dict[str, int]:
        cluster = Checkpoints(str(tmp_path / "run" / "checkpoints")).read_last()["cluster"]
        return dict(zip(cluster["names"], cluster["steps"], strict=True))

    fit("run", rounds=40, faults=["kill worker 1 at step 3"], **options, **slow)
    before = steps()
    assert set(before) == {"worker 0", "worker 2", "worker 3"}
    assert before["worker 2"] <= before["worker 3"] / 2
    fit("run", rounds=41, resume=True, **options, **slow)
    after = steps()
    assert all(before[name] <= after[name] <= before[name] + 12 for name in before)


def test_resuming_a_finished_run_changes_nothing(fit: Fit) -> None:
    first = fit(rounds=10)
    again = fit(rounds=10, resume=True)
    assert again.metrics == first.metrics
    assert again.cost == first.cost


@pytest.mark.long
def test_a_run_can_be_resumed_on_another_engine(fit: Fit) -> None:
    fit("run", rounds=10, evaluate_every=5)
    other = fit("run", rounds=20, evaluate_every=5, resume=True, engine="local")
    whole = fit("whole", rounds=20, evaluate_every=5)
    assert other.cost.rounds == 20
    assert abs(other.metrics["loss"] - whole.metrics["loss"]) < 1e-4


def test_resuming_with_another_model_raises_a_one_line_error(fit: Fit) -> None:
    fit(rounds=5)
    with pytest.raises(ConfigurationError, match=r"a model of 1210 parameters, but the experiment's model has 4810"):
        fit(rounds=10, resume=True, model={"name": "mlp", "hidden": [64]})
    with pytest.raises(ConfigurationError, match="written with 1 shard, not 2"):
        fit(rounds=10, resume=True, strategy={"name": "parameter-server", "shards": 2})


def test_a_folder_that_holds_a_run_is_not_overwritten(fit: Fit) -> None:
    fit(rounds=5)
    with pytest.raises(ConfigurationError, match="already contains a run"):
        fit(rounds=5)
