"""FedBN (Li et al. 2021, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization")."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.fed_avg import FedAvg
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("fed-bn")
class FedBN(FedAvg):
    """As `fed-avg`, but batch normalisation stays with each worker, whose inputs are like no other's (Li et al. 2021).

    Its parameters and statistics never travel in a round. The model that is looked at has their mean, which is nobody's: see
    `evaluate_clients` for how each worker fares with its own.

    Parameters
    ----------
    keep : in place of batch normalisation, patterns of the names of the parameters that stay, such as ``["4.*"]`` for a head
        of each one's own (FedPer: Arivazhagan et al. 2019). Statistics stay in any case.
    options : those of `FedAvg`.
    """

    by_rows = False
    private = False  # what is clipped would be the whole change
    replicas = "own"

    def __init__(self, *, keep: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._keep = keep

    def keeps(self, model: Any) -> Collection[int]:
        """Return the places of those parameters."""
        names = model.layout.names
        if self._keep is None:
            norms = set(getattr(model, "batch_norms", list)())
            found = {place for place, name in enumerate(names) if name in norms}
            missing = "fed-bn keeps batch normalisation with each worker, and the model has none: say what to keep"
        else:
            found = {i for i, name in enumerate(names) if any(fnmatchcase(name, pattern) for pattern in self._keep)}
            missing = f"keep: no parameter is called like {', '.join(self._keep)}; there are {', '.join(names)}"
        if not found:
            raise ConfigurationError(missing)
        return found
