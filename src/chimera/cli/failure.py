"""Reports of failures on the terminal: one line, a traceback for errors of user code only, and an exit code."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import typer

from chimera.core.errors import (
    ActorError,
    ChimeraError,
    ConfigurationError,
    ConflictError,
    NoSpaceError,
    UnavailableError,
)
from chimera.core.printable import printable
from chimera.core.stop_signals import exit_code_of_stop, reason_of_stop

_ENVIRONMENT = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOMEM, errno.EFBIG, errno.EMFILE, errno.ENFILE),
)
"""Errors of the system that come from the disk, a path or a limit, not from code: a traceback would not help."""


def exit_code_of(error: BaseException, task: str = "the run") -> int:
    """Report an error on stderr, and return its exit code; ``task`` names the task that failed.

    A `ChimeraError` is one line. An error of user code, e.g. of a model's factory, is one line followed by its
    traceback; for an actor that is the remote one.
    """
    code, line, details = _described(error, task)
    if line:
        typer.echo(f"error: {line}", err=True)
    if details:
        typer.echo(details.rstrip(), err=True)
    return code


def _described(error: BaseException, task: str) -> tuple[int, str, str]:
    usage = getattr(error, "format_message", None)  # typer has its own copy of click, so no class can be compared
    if callable(usage):
        return 2, _one_line(usage()), ""
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        return exit_code_of_stop(error), reason_of_stop(error), ""
    if isinstance(error, ConfigurationError):
        return 2, _one_line(str(error)), ""
    remote = error if isinstance(error, ActorError) else error.__cause__
    if isinstance(remote, ActorError) and (remote is error or not isinstance(error, ChimeraError)):
        line, _, rest = str(remote).strip().partition("\n")  # actor, call and error; then the traceback
        line, message = line.rstrip(": "), "" if remote is error else _one_line(str(error))
        return 1, f"{task} failed: {line}" + (f": {message}" if message not in line else ""), rest.strip()
    if isinstance(error, ConflictError | NoSpaceError | UnavailableError):
        return 1, _one_line(str(error)), ""
    if isinstance(error, ChimeraError):
        return 1, f"{task} failed: {_one_line(str(error))}", ""
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        return 2, "the current folder no longer exists: change to another folder", ""
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        return 1, f"{task} failed: {_one_line(str(error))}", ""
    return 1, f"{task} failed: {_named(error)}", _traceback(error)


def _has_current_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _traceback(error: BaseException) -> str:
    """Return the traceback without the frames of the command, unless it has no others."""
    inner = below = error.__traceback__
    while inner is not None:
        if inner.tb_frame.f_globals.get("__name__", "").startswith("chimera.cli."):
            below = inner.tb_next or below
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, below))


def _named(error: BaseException) -> str:
    message = _one_line(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _one_line(message: str) -> str:
    """Return a message as one line without control characters, which a terminal would execute."""
    return printable(" ".join(message.split()))
