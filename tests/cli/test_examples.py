"""The examples do what their first lines state."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEXT = ROOT / "docs/how-to/inference.md"  # any text of some pages


@pytest.fixture
def summary(invoke, tmp_path):
    def run(name, *arguments):
        result = invoke("train", EXAMPLES / name, "--json", "--quiet", "--out", tmp_path / "out", *arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "simulated"])
def test_digits_needs_no_file_and_reaches_95_percent(summary, engine, monkeypatch):
    monkeypatch.delenv("CHIMERA_DATA", raising=False)
    assert summary("digits.toml", "--engine", engine)["metrics"]["accuracy"] >= 0.95


@pytest.mark.long
def test_all_reduce_stops_at_its_target(summary):
    outcome = summary("all_reduce.toml")
    assert outcome["stopped_by"] == "target"
    assert outcome["metrics"]["accuracy"] >= 0.95


def test_a_median_withstands_attackers_and_a_mean_does_not(summary, tmp_path):
    mean = summary("attackers.toml", "--set", "strategy.aggregation=mean", "--out", tmp_path / "mean")
    assert mean["metrics"]["accuracy"] < 0.5
    assert summary("attackers.toml")["metrics"]["accuracy"] > 0.88


@pytest.mark.long
def test_private_clients_still_learn(summary):
    outcome = summary("private.toml")
    assert outcome["metrics"]["accuracy"] >= 0.85
    assert outcome["epsilon"] <= 8.1
    assert outcome["privacy"]["guarantee"].startswith("epsilon 8.08 at delta 1e-05")


@pytest.mark.long
def test_with_stragglers_asynchronous_training_reaches_the_accuracy_sooner(summary, tmp_path):
    waits = (
        "--set",
        "train.optimizer.lr=1.2",
        "--set",
        "train.evaluate_every=10",
        "--set",
        "train.checkpoint_every=100",
    )
    asynchronous = summary("stragglers.toml")
    synchronous = summary("stragglers.toml", "--set", "strategy=parameter-server", *waits, "--out", tmp_path / "all")
    quorum = ("--set", "strategy.name=parameter-server", "--set", "strategy.quorum=0.875")
    backup = summary("stragglers.toml", *quorum, *waits, "--out", tmp_path / "most")
    assert {run["stopped_by"] for run in (asynchronous, synchronous, backup)} == {"target"}
    assert asynchronous["seconds"] < synchronous["seconds"]  # by how much is partly luck; this is not:
    assert asynchronous["samples_per_second"] > 1.5 * synchronous["samples_per_second"]
    assert backup["seconds"] / backup["rounds"] < synchronous["seconds"] / synchronous["rounds"]
    assert sum(asynchronous["staleness"].values()) == asynchronous["rounds"]


@pytest.mark.long
def test_clients_of_the_internet_drop_out_of_rounds_and_the_others_learn(summary):
    fewer = [("train.workers", 4000), ("data.clients", 4000), ("strategy.fraction", 0.01), ("train.rounds", 8)]
    outcome = summary("internet_scale.toml", *(word for key, value in fewer for word in ("--set", f"{key}={value}")))
    assert outcome["metrics"]["accuracy"] > 0.9
    trace = (Path(outcome["run_dir"]) / "trace.jsonl").read_text(encoding="utf-8")
    calls = [row for row in map(json.loads, trace.splitlines()) if row["call"] == "delta"]
    assert any(row["end_s"] - row["start_s"] > 1200 for row in calls)  # beyond the deadline
    assert outcome["seconds"] < 8 * 2 * 1300


@pytest.mark.long
def test_federated_reports_client_metrics(summary):
    metrics = summary("federated.toml", "--set", "train.rounds=10")["metrics"]
    assert metrics["accuracy"] > 0.6
    assert metrics["client_accuracy_worst_tenth"] < metrics["client_accuracy_mean"]


def test_split_learning_clinics_learn_and_keep_their_labels(summary):
    outcome = summary("split_learning.toml", "--set", "train.epochs=5")
    assert outcome["metrics"]["accuracy"] > 0.85
    trace = (Path(outcome["run_dir"]) / "trace.jsonl").read_text(encoding="utf-8")
    calls = {row["call"] for row in map(json.loads, trace.splitlines()) if row["actor"] == "server 0"}
    assert {"forward", "update"} <= calls
    assert "train" not in calls  # for which it would need labels


def test_slices_and_replicas_are_balanced(summary):
    outcome = summary("hybrid.toml", "--set", "train.epochs=1")
    peaks = [outcome["peak_mb"][f"worker {rank}"] for rank in range(8)]
    assert peaks[:4] == peaks[4:]
    assert peaks[0] == peaks[1] > peaks[2] == peaks[3]
    assert 0.15 < outcome["bubble"] < 0.3  # a fifth, if stages were equal


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_parameter_server_in_fifteen_lines(engine):
    path = EXAMPLES / "parameter_server_in_15_lines.py"
    done = subprocess.run([sys.executable, path, engine], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # At first it is 1. On processes, a worker that gets no core for long may bring a very old gradient at the very end.
    assert float(done.stdout.split()[-1]) < (1e-3 if engine == "simulated" else 0.3)
    code = path.read_text(encoding="utf-8").split("fifteen lines\n")[1].split("if __name__")[0]
    assert len([line for line in code.splitlines() if line.strip()]) == 15


@pytest.mark.long
def test_the_mnist_network_matches_its_paper(summary):
    outcome = summary("mnist.toml", "--engine", "simulated", "--set", "data=digits", "--set", "train.epochs=30")
    assert outcome["metrics"]["accuracy"] >= 0.9
    assert (outcome["strategy"], outcome["workers"]) == ("parameter-server", 2)


@pytest.mark.long
def test_the_python_api_in_fifteen_lines(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "stopped by target" in done.stdout
    assert list(tmp_path.rglob("*.png"))


@pytest.mark.long
def test_gradient_coding_does_not_wait_for_stragglers_and_draws_its_plot(tmp_path):
    command = [sys.executable, EXAMPLES / "coding.py", "--picture", tmp_path / "coding.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    reached = {
        name: (accuracy, float(seconds))
        for name, accuracy, seconds in re.findall(r"(\S+): accuracy (\S+) after (\S+) s", done.stdout)
    }
    assert reached["gradient-coding"][0] == reached["replicated"][0] == reached["parameter-server"][0]
    assert 3 * reached["gradient-coding"][1] < reached["parameter-server"][1]
    assert (tmp_path / "coding.png").stat().st_size < 100_000


@pytest.mark.long
def test_a_lightning_module_trains_as_it_is(tmp_path):
    pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")
    command = [sys.executable, EXAMPLES / "lightning_module.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"'val_acc': ([\d.]+)", done.stdout)[1]) > 0.95


EXPERIMENTS_AND_PROGRAMS = sorted({*EXAMPLES.glob("*.toml"), *EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/client.py")})


OF_A_LARGE_MODEL = {"lora.toml": 300, "diloco_gpt.toml": 300}


@pytest.mark.parametrize("path", EXPERIMENTS_AND_PROGRAMS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_states_that_it_takes_at_most_a_minute(path):
    head = path.read_text(encoding="utf-8").partition("\n[" if path.suffix == ".toml" else "\nimport ")[0]
    (seconds,) = re.findall(r"Takes about (\d+) s (?:on two cores|once the master serves)\.", head)
    assert int(seconds) <= OF_A_LARGE_MODEL.get(path.name, 60)


def test_the_experiment_file_of_the_reference_reaches_its_target(summary, tmp_path):
    page = (ROOT / "docs/reference/experiment-file.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "experiment.toml"
    path.write_text(block, encoding="utf-8")
    assert summary(path)["stopped_by"] == "target"


@pytest.mark.long
def test_images_are_learned_from_files(summary, tmp_path):
    subprocess.run([sys.executable, EXAMPLES / "parts" / "shapes.py", tmp_path / "shapes"], check=True)
    outcome = summary("images.toml", "--set", f"data.path={tmp_path / 'shapes'}", "--set", "train.loader.workers=1")
    assert outcome["metrics"]["accuracy"] > 0.95
    assert outcome["metrics"]["f1"] > 0.95


@pytest.mark.long
def test_a_small_bert_learns_reviews(summary):
    assert summary("finetune_text.toml")["metrics"]["accuracy"] > 0.95


@pytest.mark.long
def test_a_small_gpt_learns_a_text(summary, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text(TEXT.read_text(encoding="utf-8") * 4, encoding="utf-8")
    before, after = (
        summary(
            "language_model.toml",
            "--set",
            f"data.path={text}",
            "--set",
            f"train.rounds={n}",
            "--out",
            tmp_path / str(n),
        )
        for n in (1, 100)
    )
    assert after["metrics"]["perplexity"] < before["metrics"]["perplexity"] / 4


@pytest.mark.long
def test_clients_adapt_a_gpt_to_their_texts(tmp_path):
    pytest.importorskip("peft")
    text = tmp_path / "text.txt"
    text.write_text(TEXT.read_text(encoding="utf-8") * 4, encoding="utf-8")
    command = [sys.executable, EXAMPLES / "lora.py", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"texts: (\S+) after one round, (\S+) after 30", done.stdout)[0])
    assert last < 0.8 * first
    (sizes,) = re.findall(r"the adapter has (\S+) bytes, the base (\S+)", done.stdout)
    adapter, base = (int(size.replace(",", "")) for size in sizes)
    assert 5 * adapter < base
    assert "THE " in done.stdout
