"""The page of the experiment file: each table with its keys, their types, defaults and effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chimera.codecs.codec import Codecs
from chimera.core.engine import Resources
from chimera.core.signatures import parameters_of
from chimera.data.loader import Loading
from chimera.engines.simulated.models.availability import Availability
from chimera.engines.simulated.models.compute import CodecCost, Compute
from chimera.engines.simulated.models.devices import Devices
from chimera.engines.simulated.models.network import Network, NodeNetwork
from chimera.strategies.hierarchy import Hierarchy
from chimera.training.experiment.experiment import PLUGINS, TABLES, Experiment
from chimera.training.experiment.toml import dump_toml
from chimera.training.fault_tolerance.injection import Fault
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.optimizers.schedule import Schedule
from chimera.training.privacy.settings import Privacy
from chimera.training.trainer import Trainer
from chimera_reference.api_names import links_of
from chimera_reference.docstrings import docstring_of
from chimera_reference.markup import blocks, fenced, heading
from chimera_reference.options import Option, option_table, options_of_plugin, options_of_settings

_FAMILIES = {
    "data": "datasets", "model": "models", "strategy": "strategies", "codec": "codecs", "partition": "partitions",
    "engine": "engines",
}  # fmt: skip
_ONLY_IN_CODE = ("callbacks", "out", "resume", "progress")
_BY_THE_RUN = ("steps", "reduction")
"""Fields of a schedule that no file sets."""


@dataclass(frozen=True)
class Nested:
    """A table inside another one.

    Attributes
    ----------
    path : its name between brackets.
    about : a sentence on what it sets.
    kind : the class that has its keys.
    """

    path: str
    about: str
    kind: type


NESTED = (
    Nested("train.loader", "Reading of data sets whose samples are read one by one.", Loading),
    Nested(
        "train.optimizer.schedule", "The learning rate over the steps of a run; a name of a decay is enough.", Schedule
    ),
    Nested("train.privacy", "Protection of the updates of clients.", Privacy),
    Nested("train.worker_resources", "Resources of each worker.", Resources),
    Nested("train.server_resources", "Resources of each server, which uses no GPU.", Resources),
    Nested("strategy.hierarchical", "Edge servers of the strategies that derive from `fed-avg`.", Hierarchy),
    Nested("engine.network", "The network of the engine `simulated`; [topologies](networks.md).", Network),
    Nested('engine.network.nodes."worker 0"', "The connection of one actor of the engine `simulated`.", NodeNetwork),
    Nested("engine.compute", "The duration of calls on the engine `simulated`.", Compute),
    Nested('engine.compute.codecs."top-k"', "The duration of one codec on the engine `simulated`.", CodecCost),
    Nested("engine.devices", "The devices of clients on the engine `simulated`; [models](devices.md).", Devices),
    Nested(
        "engine.availability",
        "The hours of clients on the engine `simulated`; [models](availability.md).",
        Availability,
    ),
)
"""All tables inside others that a class defines."""

_SELECTS = {
    "data": "the data set; not needed if nodes of the engine have data",
    "model": "the model",
    "strategy": "the strategy; default `parameter-server`",
    "codec": "the codec of the uplink; default `identity`",
    "partition": "the partition; default `iid`",
    "engine": "the engine; default `local`",
}
_CODEC = (
    Option("error_feedback", "boolean", "that of the codec", "add what a message leaves out to the next one", Codecs),
    Option("lossless", "boolean", "false", "compress messages without loss, by the codec ``lossless``", Codecs),
    Option("downlink", "string or table", '"identity"', "codec of the weights that workers receive", Codecs),
)
_OPTIMIZER = {"name": "that of the model or the strategy", "schedule": '"constant"'}
_INTRODUCTION = """\
An experiment file describes a run in TOML. `chimera train` and `chimera compare` read it. This page lists its tables and keys.

