"""What a person sees while workers come up: a bar for each on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Waiting:
    """A context in which the bars are shown, until `end`."""

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
        """Take the bars away."""
        self.end()

    def say(self, line: str) -> None:
        """Show a line, above the bars."""
        self._console.print(line, markup=False)

    def ready(self, name: str, how: str) -> None:
        """Show that a worker answers."""
        if self._progress is None:
            self.say(f"{name}: {how}")
        else:
            self._progress.update(self._tasks[name], total=1, completed=1, state=how)

    def end(self) -> None:
        """Leave the bars as they are; only lines come after this."""
        if self._progress is not None:
            self._progress.stop()
