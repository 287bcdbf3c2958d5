"""The result of a run, collected from its parts at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from chimera.core.engine import Engine
from chimera.data.split import Split
from chimera.models.model import Model
from chimera.training.artifacts.cost import Cost
from chimera.training.artifacts.result import Run
from chimera.training.experiment.settings import Settings
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.privacy.guarantee import Guarantee
from chimera.training.progress.history import History
from chimera.training.run.loop import TrainingLoop


def result_of(
    loop: TrainingLoop,
    engine: Engine,
    settings: Settings,
    split: Split,
    model: Model,
    *,
    history: History,
    guarantee: Guarantee,
    location: Path | str,
    names: Mapping[str, Any],
    stopped_by: str,
    train_size: int,
) -> Run:
    """Return the result of a loop that ended; ``names`` are those of strategy, codec and engine, and the number of workers."""
    used, data = loop.counters, cast(Any, split.train)
    of_nodes = _of_nodes(loop, history) if isinstance(data, AgreedData) else {}
    return Run(
        location=location,
        model=getattr(model, "module", getattr(model, "estimator", model)),
        cost=Cost(
            **asdict(used),
            epochs=used.samples / train_size,
            virtual_time=engine.virtual_time,
            peak_flops=loop.peak_flops,
        ),
        metrics=loop.metrics,
        stopped_by=stopped_by,
        names=dict(names),
        events=history.events,
        rows=history.metrics,
        trained=model,
        staleness=dict(sorted(loop.staleness.items())),
        figures={
            **getattr(split.train, "figures", dict)(),
            **settings.strategy.figures(),
            **guarantee.figures(),
            **({"clients_evaluated_on": _client_rows(settings, data)} if settings.evaluate_clients else {}),
            **({"nodes": of_nodes} if of_nodes else {}),
            **({"kept_round": loop.kept_round} if loop.kept_round is not None else {}),
            **({"peak_mb": loop.peak_mb} if loop.peak_mb else {}),
        },
        input_scaling=getattr(split.train, "input_scaling", None),  # data sets of texts have none
        target_scaling=getattr(split.train, "target_scaling", None),
    )


def _of_nodes(loop: TrainingLoop, history: History) -> Mapping[str, Any]:
    """Return the metrics of the model that the run keeps, for each node that gives its own metrics."""
    kept = loop.kept_round
    rows = [row for row in history.metrics if "clients" in row and kept in (None, row["round"])]
    return rows[-1]["clients"] if rows else {}


def _client_rows(settings: Settings, data: Any) -> str:
    """Return on which rows clients were evaluated."""
    if isinstance(data, AgreedData):
        return "the test rows of each node that gives its own figures"
    test_share = settings.test_per_client
    return (
        "the rows on which they train" if test_share is None else f"their own test rows, {test_share:.0%} of their rows"
    )