Six tables select a plug-in by `name`; their other keys are options of the plug-in. [All plug-ins](plug-ins.md) are on one
page. A name may also be `package.module:attribute` or `file.py:attribute`, for code of your own. `[train]` has the settings of
training.

An unknown table, key or name is an error that names the known ones. Relative paths start at the folder of the file.

Types are those of TOML. A *number* is an integer or a float. *Not set* means that a key has no value unless the file sets it.
"""
_EXAMPLE = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [64]},
    "train": {"workers": 4, "epochs": 3, "optimizer": {"name": "sgd", "lr": 0.1, "schedule": {"decay": "cosine"}}},
    "strategy": {"name": "fed-avg", "local_steps": 5},
    "codec": {"name": "top-k", "ratio": 0.01, "error_feedback": True},
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "engine": {"name": "simulated"},
}


def example() -> Experiment:
    """Return the experiment of the page's example."""
    return Experiment(_EXAMPLE, "the example of the page")


def train_options() -> list[Option]:
    """Return the keys of the table ``[train]``."""
    return options_of_plugin(
        Trainer, [name for name in parameters_of(Trainer) if name not in (*PLUGINS, *_ONLY_IN_CODE)]
    )


def nested_options(table: Nested) -> list[Option]:
    """Return the keys of a table inside another one."""
    return [option for option in options_of_settings(table.kind) if option.name not in _BY_THE_RUN]


def pages() -> dict[str, str]:
    """Return the text of the page, by file name."""
    lines = [
        heading(1, "The experiment file", anchor="reference-experiment-file"),
        _INTRODUCTION,
        fenced("toml", dump_toml(_EXAMPLE)),
    ]
    for name in TABLES:
        lines += _train() if name == "train" else _plugin(name)
        lines += [line for table in NESTED if table.path.startswith(f"{name}.") for line in _nested(table)]
    return {"experiment-file.md": "\n".join(lines)}


def _plugin(name: str) -> Sequence[str]:
    family = _FAMILIES[name]
    lines = [
        heading(2, f"`[{name}]`", anchor=f"experiment-file-{name}"),
        f"`name` selects {_SELECTS[name]}. The [page of {family}]({family}.md) lists names and options.\n",
    ]
    if name == "strategy":
        lines.append(
            "`[strategy.topology]` of a decentralised strategy selects a [topology](topologies.md), and "
            "`[strategy.aggregation]` of a strategy with servers an [aggregation rule](aggregations.md).\n"
        )
    if name == "codec":
        lines += ["These keys are for each codec:\n", option_table(_CODEC, links_of, first="key")]
        lines += ["`[codec.downlink]` has the same keys, except `downlink`.\n"]
    return lines


def _train() -> Sequence[str]:
    faults = docstring_of(Fault.read)
    optimizer = options_of_settings(OptimizerSettings, ("name", "schedule"))
    optimizer = [dataclasses.replace(each, default=_OPTIMIZER[each.name]) for each in optimizer]
    return [
        heading(2, "`[train]`", anchor="experiment-file-train"),
        "The keys are the keyword arguments of {py:obj}`Trainer <chimera.Trainer>`.\n",
        option_table(train_options(), links_of, first="key"),
        heading(3, "`[train.optimizer]`", anchor="experiment-file-train-optimizer"),
        "Its other keys are arguments of the optimizer's class, such as `lr`.\n",
        option_table(optimizer, links_of, first="key"),
        heading(3, "`faults` of `[train]`", anchor="experiment-file-train-faults"),
        f"`faults` is an array of sentences. {blocks(faults.text, links_of(Fault.read))}\n",
    ]


def _nested(table: Nested) -> Sequence[Any]:
    anchor = "".join(each if each.isalnum() else "-" for each in table.path).strip("-")
    return [
        heading(3, f"`[{table.path}]`", anchor=f"experiment-file-{anchor}"),
        f"{table.about}\n",
        option_table(nested_options(table), links_of, first="key"),
    ]
