"""Checks of the TOML blocks of a page: each is an experiment, a part of one, or another file of Chimera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chimera.core.toml import read_toml
from chimera.training.experiment.experiment import TABLES, Experiment
from chimera.training.experiment.toml import dump_toml
from pages_kit import Block

BASE: dict[str, Any] = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "train": {"workers": 2}}
"""What a part of an experiment is completed by."""


def check_toml(block: Block) -> None:
    """Check the file that a block shows."""
    table = read_toml(block.text)
    if "project" in table:
        check_entry_points(table["project"]["entry-points"])
    elif "nodes" in table:
        check_nodes(table["nodes"])
    elif "kind" in table:
        check_inference_model(block, table)
    elif "worker" in table:
        check_hosts(block)
    elif "requesters" in table:
        check_policy(block)
    else:
        assert table.keys() <= set(TABLES), f"no file of Chimera has all of these keys: {', '.join(table)}"
        check_experiment(block, table)


def check_experiment(block: Block, table: dict[str, Any]) -> None:
    """Check the settings of an experiment, complete it where it is a part of one, and read its data if it names them."""
    path = Path(block.file or "experiment.toml")
    path.write_text(block.text, encoding="utf-8")
    whole = {**BASE, **table}
    if "codec" in table and not isinstance(table["codec"], str):
        whole["codec"] = {"name": "identity", **table["codec"]}
    if "name" not in whole["data"]:  # options of the nodes' data
        whole = {"engine": {"name": "http", "nodes": ["http://127.0.0.1:5001"]}, **whole, "train": {"workers": 1}}
    experiment = Experiment.load(path) if whole == table else Experiment.load(completed(path, whole))
    experiment = experiment.with_settings(" ".join(block.comments.get("executed with", [])).split())
    trainer = experiment.trainer(progress=False, out="checked")
    trainer.check_optimizers()
    if "data" in table:
        trainer.inspect_data()


def completed(path: Path, whole: dict[str, Any]) -> Path:
    """Write a completed experiment beside the file of the block, and return its path."""
    path = path.with_name(f"completed-{path.name}")
    path.write_text(dump_toml(whole), encoding="utf-8")
    return path


def check_entry_points(groups: dict[str, Any]) -> None:
    """Check that these groups of entry points are those of families of plug-ins."""
    from chimera.cli.list import FAMILIES

    assert {group.removeprefix("chimera.") for group in groups} <= FAMILIES.keys()


def check_nodes(table: dict[str, Any]) -> None:
    """Check the settings of REST nodes."""
    from chimera.nodes.settings import read_settings
    from chimera.nodes.settings_file import MASTER_KEYS

    read_settings(**{key: value for key, value in table.items() if key not in MASTER_KEYS})


def check_inference_model(block: Block, table: dict[str, Any]) -> None:
    """Check the table of a model that answers queries, with other values where the comment of the block names them."""
    from chimera.inference import models

    others = dict(word.split("=") for words in block.comments.get("executed with", []) for word in words.split())
    models.check({key: value for key, value in (table | others).items() if value})


def check_hosts(block: Block) -> None:
    """Check the file of the machines of a cluster."""
    from chimera.jobs.hosts import Hosts

    Path("hosts.toml").write_text(block.text, encoding="utf-8")
    Hosts.load(Path("hosts.toml"))


def check_policy(block: Block) -> None:
    """Check the policy of a node of a federation."""
    from chimera.federation.policy.policy import Policy

    Path("policy.toml").write_text(block.text, encoding="utf-8")
    Policy.load(Path("policy.toml"))
