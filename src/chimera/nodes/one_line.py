"""Errors of a user's program that are printed as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from chimera.core.errors import ChimeraError


def print_in_one_line(error: ChimeraError) -> None:
    """Print the message of this error without a traceback if the program does not catch it."""
    before: Callable[..., Any] = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        if value is error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - in place of the traceback
        else:
            before(kind, value, traceback)

    sys.excepthook = hook
