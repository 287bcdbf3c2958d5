"""Nodes with data of their own, served over HTTP on 127.0.0.1, for tests of runs without central data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import chimera
from chimera.data.split import DATASETS
from chimera.engines.http.hosting.host import Host
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import node_actors
from chimera.federation.data.loading import load
from chimera.federation.data.own_data import OwnData
from chimera.nodes.actors import actors_router
from chimera.web.app import create_app
from nodes.served import serving, settings

NAMES = ("north", "south", "west")
USUAL = Disclosure()
MLP = {"name": "mlp", "hidden": [8]}


def table() -> pd.DataFrame:
    """Return the table of breast cancer with its labels in the last column."""
    train = DATASETS.create("breast-cancer").train
    frame = pd.DataFrame(train.inputs, columns=list(train.features))
    return frame.assign(diagnosis=np.array(train.classes)[train.targets])


def written(folder: Path, frames: Sequence[pd.DataFrame], ending: str = "csv", **reading: Any) -> list[OwnData]:
    """Write a table for each node, and read it as the node does."""
    found = []
    for name, frame in zip(NAMES, frames, strict=False):
        path = folder / f"{name}.{ending}"
        if ending == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path)
        found.append(load(path, name, **reading))
    return found


def thirds(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return three parts of different sizes."""
    return [frame[:100], frame[100:260], frame[260:]]


@contextmanager
def nodes(
    folder: Path, data: Sequence[OwnData], disclosure: Disclosure | Sequence[Disclosure] = USUAL
) -> Iterator[list[str]]:
    """Serve a node for each of these data; yield the addresses."""
    given = [disclosure] * len(data) if isinstance(disclosure, Disclosure) else disclosure
    with ExitStack() as stack:
        urls = []
        for own, each in zip(data, given, strict=True):
            at = settings(folder, own.node)
            about = {"name": own.node, "kind": "worker"}
            app = create_app(
                title=own.node, settings=at, routers=[actors_router(Host(node_actors(own, each)))], about=about
            )
            urls.append(stack.enter_context(serving(app, at)))
        yield urls


def fit(urls: Sequence[str], model: Any = MLP, **options: Any) -> Any:
    """Train on the nodes without data of the driver."""
    given = {
        "workers": len(urls),
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch_size": 20,
        "out": Path("run"),
        **options,
    }
    return chimera.train(model, engine={"name": "http", "nodes": list(urls)}, **given)
