"""Word vectors trained by several learners: files of a run, equality with a plain loop, and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import chimera
from chimera.cli.main import app
from chimera.core.errors import ConfigurationError
from chimera.data.text.text import Text
from chimera.embeddings import WordVectors, unigram_cross_entropy, vectors_of
from chimera.models.conversion import build_model
from data.text.texts import random_text, written


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("book") / "book.txt", random_text(4000, vocabulary=60))


def train(book: Path, out: Path, **options: Any) -> chimera.Run:
    usual: dict[str, Any] = {"engine": "simulated", "learners": 3, "dim": 8, "local_steps": 5, "rounds": 4}
    return chimera.embed(book, out=out, **{**usual, "data": {"test_windows": 50}, **options})


@pytest.mark.parametrize("output", ["softmax", "negative-sampling", "hierarchical-softmax"])
def test_a_run_writes_its_vectors_in_the_order_of_the_vocabulary(book: Path, tmp_path: Path, output: str) -> None:
    run = train(book, tmp_path / "run", output=output, batch_size=16, also=["embeddings.bin"])
    words = (run.run_dir / "vocabulary.txt").read_text().split()
    text = Text.of(book, test_windows=50, stride="disjoint" if output == "softmax" else "sliding")
    assert words == list(text.classes)
    vectors = vectors_of(run.run_dir)
    assert vectors.words == tuple(words)
    table = next(iter(run.trained.layout.split(run.trained.parameters()).values()))
    assert np.array_equal(vectors.vectors, table)
    assert np.array_equal(WordVectors.load(run.run_dir / "embeddings.bin").vectors, table)
    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["unigram_loss"] == pytest.approx(unigram_cross_entropy(text.counts, text.test.targets))
    assert summary["vocabulary"] == 60


def test_one_learner_gives_the_bits_of_a_plain_loop(book: Path, tmp_path: Path) -> None:
    run = train(book, tmp_path / "run", learners=1, pipelines=1, batch_size=8, seed=3)
    text = Text.of(book, test_windows=50, stride="disjoint", seed=3, shuffle=True)
    about = {"input_shape": (4,), "outputs": 60, "task": "classification", "seed": 3}
    module = build_model("cbow", {"dim": 8}, **about).module
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)
    order = text.orders(1, 8, 3)[0]
    for step in range(20):
        inputs, targets = map(torch.from_numpy, text.take(order.batch(step)))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
    for ours, theirs in zip(run.model.state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stages", ["fused", "apart"])
@pytest.mark.parametrize("pipelines", [0, 1, 3])
def test_the_loss_decreases_with_any_pipelines(book: Path, tmp_path: Path, pipelines: int, stages: str) -> None:
    run = train(book, tmp_path / "run", pipelines=pipelines, stages=stages, rounds=30, batch_size=16)
    losses = [row["loss"] for row in run.rows]
    assert losses[-1] < losses[0] - 0.01
    assert run.cost.rounds == 30


KILLS = {
    "inside": (0, "fused", ["kill worker 1 at step 5"]),
    "shared": (1, "fused", ["kill pipeline 0 at step 4", "kill worker 0 at step 9"]),
    "stages": (2, "apart", ["kill tokenizer 0 at step 4", "kill filter 1 at step 8", "kill batcher 0 at step 12"]),
}


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", KILLS)
def test_training_continues_after_any_actor_is_killed(book: Path, tmp_path: Path, case: str, engine: str) -> None:
    pipelines, stages, faults = KILLS[case]
    recipe = chimera.embeddings.Recipe(
        paths=[book], engine=engine, learners=2, dim=8, local_steps=5, rounds=30, batch_size=16,
        pipelines=pipelines, stages=stages, data={"test_windows": 50},
    )  # fmt: skip
    run = recipe.experiment().with_faults(faults).trainer(out=tmp_path / "run").fit()
    events = [(event.event, event.actor) for event in run.events]
    for fault in faults:
        victim = " ".join(fault.split()[1:3])
        assert ("fault", victim) in events
        assert (f"{'worker' if victim.startswith('worker') else 'pipeline'} respawned", victim) in events
    assert run.cost.rounds == 30
    assert run.metrics["loss"] < np.log(60)


@pytest.mark.long
def test_a_pipeline_per_learner_changes_no_bit_even_if_it_dies(book: Path, tmp_path: Path) -> None:
    inside = train(book, tmp_path / "inside", pipelines=0, rounds=12)
    recipe = {"pipelines": 3, "stages": "apart", "rounds": 12}
    outside = train(book, tmp_path / "outside", **recipe)
    recipe_of = chimera.embeddings.Recipe(
        paths=[book], engine="simulated", learners=3, dim=8, local_steps=5, data={"test_windows": 50}, **recipe
    )
    repaired = recipe_of.experiment().with_faults(["kill filter 2 at step 5"]).trainer(out=tmp_path / "repaired").fit()
    weights = [run.trained.parameters().tobytes() for run in (inside, outside, repaired)]
    assert weights[0] == weights[1] == weights[2]


def test_the_command_trains_and_answers_queries(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    options = ["--engine", "simulated", "--learners", "2", "--dim", "8", "--rounds", "3", "--test-windows", "50"]
    done = runner.invoke(app, ["embed", str(book), *options, "--out", "run", "--hdf5", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rounds"] == 3
    for name in ("embeddings.csv", "embeddings.txt", "embeddings.bin", "embeddings.h5", "weights.safetensors"):
        assert (tmp_path / "run" / name).exists()
    words = (tmp_path / "run" / "vocabulary.txt").read_text().split()
    near = runner.invoke(app, ["embed", "neighbours", "run", words[0], "--count", "3", "--json"])
    assert len(json.loads(near.stdout)) == 3
    assert runner.invoke(app, ["embed", "analogy", "run", *words[:3]]).exit_code == 0
    pairs = written(tmp_path / "pairs.txt", f"{words[0]} {words[1]} 3\n{words[2]} {words[3]} 1\nnone such 2\n")
    judged = runner.invoke(app, ["embed", "evaluate", "run", str(pairs)])
    assert "2 of 3 pairs have known words only" in judged.stdout
    lost = runner.invoke(app, ["embed", "neighbours", "run", "unknownword"])
    assert lost.exit_code == 2
    assert lost.stderr.count("\n") == 1
    again = runner.invoke(app, ["train", "run/experiment.toml", "--out", "again", "--quiet"])
    assert again.exit_code == 0, again.output
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("run", "again")]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_each_cell_of_a_grid_writes_its_vectors(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--engine", "simulated", "--learners", "1,2", "--dim", "8", "--rounds", "2", "--test-windows", "50"]
    done = CliRunner().invoke(app, ["embed", str(book), *options, "--out", "grid", "--hdf5", "--quiet"])
    assert done.exit_code == 0, done.output
    for cell in ("workers=1", "workers=2"):
        folder = tmp_path / "grid" / cell
        found = WordVectors.load(folder / "embeddings.h5")
        assert found.words == tuple((folder / "vocabulary.txt").read_text().split())
        assert np.array_equal(found.vectors, vectors_of(folder).vectors)
        (folder / "embeddings.csv").unlink()  # as in a run of chimera train, which writes only weights
        assert np.array_equal(found.vectors, vectors_of(folder).vectors)


@pytest.mark.long
def test_the_fill_of_learners_queues_is_reported_in_real_time(book: Path, tmp_path: Path) -> None:
    class Watcher(chimera.Callback):
        def on_progress(self, progress: chimera.Progress) -> None:
            fills.append(progress.fill)

    fills: list[dict[str, float]] = []
    recipe = chimera.embeddings.Recipe(
        paths=[book], engine="local", learners=2, dim=8, local_steps=100, rounds=20, batch_size=64,
        pipelines=1, data={"test_windows": 50},
    )  # fmt: skip
    recipe.experiment().trainer(out=tmp_path / "run", callbacks=[Watcher()]).fit()
    assert set(fills[-1]) == {"worker 0", "worker 1"}
    assert all(0 <= share <= 1 for share in fills[-1].values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"learners": 0}, "learners must be at least 1"),
        ({"output": "soft"}, "the output 'soft' is unknown"),
        ({"strategy": "all-reduce"}, "local_steps has no effect with the strategy 'all-reduce'"),
        ({"pipelines": 4}, "1 to 3 are allowed"),
    ],
)
def test_invalid_options_give_a_one_line_error(book: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        train(book, tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
