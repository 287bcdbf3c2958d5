"""The display of starting workers on stderr: a progress bar for each on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class StartupDisplay:
    """Progress bars of starting workers, as a context manager.

    Parameters
    ----------
    names : names of the workers.
    console : default: stderr.
    """

    def __init__(self, names: Iterable[str], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console)
            self._tasks = {name: self._progress.add_task(name, total=None, state="starting") for name in names}

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the bars."""
        self.end()

    def echo(self, line: str) -> None:
        """Print a line, above the bars."""
        self._console.print(line, markup=False)

    def ready(self, name: str, how: str) -> None:
        """Show that a worker is ready."""
        if self._progress is None:
            self.echo(f"{name}: {how}")
        else:
            self._progress.update(self._tasks[name], total=1, completed=1, state=how)

    def end(self) -> None:
        """Stop the bars; later output is lines only."""
        if self._progress is not None:
            self._progress.stop()
