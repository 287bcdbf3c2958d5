"""Tokens per second and model FLOP utilisation: formulas, padding, and the figures of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.cli.outcome import outcome
from chimera.core.errors import ConfigurationError
from chimera.models.batch_work import peak_flops_of, work_on_tokens
from chimera.report.html import page
from chimera.report.run_files import read_run
from chimera.training.progress.peak import Peak, utilisation
from language_kit import GPT, PAIR, TOKENS, made, text

NEW = {"name": "huggingface", "task": "causal-lm", "from": "config", "config": GPT}
BATCHES = 2 * 3  # workers, rounds
transformers = pytest.mark.takes("it imports transformers")


@pytest.fixture(autouse=True)
def _needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def fit(folder: Path, **options: Any) -> chimera.Run:
    pytest.importorskip("transformers")
    given: dict[str, Any] = {
        "model": NEW, "data": {"name": "text-blocks", "path": text(folder.parent), "block": 16},
        "strategy": "all-reduce", "engine": "simulated", "workers": 2, "batch_size": 4,
        "rounds": BATCHES // 2, "optimizer": {"name": "sgd", "lr": 0.1}, "out": folder,
    }  # fmt: skip
    return chimera.train(**{**given, **options})


def test_a_token_takes_six_flops_for_a_trained_parameter_and_four_for_a_frozen_one() -> None:
    assert work_on_tokens(10, trained=7, frozen=100).flops == 10 * (6 * 7 + 4 * 100)


@transformers
def test_a_model_says_the_work_of_its_parameters_each_once() -> None:
    pytest.importorskip("transformers")
    model = made(**{key: value for key, value in NEW.items() if key not in ("name", "task")})
    tokens, flops = model.work_of(PAIR)
    assert tokens == PAIR[0].size
    assert flops == 6 * tokens * model.layout.size  # the tied output layer is in the vector once


@transformers
def test_with_adapters_only_they_have_gradients_of_their_own() -> None:
    pytest.importorskip("peft")
    new = {key: value for key, value in NEW.items() if key not in ("name", "task")}
    base = made(**new).layout.size
    model = made(**new, lora={"r": 2, "targets": ["c_attn"]})
    trained = model.layout.size
    assert model.work_of(PAIR).flops == PAIR[0].size * (4 * base + 6 * trained)


@transformers
def test_padding_is_not_counted() -> None:
    pytest.importorskip("transformers")
    model, mask = made(**{"from": "config", "config": GPT}), np.ones_like(TOKENS)
    mask[:, 10:] = 0
    assert model.work_of({"input_ids": TOKENS, "attention_mask": mask}).tokens == 10 * len(TOKENS)
    assert model.work_of({"input_ids": TOKENS, "labels": TOKENS}).tokens == TOKENS.size


@transformers
@pytest.mark.parametrize("strategy", ["all-reduce", {"name": "fed-avg", "local_steps": 1}])
def test_a_run_reports_the_tokens_and_the_flops_of_all_its_workers(tmp_path: Path, strategy: Any) -> None:
    run = fit(tmp_path / "run", strategy=strategy, peak_flops=1e9)
    summary, parameters = run.summary(), run.trained.layout.size
    assert summary["tokens"] == run.cost.samples * PAIR[0].shape[1] == BATCHES * 4 * 16
    assert summary["flops"] == 6 * parameters * summary["tokens"]
    assert summary["tokens_per_second"] == pytest.approx(summary["tokens"] / summary["seconds"])
    assert summary["mfu"] == pytest.approx(summary["flops"] / summary["seconds"] / 2e9)
    assert [run.rows[-1][key] for key in ("tokens", "flops")] == [summary["tokens"], summary["flops"]]
    assert "tokens/s, virtual" in dict(outcome(summary))["tokens"]
    report = page(read_run(run.run_dir))
    assert "tokens/s, virtual" in report
    assert "model FLOP utilisation, virtual" in report
    assert json.loads((run.run_dir / "summary.json").read_text())["tokens"] == summary["tokens"]


@transformers
def test_without_a_known_peak_no_utilisation_is_reported(tmp_path: Path) -> None:
    summary = fit(tmp_path / "run").summary()
    assert summary["tokens"] > 0
    assert not {"mfu", "peak_flops"} & summary.keys()


@transformers
def test_a_resumed_run_counts_each_token_once(tmp_path: Path) -> None:
    fit(tmp_path / "run", rounds=1)
    assert fit(tmp_path / "run", resume=True).cost.tokens == BATCHES * 4 * 16


@transformers
@pytest.mark.long
def test_workers_in_processes_report_the_same(tmp_path: Path) -> None:
    assert fit(tmp_path / "run", engine="local").cost.tokens == BATCHES * 4 * 16


def test_a_model_that_does_not_say_its_flops_is_as_before(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine": "simulated", "rounds": 1, "optimizer": {"name": "sgd", "lr": 0.1}}
    data = np.ones((8, 3), np.float32), np.arange(8) % 2
    run = chimera.train("logistic-regression", data, out=tmp_path / "run", **options)
    assert not {"tokens", "flops", "tokens_per_second", "mfu"} & {*run.summary(), *run.rows[-1]}
    assert "tokens" not in dict(outcome(run.summary()))
    with pytest.raises(ConfigurationError, match=r"peak_flops: .* does not say the FLOPs of a batch: leave it out"):
        chimera.train("logistic-regression", data, out=tmp_path / "other", peak_flops=1e12, **options)


@pytest.mark.parametrize("peak", [0, -1.0, float("inf"), float("nan")])
def test_a_peak_is_above_zero_and_finite(peak: float) -> None:
    with pytest.raises(ConfigurationError, match="peak_flops must be above 0"):
        Peak(peak)


def test_the_peak_of_a_run_needs_that_of_each_worker_unless_it_is_given() -> None:
    known = {"worker 0": 4e12, "worker 1": 2e12}
    assert Peak(share=0.5).total(known, list(known), virtual=False) == 3e12
    assert Peak().total(known, [*known, "worker 2"], virtual=False) is None
    assert Peak().total(known, list(known), virtual=True) is None
    assert Peak(1e12).total({}, ["worker 0", "worker 1"], virtual=True) == 2e12
    assert utilisation(5.0, 0.0, 1e12) is None
    assert utilisation(5.0, 2.0, None) is None
    assert utilisation(5.0, 2.0, 5.0) == 0.5


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 3060", None),
    ],
)
def test_peaks_of_gpus_are_found_by_the_name_that_torch_gives_them(name: str, peak: float | None) -> None:
    assert peak_flops_of(name) == peak
