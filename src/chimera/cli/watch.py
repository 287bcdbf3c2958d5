"""``chimera watch``: follow runs in a browser."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.cluster import HERE, Where
from chimera.core.private import write

if TYPE_CHECKING:
    from chimera.web.live.server import LivePage


def watch(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Follow these runs: folders, numbers of jobs of --folder, or URLs of an object store; at most 6.",
        ),
    ],
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, metavar="PORT", help="Serve at this port of 127.0.0.1; 0 is any free one."
        ),
    ] = 0,
    folder: Where = HERE,
) -> None:
    """Serve a page that shows runs while they run, side by side if there are several, until Ctrl-C."""
    from chimera.cli.watched import followed
    from chimera.web.live.server import LivePage

    with contextlib.ExitStack() as stack:
        page = LivePage([stack.enter_context(followed(run, folder)) for run in runs], port)
        ended = stack.enter_context(_stop_signals())  # before the address is printed: a signal may follow at once
        stack.enter_context(served(page))
        typer.echo("Ctrl-C ends it", err=True)
        ended.wait()


@contextlib.contextmanager
def served(page: LivePage) -> Iterator[None]:
    """Serve a page within the context, and print its address: with the token on a terminal, else in a private file."""
    with contextlib.ExitStack() as stack:
        stack.callback(page.close)
        if sys.stderr.isatty():
            where = f"the page: {page.link} (the address contains the token: keep it secret)"
        else:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chimera-page-"))) / "address"
            write(file, f"{page.link}\n".encode())
            where = f"the page: {page.address} (its address with the token is in {file})"
        page.start()
        typer.echo(where, err=True)
        yield


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set within the context."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
