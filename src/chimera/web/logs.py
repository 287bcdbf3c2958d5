"""The two logs of a node: ``chimera_status.log``, what happened, and ``chimera_time.log``, how long requests took."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

_FORMATS = {"chimera_status": "%(asctime)s %(levelname)s %(message)s", "chimera_time": "%(message)s"}


def status() -> logging.Logger:
    """Return the logger of what a node does and of what goes wrong."""
    return logging.getLogger("chimera_status")


def time_log() -> logging.Logger:
    """Return the logger of latencies."""
    return logging.getLogger("chimera_time")


def open_logs() -> None:
    """Let both loggers write, from level INFO, into files of the working folder.

    A second call changes nothing, but that the files follow the working folder. Where no file can be written (a container
    that is read-only, say) the node goes on without it, and says so on stderr.
    """
    for name, line in _FORMATS.items():
        logger, path = logging.getLogger(name), Path.cwd() / f"{name}.log"
        own = [handler for handler in logger.handlers if isinstance(handler, _Log)]
        if any(handler.baseFilename == str(path) for handler in own):
            continue
        for handler in own:
            logger.removeHandler(handler)
            handler.close()
        try:
            handler = _Log(path, encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"chimera: no log is kept: {path} cannot be written: {error.strerror}\n")
            continue
        handler.setFormatter(logging.Formatter(line))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def close_logs() -> None:
    """Close the files, for who opens them in a process that goes on without a node."""
    for name in _FORMATS:
        logger = logging.getLogger(name)
        for handler in [handler for handler in logger.handlers if isinstance(handler, _Log)]:
            logger.removeHandler(handler)
            handler.close()


def log_latency(url: str, kind: str, seconds: float) -> None:
    """Write the line of one request.

    Parameters
    ----------
    url : the address that was asked.
    kind : ``"worker"`` or ``"master"``, whose address it is.
    seconds : how long the answer took.
    """
    time_log().info("%s %s endpoint latency = %.4f s", url, kind, seconds)


class _Log(logging.FileHandler):
    """A file that `open_logs` opened; handlers that others add are none of its business."""
