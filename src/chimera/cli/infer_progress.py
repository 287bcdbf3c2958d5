"""The progress bar of ``chimera infer submit``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(total_bytes: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr if that is a terminal, until the context ends.

    The context's value is the function ``on_progress`` of `chimera.inference.client.Client.submit`.

    Parameters
    ----------
    total_bytes : approximate bytes of all queries; None: unknown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("submitting", total=total_bytes)

        def show(count: int, size: int) -> None:
            done = size if total_bytes is None else min(size, total_bytes)
            progress.update(task, completed=done, description=f"submitting: {count} queries, {size / 1e6:.0f} MB")

        yield show
