"""``chimera train`` over a hub: nodes are processes, which train with their own data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from chimera.data.split import DATASETS
from chimera.federation.hub.invite import invite
from chimera.federation.identity.join import join
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.callback import Callback
from federation.processes import Process, hub_process
from nodes.served import write_data

pytestmark = pytest.mark.long
NODES = ("hospital-a", "hospital-b", "hospital-c")
ROWS = 130

EXPERIMENT = """
strategy = { name = "fed-avg", local_steps = 2 }

[data]
name = "breast-cancer"

[model]
name = "mlp"

[train]
optimizer = { name = "sgd", lr = 0.1 }
workers = 3
rounds = 40
batch_size = 32
log_every = 1
"""


class Hospitals:
    """A hub and three nodes as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub, self.url = hub_process(folder / "hub")
        self.nodes: dict[str, Process] = {}
        train = DATASETS.create("breast-cancer").train
        labels = np.array(train.classes)[train.targets]
        for place, name in enumerate(NODES):
            rows = slice(place * ROWS, (place + 1) * ROWS)
            write_data(folder / "data" / name, train.inputs[rows], labels[rows], list(train.features))
            join(*invite(folder / "hub", "node", name), folder / name)
        join(*invite(folder / "hub", "requester", "alice"), folder / "alice")
        for name in NODES:
            self.start(name, waits=False)
        for node in self.nodes.values():
            node.line()

    def start(self, name: str, *, waits: bool = True) -> None:
        arguments = ["--data", self.folder / "data" / name, "--folder", self.folder / name]
        self.nodes[name] = Process("chimera", "node", "serve", *arguments)
        if waits:
            self.nodes[name].line()

    def restart_hub(self) -> None:
        self.hub.kill()
        self.hub, _ = hub_process(self.folder / "hub", int(self.url.rpartition(":")[2]))

    def restart_node(self, name: str) -> None:
        self.nodes[name].kill()
        self.start(name)

    def experiment(self) -> Path:
        engine = f'engine = {{ name = "federation", nodes = "all", identity = "{self.folder / "alice"}" }}\n'
        file = self.folder / "experiment.toml"
        file.write_text(engine + EXPERIMENT)
        return file

    def stop(self) -> None:
        for process in (self.hub, *self.nodes.values()):
            process.kill()


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    made = Hospitals(tmp_path_factory.mktemp("federation"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def plain(hospitals: Hospitals) -> Path:
    """Train without faults, by the command; return the folder of the run."""
    out = hospitals.folder / "plain"
    result = CliRunner().invoke(app, ["train", str(hospitals.experiment()), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["metrics"]["accuracy"] > 0.93
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


def test_the_command_trains_three_nodes_that_dial_out(plain: Path) -> None:
    summary = json.loads((plain / "summary.json").read_text())
    assert (summary["workers"], summary["rounds"]) == (3, 40)


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
    faults = Faults({5: hospitals.nodes["hospital-c"].kill, 30: lambda: hospitals.start("hospital-c")})
    out = hospitals.folder / "away"
    engine = {"name": "federation", "identity": str(hospitals.folder / "alice"), "nodes": list(NODES), "away_s": 2.0}
    experiment = Experiment.load(hospitals.experiment())
    run = experiment.trainer(callbacks=[faults], out=out, engine=engine, rounds=80, max_restarts=100).fit()
    assert (run.cost.rounds, run.events[0].event, run.events[-1].event) == (80, "worker lost", "worker respawned")
    assert {event.actor for event in run.events} == {"worker 2"}
