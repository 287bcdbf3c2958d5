"""The processor time of a program with all its processes, on Linux."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path


def processor_s() -> float:
    """Return the seconds of processor time that this process and its living descendants have taken."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(stat.parent.name)
        children[int(fields[1])].append(number)
        ticks[number] = int(fields[11]) + int(fields[12])
    found, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        found += ticks.get(number, 0)
        left += children[number]
    return found / os.sysconf("SC_CLK_TCK")
