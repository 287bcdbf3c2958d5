"""`parse_times_file`, at the place where programs that read a node's latencies look for it."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from chimera.core.errors import DataError

_LINE = re.compile(r"(?:.*\s)?(\S+) (worker|master) endpoint latency = (\d+(?:\.\d+)?(?:e[+-]?\d+)?) s", re.ASCII)


def parse_times_file(path: str | PathLike[str]) -> dict[str, dict[str, list[float]]]:
    """Return the latencies of a ``chimera_time.log``: ``{"worker": {url: [seconds]}, "master": {url: [seconds]}}``.

    The seconds of each URL are in the order of the file. Lines without a latency are ignored.

    Raises
    ------
    DataError : the file cannot be read.
    """
    times: dict[str, dict[str, list[float]]] = {"worker": {}, "master": {}}
    try:
        with Path(path).open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                if found := _LINE.fullmatch(line.rstrip("\r\n")):
                    url, kind, seconds = found.groups()
                    times[kind].setdefault(url, []).append(float(seconds))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(
            f"{path} cannot be read: {reason}; a node writes its chimera_time.log into the folder where it is started"
        ) from error
    return times
