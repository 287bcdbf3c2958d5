"""Whether a model computes on the processor, so that its weights can be shared by forked processes."""

from __future__ import annotations

import os
from functools import cache


def is_on_cpu(device: str | None) -> bool:
    """Return whether a model of torch computes on the processor.

    Parameters
    ----------
    device : the device in its table; None: an accelerator if there is one.
    """
    return device == "cpu" if device is not None else not _has_accelerator()


@cache
def _has_accelerator() -> bool:
    """Check in a forked process: the check may start a driver, which processes that are forked later could not use."""
    pid = os.fork()
    if pid == 0:
        code = 1  # unknown: nothing is shared
        try:
            import torch

            code = int(torch.accelerator.is_available())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
