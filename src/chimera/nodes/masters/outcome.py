"""Which workers did what they were asked for, and why the others did not: for answers, the status log and the console."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from chimera.web.logs import status


def outcome(what: str, workers: Iterable[str], failures: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what an answer says of each worker, by name: ``{what: "ok"}``, or ``{what: "failed", "why": ...}``."""
    return {name: {what: "failed", "why": failures[name]} if name in failures else {what: "ok"} for name in workers}


def say(line: str, *, well: bool = True) -> None:
    """Write a line into the status log and on stderr."""
    (status().info if well else status().warning)("%s", line)
    sys.stderr.write(f"chimera: {line}\n")


def say_fitted(workers: Iterable[str], failures: Mapping[str, str]) -> None:
    """Say which workers have fitted, and which failed and why."""
    names = list(workers)
    well = [name for name in names if name not in failures]
    say(f"fitted by {len(well)} of {len(names)} workers: {', '.join(well) or 'none'}")
    for name, why in failures.items():
        say(f"{name}: fit failed: {why}", well=False)


class Failing:
    """Says once that a worker has begun to fail, and once that it answers again; requests may come by the thousand."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failing: set[str] = set()

    def note(self, failures: Mapping[str, Any], answered: Iterable[str]) -> None:
        """Take note of one request: why workers failed, by name, and which answered."""
        for name, why in failures.items():
            line = f"{name}: {self._what} failed: {why}"
            if name in self._failing:
                status().warning("%s", line)
            else:
                say(line, well=False)
        for name in self._failing.intersection(answered):
            say(f"{name}: answers again")
        self._failing = (self._failing - set(answered)) | set(failures)
