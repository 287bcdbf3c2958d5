"""Examples of the pages of plug-ins: tables of an experiment file, or a command."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.codecs.codec import CODECS
from chimera_reference.options import Option

_SHOWN = 2
"""Number of options that an example sets besides the required ones."""

ABOUT = {
    "strategies": (
        "Strategies",
        "A strategy decides what workers and servers send to one another. The table `[strategy]` selects one.",
    ),
    "topologies": (
        "Topologies",
        "A topology states the neighbours of each worker of a decentralised strategy, whose option `topology` selects one.",
    ),
    "aggregations": (
        "Aggregation rules",
        "An aggregation rule combines the vectors of workers at a server. The option `aggregation` of a strategy selects one.",
    ),
    "codecs": (
        "Codecs",
        "A codec encodes messages of workers. `[codec]` selects one, and has [keys for all codecs](#experiment-file-codec).",
    ),
    "engines": ("Engines", "An engine runs workers and servers. The table `[engine]`, or `--engine`, selects one."),
    "availability": (
        "Models of availability",
        "A model of availability states when the clients of a simulated run are on. `[engine.availability]` selects one.",
    ),
    "devices": (
        "Models of devices",
        "A model of devices draws the speed of each client of a simulated run. `[engine.devices]` selects one.",
    ),
    "networks": (
        "Topologies of simulated networks",
        "A network topology states which links a message of a simulated run crosses. `[engine.network]` selects one.",
    ),
    "partitions": (
        "Partitions",
        "A partition divides the training samples among the workers. The table `[partition]` selects one.",
    ),
    "models": ("Models", "A model is created for the data of a run. The table `[model]` selects one."),
    "datasets": ("Data sets", "A data set has training and test samples. The table `[data]` selects one."),
    "policies": (
        "Policies of inference",
        "A policy decides which job a free worker of an inference cluster serves next. `chimera infer up` selects one.",
    ),
    "trackers": (
        "Trackers",
        "A tracker records a run in another tool. The key `track` of `[train]`, or `--track`, selects one or several.",
    ),
}
"""Title and first sentences of each page."""

_REQUIRED: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("topologies", "file"): {"path": "graph.csv"},
    ("topologies", "time-varying"): {"topologies": ["ring", "complete"]},
    ("aggregations", "combination"): {"shares": [0.5, 0.25, 0.25]},
    ("engines", "federation"): {"hub": "https://hub.example:8443", "identity": "identity", "nodes": "all"},
    ("engines", "http"): {"nodes": ["http://127.0.0.1:5001", "http://127.0.0.1:5002"]},
    ("availability", "markov"): {"mean_on_s": 600.0, "mean_off_s": 60.0},
    ("networks", "matrix"): {"path": "latencies.csv"},
    ("networks", "racks"): {"hosts": 4},
    ("networks", "two-level"): {"edges": 2},
    ("models", "folder"): {"folder": "runs/first"},
    ("datasets", "csv"): {"path": "houses.csv"},
    ("datasets", "huggingface"): {"path": "stanfordnlp/imdb"},
    ("datasets", "image-folder"): {"path": "images"},
    ("datasets", "instructions"): {"path": "chats.jsonl", "tokenizer": "tokenizer.json"},
    ("datasets", "npz"): {"path": "arrays.npz"},
    ("datasets", "parquet"): {"path": "houses.parquet"},
    ("datasets", "text"): {"path": "corpus.txt"},
    ("datasets", "text-blocks"): {"path": "corpus.txt"},
}
"""Values of required options."""


def example_of(family: str, name: str, options: Sequence[Option]) -> Mapping[str, Any] | str:
    """Return tables of an experiment file that select a plug-in, with some of its options; or a command."""
    chosen: dict[str, Any] = {"name": name, **_REQUIRED.get((family, name), {})}
    for option in [each for each in options if each.name not in chosen and _shown(each.default)][:_SHOWN]:
        chosen[option.name] = tomllib.loads(f"it = {option.default}")["it"]
    return _PLACES[family](chosen)


def _shown(default: str) -> bool:
    return default not in ("required", "not set", "that of the run", "[]", "{}") and _readable(default)


def _readable(default: str) -> bool:
    try:
        tomllib.loads(f"it = {default}")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _simulated(table: str, key: str) -> Callable[[dict[str, Any]], Mapping[str, Any]]:
    return lambda chosen: {"engine": {"name": "simulated", table: {key: chosen}}}


def _codec(chosen: dict[str, Any]) -> Mapping[str, Any]:
    """Return the table of a codec, which is that of the downlink if a message depends on those before."""
    chained = getattr(CODECS.find(chosen["name"]).factory, "chained", False)
    return {"codec": {"name": "identity", "downlink": chosen} if chained else chosen}


_PLACES: Mapping[str, Callable[[dict[str, Any]], Mapping[str, Any] | str]] = {
    "strategies": lambda chosen: {"strategy": chosen},
    "topologies": lambda chosen: {"strategy": {"name": "d-psgd", "topology": chosen}},
    "aggregations": lambda chosen: {"strategy": {"name": "fed-avg", "aggregation": chosen}},
    "codecs": _codec,
    "engines": lambda chosen: {"engine": chosen},
    "availability": _simulated("availability", "model"),
    "devices": _simulated("devices", "model"),
    "networks": _simulated("network", "topology"),
    "partitions": lambda chosen: {"partition": chosen},
    "models": lambda chosen: {"model": chosen},
    "datasets": lambda chosen: {"data": chosen},
    "policies": lambda chosen: f"chimera infer up --policy {chosen['name']}",
    "trackers": lambda chosen: {"train": {"track": [chosen]}},
}
