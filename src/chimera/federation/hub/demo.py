"""A federation on one machine: a hub, three nodes with a part of a data set each, and a requester."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import make_folder, opener
from chimera.core.private import write as write_privately
from chimera.federation.hub.invite import invite
from chimera.federation.identity.join import join

NODES = ("hospital-a", "hospital-b", "hospital-c")
REQUESTER = "alice"
EXPERIMENT = "experiment.toml"
_STOP_S = 10.0
_RUN = (
    "from chimera.engines.parent_watch import exit_with_parent; exit_with_parent(); "
    "from chimera.cli.main import main; main()"
)
_FILE = """# Train on three nodes that keep their data: chimera train {folder}/experiment.toml

[engine]
name = "federation"
nodes = {nodes}
identity = "{requester}"

[strategy]
name = "fed-avg"
local_steps = 5

[model]
name = "mlp"

[train]
workers = 3
rounds = 40
batch_size = 32
optimizer = {{ name = "sgd", lr = 0.1 }}
"""
POLICY = "policy.toml"
_POLICY = """# What runs at this node, and what leaves it: see docs/how-to/federation-policy.md.
# This policy is for public data: updates leave without noise. `chimera node serve` without --policy prints a stricter one.
approval = "automatic"
secure_aggregation = "optional"

[requesters]
names = ["{requester}"]

[strategies.fed-avg]
local_steps = {{ most = 20 }}

[models.mlp]
hidden = "any"

[privacy]
min_noise = 0
epsilon_per_requester = inf
epsilon_in_all = inf

[release]
metrics = ["loss", "accuracy"]
"""


@contextlib.contextmanager
def demo(folder: Path, port: int = 0) -> Iterator[str]:
    """Run a hub and three nodes as processes until the block ends; yield the hub's address.

    The processes end with this one, also if it is killed.

    Parameters
    ----------
    folder : a new folder for the identities, the data of each node, logs, and an experiment.
    port : port of the hub; 0: any free one.

    Raises
    ------
    ConfigurationError : the folder is not empty.
    RunError : a process did not start; the message has the last line of its log.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: choose a new folder")
    make_folder(folder)
    write_data(folder / "data")
    started: list[subprocess.Popen[str]] = []
    try:
        hub = _start(folder, "hub", ["hub", "up", "--folder", folder / "hub", "--port", port])
        started.append(hub)
        url = _line(hub, folder / "hub.log").split()[4].rstrip(";")
        for role, names in (("node", NODES), ("requester", (REQUESTER,))):
            for name in names:
                join(*invite(folder / "hub", role, name), folder / name)  # type: ignore[arg-type]
        nodes = [_start(folder, name, _serving(folder, name)) for name in NODES]
        started += nodes
        for name, node in zip(NODES, nodes, strict=True):
            _line(node, folder / f"{name}.log")
        text = _FILE.format(folder=shlex.quote(str(folder)), nodes=json.dumps(NODES), requester=REQUESTER)
        write_privately(folder / EXPERIMENT, text.encode())
        yield url
    finally:
        _stop(started)


def write_data(folder: Path) -> None:
    """Write a file with a third of the training rows of ``breast-cancer`` for each node, and the diagnosis as last column."""
    import numpy as np
    import pandas as pd

    from chimera.data.split import DATASETS

    train: Any = DATASETS.create("breast-cancer").train
    rows = pd.DataFrame(train.inputs, columns=list(train.features))
    rows = rows.assign(diagnosis=np.array(train.classes)[train.targets])
    make_folder(folder)
    for place, name in enumerate(NODES):
        rows[place :: len(NODES)].to_csv(folder / f"{name}.csv", index=False)


def policy_for(requester: str) -> str:
    """Return a policy by which a node trains for a requester on public data."""
    return _POLICY.format(requester=requester)


def _serving(folder: Path, name: str) -> list[Any]:
    """Write the policy of a node, and return the command that serves it."""
    policy = folder / name / POLICY
    write_privately(policy, policy_for(REQUESTER).encode())
    data = folder / "data" / f"{name}.csv"
    return ["node", "serve", "--data", data, "--policy", policy, "--folder", folder / name]


def _start(folder: Path, name: str, arguments: Sequence[Any]) -> subprocess.Popen[str]:
    with open(folder / f"{name}.log", "wb", opener=opener) as log:
        return subprocess.Popen(  # noqa: S603 - this Python and this program, no shell
            [sys.executable, "-u", "-c", _RUN, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _line(process: subprocess.Popen[str], log: Path) -> str:
    """Wait for the line that a process prints when it is ready."""
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RunError(f"a process of the demo has ended: {lines[-1] if lines else 'it printed nothing'}")
    return line


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
