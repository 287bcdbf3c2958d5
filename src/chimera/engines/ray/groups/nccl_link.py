"""The connection between the members of a group that have a GPU each: nccl of torch.distributed."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_TIMEOUT = timedelta(days=365)  # a slow member is not an error; deaths are checked separately
_POLL_INTERVAL_S = 0.0001
_CPU = b"cpu"


class NcclLink:
    """The connection between GPUs. Vectors are on the host (decisions/0008), so each collective copies in and out.

    Parameters
    ----------
    store : entries that all members can read.
    rank, size : rank of this member, and number of members.

    Attributes
    ----------
    group : torch's process group.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        import torch

        # By default a thread of torch checks for errors, and ends this process when another member dies.
        # With this option there is no such thread, and `wait` raises the error.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        nccl = c10d().ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = NO_TIMEOUT
        self._device = torch.device("cuda", torch.cuda.current_device())
        self.group = nccl(_tcp_store(store, rank), rank, size, options)

    def tensor(self, flat: NDArray[Any]) -> Any:
        """Return a copy on this actor's GPU."""
        import torch

        return torch.from_numpy(flat).to(self._device)

    def bring(self, tensor: Any, flat: NDArray[np.float32]) -> None:
        """Copy from the GPU."""
        np.copyto(flat, tensor.cpu().numpy())

    def done(self, work: Any, within_s: float) -> bool:
        """Poll: nccl's own wait closes the connections at its time limit."""
        deadline_s = time.monotonic() + within_s
        while not work.is_completed():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_INTERVAL_S)
        work.wait()
        return True

    def end(self) -> None:
        """Abort: a kernel that waits for a dead member would never end."""
        self.group.abort()


def has_gpus_of_their_own(devices: Sequence[bytes]) -> bool:
    """Return whether each member has a GPU that no other member has: nccl accepts one rank per GPU."""
    return _CPU not in devices and len(set(devices)) == len(devices)


def own_gpu() -> bytes:
    """Return an identifier of the GPU that Ray assigned to this actor, if torch can use it with nccl."""
    import ray

    if not ray.get_gpu_ids():
        return _CPU
    import torch

    if not torch.cuda.is_available() or not hasattr(c10d(), "ProcessGroupNCCL"):
        return _CPU
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid).encode()


def _tcp_store(store: Any, rank: int) -> Any:
    """Return a store of torch, which nccl needs. The first member serves it and writes its address to ``store``."""
    from ray.util import get_node_ip_address

    tcp_store: Any = importlib.import_module("torch.distributed").TCPStore
    if rank == 0:
        host = get_node_ip_address()
        served = tcp_store(host, 0, is_master=True, wait_for_workers=False)
        store.set("store", f"{host} {served.port}")
        return served
    host, port = store.get("store").decode().split()
    return tcp_store(host, int(port), is_master=False, wait_for_workers=False)


def c10d() -> Any:
    """Return torch's collectives; in an actor only, since torch is slow to import."""
    return importlib.import_module("torch.distributed.distributed_c10d")
