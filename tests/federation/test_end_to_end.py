"""``chimera train`` over a hub without data of the driver: nodes are processes with data and policies of their own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from chimera.federation.hub.demo import NODES, write_data
from chimera.federation.hub.invite import invite
from chimera.federation.identity.authority import fingerprint_of
from chimera.federation.identity.join import join
from chimera.federation.node.revocations import Revocations
from chimera.federation.policy.approvals import runs_of
from chimera.privacy.accountant import Accountant
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.callback import Callback
from federation.processes import Process, hub_process

pytestmark = pytest.mark.long
LIMIT_S = 60.0

EXPERIMENT = """
engine = {{ name = "federation", nodes = "all", identity = "{identity}" }}
strategy = {{ name = "fed-avg", local_steps = 2 }}

[model]
name = "mlp"
hidden = [16]

[train]
optimizer = {{ name = "sgd", lr = 0.1 }}
workers = 3
rounds = {rounds}
batch_size = 32
log_every = 1
{more}
"""
POLICY = """
[requesters]
names = ["alice"]
[strategies.fed-avg]
local_steps = { most = 5 }
[models.mlp]
hidden = "any"
[release]
metrics = ["loss", "accuracy"]
"""
BARE = """
approval = "automatic"
secure_aggregation = "refused"
privacy = { min_noise = 0, epsilon_per_requester = inf, epsilon_in_all = inf }
"""
NOISE = 20.0
PRIVACY = f"[train.privacy]\nclip = 0.5\nnoise = {NOISE}\nsecure_aggregation = true\n"


def spent(updates: int) -> float:
    """Return epsilon of masked updates of which two of three survivors read the sum."""
    return Accountant([[NOISE * (2 / 3) ** 0.5 / 2, 1.0, updates]]).epsilon(1e-5, sampled=False)


class Hospitals:
    """A hub and three nodes as processes."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder = folder
        self.hub, self.url = hub_process(folder / "hub")
        self.nodes: dict[str, Process] = {}
        write_data(folder / "data")
        for name in NODES:
            join(*invite(folder / "hub", "node", name), folder / name)
            (folder / name / "policy.toml").write_text(policy + POLICY)
        for name in ("alice", "mallory"):
            join(*invite(folder / "hub", "requester", name), folder / name)
        for name in NODES:
            self.start(name, waits=False)
        for node in self.nodes.values():
            node.line()

    def start(self, name: str, *, waits: bool = True) -> None:
        own = self.folder / name
        data = self.folder / "data" / f"{name}.csv"
        command = ["node", "serve", "--data", data, "--policy", own / "policy.toml", "--folder", own]
        self.nodes[name] = Process("chimera", *command)
        if waits:
            self.nodes[name].line()

    def restart_hub(self) -> None:
        self.hub.kill()
        self.hub, _ = hub_process(self.folder / "hub", int(self.url.rpartition(":")[2]))

    def restart_node(self, name: str) -> None:
        self.nodes[name].kill()
        self.start(name)

    def experiment(self, requester: str = "alice", rounds: int = 40, more: str = "") -> Path:
        file = self.folder / "experiment.toml"
        file.write_text(EXPERIMENT.format(identity=self.folder / requester, rounds=rounds, more=more))
        return file

    def entries(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line)["entry"] for line in (self.folder / name / "audit.jsonl").read_text().splitlines()]

    def stop(self) -> None:
        for process in (self.hub, *self.nodes.values()):
            process.kill()


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    made = Hospitals(tmp_path_factory.mktemp("federation"), BARE)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def plain(hospitals: Hospitals) -> Path:
    """Train without faults, by the command; return the folder of the run."""
    out = hospitals.folder / "plain"
    result = command("train", hospitals.experiment(), "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return out


class Faults(Callback):
    """Does something after some rounds."""

    def __init__(self, faults: dict[int, Callable[[], None]]) -> None:
        self._faults = dict(faults)

    def on_progress(self, progress: Any) -> None:
        for number in [number for number in self._faults if progress.rounds >= number]:
            self._faults.pop(number)()


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def test_three_nodes_train_and_evaluate_on_their_rows(hospitals: Hospitals, plain: Path) -> None:
    summary = json.loads((plain / "summary.json").read_text())
    assert (summary["workers"], summary["rounds"]) == (3, 40)
    rows = [json.loads(line) for line in (plain / "metrics.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "accuracy" in row]
    assert measured[-1]["accuracy"] > 0.9
    assert measured[-1]["loss"] < measured[0]["loss"]
    for name in NODES:
        own = [entry for entry in hospitals.entries(name) if entry["requester"] == "alice"]
        first = [entry for entry in own if entry["run"] == own[0]["run"]]
        assert {entry["decision"] for entry in first} == {"released"}
        assert sum(entry["method"] == "delta" for entry in first) == 40


def test_kills_of_hub_and_nodes_change_no_bit(hospitals: Hospitals, plain: Path) -> None:
    faults = Faults(
        {
            5: hospitals.restart_hub,
            9: lambda: hospitals.restart_node("hospital-b"),
            13: hospitals.restart_hub,
            17: lambda: hospitals.restart_node("hospital-a"),
            21: hospitals.restart_hub,
            25: lambda: hospitals.restart_node("hospital-c"),
        }
    )
    out = hospitals.folder / "faults"
    run = Experiment.load(hospitals.experiment()).trainer(callbacks=[faults], out=out).fit()
    assert [event.event for event in run.events] == ["worker lost", "worker respawned"] * 3, "\n".join(
        map(str, run.events)
    )
    assert weights(out) == weights(plain)


def test_a_run_continues_without_a_node_that_is_away_and_with_it_later(hospitals: Hospitals, plain: Path) -> None:
    assert plain.is_dir()
    faults = Faults({5: hospitals.nodes["hospital-c"].kill, 30: lambda: hospitals.start("hospital-c")})
    out = hospitals.folder / "away"
    engine = {"name": "federation", "identity": str(hospitals.folder / "alice"), "nodes": list(NODES), "away_s": 2.0}
    experiment = Experiment.load(hospitals.experiment())
    run = experiment.trainer(callbacks=[faults], out=out, engine=engine, rounds=80, max_restarts=100).fit()
    assert (run.cost.rounds, run.events[0].event, run.events[-1].event) == (80, "worker lost", "worker respawned")
    assert {event.actor for event in run.events} == {"worker 2"}


def read_until(process: Process, words: str) -> str:
    """Return the output of a process up to the first line with these words."""
    read = ""
    while words not in read:
        read += process.line()
    return read


def test_a_run_pauses_below_min_nodes_and_goes_on_also_with_another_driver(hospitals: Hospitals) -> None:
    out, file = hospitals.folder / "days", hospitals.experiment(rounds=400)
    file.write_text(file.read_text().replace('nodes = "all"', f"nodes = {list(NODES)}, min_nodes = 2, away_s = 1.0"))
    hospitals.nodes["hospital-b"].kill()  # the run begins without it
    driver = Process("chimera", "train", file, "--out", out)
    read_until(driver, "round 5")
    hospitals.nodes["hospital-c"].kill()
    assert "paused" in read_until(driver, "waits for 1 more node; not connected: hospital-b, hospital-c")
    hospitals.start("hospital-b")
    assert "worker joined" in read_until(driver, "resumed")
    hospitals.nodes["hospital-b"].kill()
    read_until(driver, "waits for 1 more node")
    driver.kill()
    driver = Process("chimera", "train", file, "--out", out, "--resume")
    read_until(driver, "waits for 1 more node")
    hospitals.start("hospital-c")
    read_until(driver, "round")
    hospitals.start("hospital-b")
    assert "worker joined" in read_until(driver, "report:")
    assert driver.process.wait(LIMIT_S) == 0
    driver.kill()  # closes its output
    assert json.loads((out / "summary.json").read_text())["rounds"] == 400


def test_a_requester_that_no_policy_names_is_refused(hospitals: Hospitals) -> None:
    result = command("train", hospitals.experiment("mallory"), "--out", hospitals.folder / "mallory-run")
    assert result.exit_code == 1
    assert "the policy of this node does not allow this request" in result.stderr
    assert "Traceback" not in result.stderr
    mine = [entry for entry in hospitals.entries("hospital-a") if entry["requester"] == "mallory"]
    assert mine
    assert {entry["decision"] for entry in mine} == {"refused"}


def test_nodes_refuse_a_revoked_requester_that_the_hub_accepts_again(hospitals: Hospitals) -> None:
    join(*invite(hospitals.folder / "hub", "requester", "bob"), hospitals.folder / "bob")
    for name in NODES:
        (hospitals.folder / name / "policy.toml").write_text(BARE + POLICY.replace('"alice"', '"alice", "bob"'))
        hospitals.restart_node(name)
    assert command("hub", "revoke", "bob", "--folder", hospitals.folder / "hub").exit_code == 0
    own = fingerprint_of((hospitals.folder / "bob" / "certificate.pem").read_bytes()).hex()
    for name in NODES:
        while own not in Revocations(hospitals.folder / name)():
            threading.Event().wait(0.05)
    with closing(sqlite3.connect(hospitals.folder / "hub" / "hub.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE members SET revoked_s = NULL WHERE name = 'bob'")
    result = command("train", hospitals.experiment("bob"), "--out", hospitals.folder / "bob-run")
    assert result.exit_code == 1
    assert "the certificate of the requester is revoked" in result.stderr
    assert {entry["decision"] for entry in hospitals.entries(NODES[0]) if entry["requester"] == "bob"} == {"refused"}


def test_the_logs_verify(hospitals: Hospitals, plain: Path) -> None:
    assert plain.is_dir()
    for name in NODES:
        result = command("audit", "verify", hospitals.folder / name)
        assert result.exit_code == 0, result.output


@pytest.mark.takes("it starts a hub, a node and a driver, and computes until the revocation")
def test_a_node_that_is_revoked_while_it_computes_ends_with_a_line_and_code_1(tmp_path: Path) -> None:
    hub, _ = hub_process(tmp_path / "hub")
    write_data(tmp_path / "data")
    for role, name in (("node", "a"), ("requester", "alice")):
        join(*invite(tmp_path / "hub", role, name), tmp_path / name)  # type: ignore[arg-type]
    policy = tmp_path / "policy.toml"
    policy.write_text(BARE + POLICY)
    data = tmp_path / "data" / f"{NODES[0]}.csv"
    file = tmp_path / "experiment.toml"
    text = EXPERIMENT.format(identity=tmp_path / "alice", rounds=100_000, more="").replace("workers = 3", "workers = 1")
    text = text.replace("[16]", "[1500, 1500, 1500]").replace("local_steps = 2", "local_steps = 5")  # long calls
    file.write_text(text.replace("batch_size = 32", "batch_size = 128"))
    node = subprocess.Popen(
        [sys.executable, "-m", "chimera", "node", "serve", "--data", data, "--policy", policy, "--folder", tmp_path / "a"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert node.stdout is not None
    node.stdout.readline()
    driver = Process("chimera", "train", file, "--out", tmp_path / "out")
    try:
        read_until(driver, "round 2")
        assert command("hub", "revoke", "a", "--folder", tmp_path / "hub").exit_code == 0
        _, said = node.communicate(timeout=LIMIT_S)
    finally:
        node.kill()
        for process in (driver, hub):
            process.kill()
    assert (node.returncode, said.count("\n")) == (1, 1), said
    assert "its certificate is revoked" in said


def approving(folders: Sequence[Path]) -> threading.Thread:
    """Approve, at each node, the next run that waits."""

    def approve() -> None:
        for folder in folders:
            waiting: list[Any] = []
            for _ in range(int(LIMIT_S / 0.1)):
                if waiting := runs_of(folder, held_only=True):
                    break
                threading.Event().wait(0.1)
            assert command("node", "approve", waiting[0].number, "--folder", folder).exit_code == 0

    thread = threading.Thread(target=approve)
    thread.start()
    return thread


def test_a_private_run_waits_for_approval_and_spends_epsilon_until_the_budget_is_used_up(tmp_path: Path) -> None:
    budget = (spent(3) + spent(4)) / 2
    policy = f"""
        min_nodes_in_sum = 2
        privacy = {{ min_noise = {NOISE}, epsilon_per_requester = {budget}, epsilon_in_all = {budget} }}
    """
    made = Hospitals(tmp_path, policy)
    folders = [tmp_path / name for name in NODES]
    try:
        for number, enough in ((1, True), (2, False)):
            approval = approving(folders)
            file = made.experiment(rounds=2, more=PRIVACY)
            result = command("train", file, "--out", tmp_path / f"run-{number}")
            approval.join()
            assert (result.exit_code == 0) is enough, result.output
            assert f"waits for the administrator of {NODES[0]}" in result.output
        assert "the budget of this node does not allow another update" in result.output
        assert "Traceback" not in result.output
        for folder in folders:
            entries = made.entries(folder.name)
            epsilon = sum(entry["epsilon"] for entry in entries)
            assert spent(3) * 0.999 <= epsilon <= budget
            decisions = [entry["decision"] for entry in entries]
            assert (decisions.count("held"), decisions.count("approved")) == (2, 2)
            assert command("audit", "verify", folder).exit_code == 0
    finally:
        made.stop()
