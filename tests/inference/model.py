"""Models of the user's own code, as workers load them."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


class Echo:
    """Answers each query with itself. It obeys some: ``die`` ends the process, ``wait:FILE`` waits until a file is there.

    ``orphan`` ends the process too, and leaves a child of it that never ends.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name

    def predict(self, queries: list[Any]) -> list[str]:
        for query in queries:
            if query == "orphan" and os.fork() == 0:
                threading.Event().wait()
            if query in ("die", "orphan"):
                os._exit(9)
            if query == "fail":
                raise ValueError("this query fails")
            if str(query).startswith("wait:"):
                _wait_for(Path(query.removeprefix("wait:")))
        return [f"{self._name}{query}" for query in queries]


class Imported:
    """Answers whether the process had imported a module when this model was loaded."""

    def __init__(self) -> None:
        self._modules = frozenset(sys.modules)

    def predict(self, queries: list[Any]) -> list[bool]:
        return [query in self._modules for query in queries]


class Hog(Echo):
    """Holds Python's lock for more than a second while it is loaded, and for as long while it answers."""

    def __init__(self) -> None:
        super().__init__()
        hold_the_lock(1.2)

    def predict(self, queries: list[Any]) -> list[str]:
        hold_the_lock(1.2)
        return super().predict(queries)


class Slow(Echo):
    """Is loaded once a file is there."""

    def __init__(self, file: str) -> None:
        super().__init__()
        _wait_for(Path(file))


def broken(log: str = "/dev/null") -> Echo:
    """Fail to load; write down each attempt."""
    with Path(log).open("a") as attempts:
        attempts.write("x")
    raise RuntimeError("the weights are missing\nand a second line that is cut off")


def hold_the_lock(seconds: float) -> None:
    """Compute for about so long in one call of C, which lets no other thread of Python run."""
    few = 1 << 20
    began_s = time.thread_time()
    sum(range(few))
    sum(range(int(few * seconds / (time.thread_time() - began_s))))


def _wait_for(file: Path) -> None:
    while not file.exists():
        threading.Event().wait(0.005)
