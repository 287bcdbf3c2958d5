"""The two logs of a node: ``chimera_status.log`` with events, ``chimera_time.log`` with the latency of requests."""

from __future__ import annotations

import contextlib
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_STATUS_BYTES = 16 << 20
"""Maximum size of the status log; the part before is kept as ``chimera_status.log.1``. The time log is kept whole."""
_FORMATS = {"chimera_status": "%(asctime)s %(levelname)s %(message)s", "chimera_time": "%(message)s"}


def status() -> logging.Logger:
    """Return the logger of a node's events and errors."""
    return logging.getLogger("chimera_status")


def time_log() -> logging.Logger:
    """Return the logger of latencies."""
    return logging.getLogger("chimera_time")


def open_logs() -> None:
    """Make both loggers write to files in the working folder, from level INFO.

    A second call only moves the files if the working folder has changed. If a file cannot be written (for example in a
    read-only container), the node prints a message to stderr and continues without it.
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
            limit = MAX_STATUS_BYTES if name == "chimera_status" else 0
            handler = _Log(path, encoding="utf-8", maxBytes=limit, backupCount=1)
        except OSError as error:
            sys.stderr.write(f"chimera: no log is written: cannot write {path}: {error.strerror}\n")
            continue
        handler.setFormatter(logging.Formatter(line))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def close_logs() -> None:
    """Close the log files, in a process that continues without a node."""
    for name in _FORMATS:
        logger = logging.getLogger(name)
        for handler in [handler for handler in logger.handlers if isinstance(handler, _Log)]:
            logger.removeHandler(handler)
            handler.close()


def log_latency(url: str, kind: str, seconds: float) -> None:
    """Write the latency of one request.

    Parameters
    ----------
    url : address of the request.
    kind : ``"worker"`` or ``"master"``: the kind of node at the address.
    seconds : time until the answer.
    """
    time_log().info("%s %s endpoint latency = %.4f s", url, kind, seconds)


class _Log(RotatingFileHandler):
    """A file that `open_logs` opened; handlers of other code are not changed.

    If it cannot be written, for example because the disk is full, one line on stderr reports this, not one for each record.
    """

    _failing = _failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self._failed = False
        super().emit(record)
        self._failing = self._failed

    def close(self) -> None:
        """Close the file. Records that cannot be written are lost."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Report the first of several consecutive errors; stderr may be on the same full disk."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        if not self._failing:
            reason = error.strerror or str(error)
            with contextlib.suppress(OSError):
                sys.stderr.write(f"chimera: cannot write {self.baseFilename}: {reason}; its records are lost\n")
        self._failing = self._failed = True
