"""Comparison of clocks between machines, for engines whose actors are on several."""

from __future__ import annotations

import os
import time
from pathlib import Path


def clock_of_this_machine() -> tuple[str, float]:
    """Return an identifier of this machine since its start, and the offset of the time of day from its monotonic clock.

    Two processes on one machine share the monotonic clock; between machines the times of day must agree. The environment
    variable CHIMERA_MACHINE sets another identifier, for tests of several machines on one.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else os.uname().nodename
    machine = os.environ.get("CHIMERA_MACHINE", machine)
    return machine, time.time() - time.monotonic()
