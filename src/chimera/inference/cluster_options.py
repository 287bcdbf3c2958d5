"""The options with which a cluster for inference starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chimera.inference.preload import AUTO
from chimera.inference.worker.worker import KEEP_MODELS


@dataclass(frozen=True)
class ClusterOptions:
    """The options of a cluster for inference.

    Attributes
    ----------
    workers : number of workers.
    max_workers : upper bound of their number; the coordinator changes it between ``workers`` and this. Default: it is fixed.
    standbys : number of standby coordinators; has no effect with voters.
    policy : name of the policy by which jobs share the workers.
    fair_by : unit of their shares, ``queries`` or ``tokens``.
    preload : modules that are imported before workers join, separated by commas; `AUTO`: those of models of Hugging Face, while
        workers start.
    ray : address of a Ray cluster; the workers are actors there. Default: local processes.
    voters : addresses of the three voters that replicate the journal. A coordinator runs for each voter of this machine.
    keep_days : days after its end until a job and its results are deleted; default: never.
    keep_models : maximum number of models in a worker's memory.
    gpus : number of Ray GPUs per worker; may be a fraction.
    code : whether to accept models that run code of their own: of kind 'factory', or trusted ones.
    devices : GPUs over which local workers are spread, as in ``CUDA_VISIBLE_DEVICES``; default: workers see all.
    fetch_models : whether workers of other machines may fetch the folders of models that they lack.
    host, port : the fixed address that leads to the coordinator; port 0 is any free port; None: no such address.
    """

    workers: int
    standbys: int
    policy: str = "fair-share"
    fair_by: str = "queries"
    preload: str = AUTO
    ray: str | None = None
    voters: Sequence[str] = ()
    keep_days: float | None = None
    keep_models: int = KEEP_MODELS
    gpus: float = 0.0
    code: bool = True
    host: str = "127.0.0.1"
    port: int | None = None
    max_workers: int | None = None
    devices: Sequence[str] = ()
    fetch_models: bool = False
