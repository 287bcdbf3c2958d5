"""The outcome of a call for each worker: in answers, in the status log and on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from chimera.web.logs import status


def outcome(what: str, workers: Iterable[str], failures: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the outcome of each worker by name, for an answer: ``{what: "ok"}`` or ``{what: "failed", "why": ...}``."""
    return {name: {what: "failed", "why": failures[name]} if name in failures else {what: "ok"} for name in workers}


def report(line: str, *, ok: bool = True) -> None:
    """Write a line to the status log, as a warning unless ``ok``, and to stderr."""
    (status().info if ok else status().warning)("%s", line)
    sys.stderr.write(f"chimera: {line}\n")


def report_fit(workers: Iterable[str], failures: Mapping[str, str]) -> None:
    """Report which workers were fitted. Failures are reported when they occur."""
    names = list(workers)
    fitted = [name for name in names if name not in failures]
    report(f"fitted by {len(fitted)} of {len(names)} workers: {', '.join(fitted) or 'none'}")


class FailureReporter:
    """Reports on stderr only the first failure of a worker and its recovery, because there may be thousands of requests.

    Parameters
    ----------
    what : name of the call, such as ``predict``.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failing: set[str] = set()

    def note(self, failures: Mapping[str, Any], answered: Iterable[str]) -> None:
        """Record one request: the reasons of failures by name of the worker, and the workers that answered."""
        for name, reason in failures.items():
            line = f"{name}: {self._what} failed: {reason}"
            if name in self._failing:
                status().warning("%s", line)
            else:
                report(line, ok=False)
        for name in self._failing.intersection(answered):
            report(f"{name}: answers again")
        self._failing = (self._failing - set(answered)) | set(failures)
