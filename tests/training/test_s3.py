"""Runs in S3, with the server of moto on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import fsspec
import pytest

from s3_kit import BUCKET, KEY, S3, SECRET, s3_server

SCRIPT = Path(__file__).with_name("stored.py")
LIMIT_S = 500.0


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture
def url(s3: S3, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{re.sub('[^a-z0-9_]', '-', request.node.name)}/run"


def start(s3: S3, out: str | Path, tmp_path: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the training script; its private folders are in one that is empty at the end of a run."""
    private = tmp_path / "private"
    private.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), str(out), json.dumps(options)]
    environment = {**s3.environment, "TMPDIR": str(private)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def start_paced(s3: S3, out: str, tmp_path: Path, **options: Any) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start a run that ends with its stdin, and wait until it trains; return its stdout, too."""
    process = start(s3, out, tmp_path, paced=True, rounds=100_000, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    return process, process.stdout


def train(s3: S3, out: str | Path, tmp_path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    process = start(s3, out, tmp_path, **options)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def chimera(s3: S3, *command: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "chimera", *command]
    return subprocess.run(run, env=s3.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def stored(s3: S3, url: str) -> dict[str, bytes]:
    files = s3.files()
    return {path.partition("/run/")[2]: files.cat_file(path) for path in files.find(url)}


@pytest.mark.long
def test_a_run_killed_and_resumed_from_s3_equals_one_from_a_folder(s3: S3, url: str, tmp_path: Path) -> None:
    for out in (url, tmp_path / "run"):
        killed = train(s3, out, tmp_path, kill_at=14, kill_with=12)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = train(s3, out, tmp_path, workers=2)
        assert (again.returncode, again.stderr) == (0, "")
        assert again.stdout.split()[0] == str(out)
    there = stored(s3, url)
    for name in ("weights.safetensors", "metrics.jsonl", "trace.jsonl", "signature.json", "data.json"):
        assert there[name] == (tmp_path / "run" / name).read_bytes(), name
    local = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert {name for name in there if "/" not in name} == local
    left = [path.name for path in (tmp_path / "private").iterdir()]
    assert len(left) == 1  # of the process that was killed
    assert left[0].startswith("chimera-run-")
    for name, content in there.items():
        assert KEY.encode() not in content, name
        assert SECRET.encode() not in content, name


@pytest.mark.slow
@pytest.mark.parametrize("place", ["s3", "folder"])
def test_a_model_of_100_million_parameters_resumes_from_s3(s3: S3, url: str, tmp_path: Path, place: str) -> None:
    out, began_s = url if place == "s3" else tmp_path / "run", time.monotonic()
    options = {
        "model": {"name": "mlp", "hidden": [10_000, 9_930]},
        "engine": "local",
        "batch_size": 8,
        "optimizer": {"name": "sgd", "lr": 0.1},
    }
    options |= {"rounds": 4, "checkpoint_every": 2, "evaluate_every": 4}
    killed = train(s3, out, tmp_path, kill_at=3, kill_with=2, **options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    killed_s = time.monotonic()
    again = train(s3, out, tmp_path, workers=2, **options)
    assert again.returncode == 0, again.stderr
    ended_s, peak_mb = time.monotonic(), again.stdout.split()[-1]
    files = s3.files() if place == "s3" else fsspec.filesystem("file")
    [size] = [files.size(path) for path in files.glob(f"{out}/checkpoints/round-000000004*")]
    figures = (
        f"{place}: to the kill {killed_s - began_s:.0f} s, resumed to the end {ended_s - killed_s:.0f} s, "
        f"a checkpoint {size / 1e6:.0f} MB, peak memory of the driver that resumed {peak_mb} MB"
    )
    sys.stdout.write(f"{figures}\n")  # shown by pytest -s
    assert size > 100_000_000 * 4


@pytest.mark.long
def test_the_command_line_trains_reports_and_refuses(s3: S3, url: str, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'data = "digits"\nengine = "local"\nmodel = { name = "sklearn-sgd-classifier", loss = "log_loss" }\n'
        'train = { workers = 2, rounds = 5, batch_size = 16, optimizer = { name = "sgd", lr = 1.0 } }\n'
    )
    command = ["train", str(experiment), "--out", url]
    done = chimera(s3, *command)
    assert done.returncode == 0, done.stderr
    assert f"{url}/report.html" in done.stdout
    again = chimera(s3, *command)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"error: {url} already contains a run: resume it, or choose another folder\n"
    assert chimera(s3, *command, "--resume", "--quiet").returncode == 0
    assert chimera(s3, "report", url).stdout == f"{url}/report.html\n"
    nowhere = chimera(s3, *command[:-1], "s3://nowhere/run")
    assert nowhere.returncode == 1
    assert re.fullmatch(r"error: the object store s3://nowhere/run does not accept .*\n", nowhere.stderr)


@pytest.mark.long
def test_a_comparison_in_a_store_has_the_files_of_one_in_a_folder(s3: S3, url: str, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'data = "digits"\nengine = "simulated"\nmodel = { name = "sklearn-sgd-classifier", loss = "log_loss" }\n'
        "train = { workers = 2, rounds = 5, evaluate_every = 5, batch_size = 16 }\n"
    )
    command = ["compare", str(experiment), "--quiet", "--vary", "codec=identity,int8"]
    for out in (str(tmp_path / "run"), url):
        assert chimera(s3, *command, "--out", out).returncode == 0
    local = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    found = stored(s3, url)
    assert set(found) == local
    for name in ("comparison.csv", "int8/weights.safetensors", "grid.json"):
        assert found[name] == (tmp_path / "run" / name).read_bytes(), name
    assert b'href="int8/report.html"' in found["comparison.html"]
    again = chimera(s3, *command, "--out", url)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"error: {url} is not empty: resume its comparison, or choose another folder\n"
    s3.files().rm(f"{url}/int8", recursive=True)
    more = chimera(s3, *command[:-1], "codec=identity,int8,sign", "--out", url, "--resume", "--json")
    assert more.returncode == 0, more.stderr
    answer = json.loads(more.stdout)
    assert (answer["folder"], [row["state"] for row in answer["rows"]]) == (url, ["finished"] * 3)
    after = stored(s3, url)
    assert after["identity/summary.json"] == found["identity/summary.json"]  # it did not run again
    assert after["int8/weights.safetensors"] == found["int8/weights.safetensors"]
    script = "import sys, chimera; chimera.Comparison.load(sys.argv[1]).plot(sys.argv[2])"
    plot = [sys.executable, "-c", script, url, str(tmp_path / "plot.svg")]
    subprocess.run(plot, env=s3.environment, check=True, timeout=LIMIT_S)
    assert (tmp_path / "plot.svg").stat().st_size
    assert not list(Path(s3.environment.get("TMPDIR", "/tmp")).glob("chimera-compare-*"))


@pytest.mark.long
def test_training_continues_while_the_store_is_away(s3: S3, url: str, tmp_path: Path) -> None:
    process, output = start_paced(s3, url, tmp_path, checkpoint_every=20)
    try:
        s3.say("away")
        try:
            assert output.readline() == "object store unavailable\n"
        finally:
            s3.say("back")
        assert output.readline() == "object store available\n"
        stderr = process.communicate("", timeout=LIMIT_S)[1]
    finally:
        process.kill()
    assert (process.returncode, stderr) == (0, "")
    there = stored(s3, url)
    events = [json.loads(line) for line in there["events.jsonl"].splitlines()]
    assert [event["event"] for event in events] == ["object store unavailable", "object store available"]
    assert "the run continues and tries again" in events[0]["detail"]
    assert not list((tmp_path / "private").iterdir())


@pytest.mark.long
def test_a_store_that_stays_away_fails_the_run_and_keeps_its_files(s3: S3, url: str, tmp_path: Path) -> None:
    process, output = start_paced(s3, url, tmp_path, checkpoint_every=20)
    s3.say("away")
    try:
        assert output.readline() == "object store unavailable\n"
        stderr = process.communicate("", timeout=LIMIT_S)[1]
    finally:
        s3.say("back")
        process.kill()
    assert process.returncode == 1
    assert "weights.safetensors" in stderr
    [kept] = (tmp_path / "private").glob("*/run")
    assert f"resume with --out {kept} --resume" in stderr
    assert json.loads((kept / "summary.json").read_text())["stopped_by"] == "stop"
    again = train(s3, kept, tmp_path, rounds=1)  # it has more rounds already
    assert again.returncode == 0, again.stderr


@pytest.mark.long
def test_ctrl_c_leaves_a_checkpoint_in_the_store(s3: S3, url: str, tmp_path: Path) -> None:
    process, _ = start_paced(s3, url, tmp_path, checkpoint_every=1_000_000, evaluate_every=1_000_000)
    files = s3.files()
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=LIMIT_S)[1]
    assert f"out='{url}', resume=True" in stderr
    assert len(files.ls(f"{url}/checkpoints")) == 1
    assert not list((tmp_path / "private").iterdir())
    assert train(s3, url, tmp_path, rounds=1).returncode == 0


@pytest.mark.long
def test_a_preempted_command_names_the_url_of_its_checkpoint(s3: S3, url: str, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'data = "digits"\nmodel = { name = "sklearn-sgd-classifier", loss = "log_loss" }\ntrain.rounds = 1_000_000_000\n'
    )
    command = [sys.executable, "-u", "-m", "chimera", "train", str(experiment), "--out", url]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=s3.environment, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    begun = any(line.startswith("round ") for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert begun, stderr
    assert process.returncode == 143
    found = re.match(rf"ended by SIGTERM; the last checkpoint is {re.escape(url)}/checkpoints/(.*)\n", stderr)
    assert found, stderr
    assert f"checkpoints/{found[1]}" in stored(s3, url)


@pytest.mark.long
def test_credentials_that_are_missing_are_reported_in_one_line(s3: S3, url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chimera", "demo", "--out", url]
    bare = {key: value for key, value in s3.environment.items() if not key.startswith("AWS_")}
    bare |= {"AWS_ENDPOINT_URL": s3.environment["AWS_ENDPOINT_URL"], "AWS_EC2_METADATA_DISABLED": "true"}
    bare |= {"HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"error: the object store s3://.*credentials.*\n", done.stderr)
