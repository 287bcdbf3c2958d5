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
    """`fed-avg` in which batch normalisation stays with each worker, for inputs that differ between workers (Li et al. 2021).

    Parameters and statistics of batch normalisation are not sent in a round. The evaluated model has their mean, which no
    worker uses; `evaluate_clients` evaluates each worker with its own.

    Parameters
    ----------
    keep : patterns of names of the parameters that stay with each worker, such as ``["4.*"]`` for a personal head (FedPer:
        Arivazhagan et al. 2019). Default: those of batch normalisation. Its statistics stay in any case.
    options : options of `FedAvg`.
    """

    by_rows = False
    private = False  # clipping applies to the whole change
    replicas = "own"

    def __init__(self, *, keep: Sequence[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._keep = keep

    def keeps(self, model: Any) -> Collection[int]:
        """Return the places of the parameters that stay with each worker."""
        super().keeps(model)
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
