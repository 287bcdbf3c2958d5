"""The figures and models that a node may give, as its owner has set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from chimera.core.errors import ConfigurationError
from chimera.training.nodes_data.description import GivenMetrics


@dataclass(frozen=True)
class Disclosure:
    """The figures that a node gives to drivers, and its models.

    Attributes
    ----------
    metrics : the metrics of its test rows: ``none``; ``merged``, sums for the metrics of all nodes; ``own``, also its own
        figures.
    named : names of the metrics that it gives, such as ``loss``; default: all.
    rows : whether it gives the number of its training rows.
    statistics : whether it gives mean and deviation of its columns.
    min_rows : it gives no figure of fewer rows than this.
    models : folders with models by the name that drivers use.
    max_parameters : number of parameters of the largest model that it makes.

    Raises
    ------
    ConfigurationError : a value is not allowed.
    """

    metrics: GivenMetrics = "merged"
    named: tuple[str, ...] | None = None
    rows: bool = True
    statistics: bool = False
    min_rows: int = 10
    models: dict[str, Path] = field(default_factory=dict)
    max_parameters: int = 1 << 30

    def __post_init__(self) -> None:
        if self.metrics not in get_args(GivenMetrics):
            raise ConfigurationError(
                f"metrics must be one of {', '.join(get_args(GivenMetrics))}, not {self.metrics!r}"
            )
        for name in ("min_rows", "max_parameters"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
