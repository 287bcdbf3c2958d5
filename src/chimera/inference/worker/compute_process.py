"""The process in which a worker computes, and the worker's end of it.

Importing a library, loading a model and computing may hold Python's lock for seconds, and may end the process altogether. In a
process of its own that delays no heartbeat, and its end is seen at once. Values cross as `wire`: no pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.engines.http import wire
from chimera.engines.leash import hold
from chimera.inference.worker.model_cache import ModelCache


class ComputeProcess:
    """A process that answers batches, one after the other; it ends with this one.

    Parameters
    ----------
    keep_models : how many models stay in memory.
    preload : modules to import before the first batch.
    folder : where it runs; relative paths count from there.

    Raises
    ------
    RunError : it did not start; it has written why.
    """

    def __init__(self, *, keep_models: int, preload: Sequence[str], folder: Path) -> None:
        self._connection, other_end = Pipe()
        command = [sys.executable, "-m", __name__, str(other_end.fileno()), str(keep_models), *preload]
        with other_end:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
                command, stdin=subprocess.PIPE, pass_fds=[other_end.fileno()], cwd=folder, start_new_session=True
            )
        self.pid = self._process.pid
        try:
            self._receive()
        except ActorLost:
            code = self._process.wait()
            self.close()
            raise RunError(
                f"the process that computes did not start, it {_exit_text(code)}: see what it wrote"
            ) from None

    def compute(self, model: Mapping[str, Any], queries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Let it answer a batch, and yield what it tells.

        Yields
        ------
        ``loading`` and a key, ``loaded`` and the keys of all models in memory; at last ``done`` and a dictionary with
        ``seconds``, ``errors`` and ``results``, which are packed.

        Raises
        ------
        ActorLost : it has ended.
        """
        try:
            self._connection.send_bytes(wire.pack({"model": dict(model), "queries": list(queries)}))
        except OSError as error:
            raise ActorLost("the process that computes has ended") from error
        what = ""
        while what != "done":
            what, more = self._receive()
            yield what, more

    def wait(self) -> str:
        """Return how it ended, once it has."""
        return _exit_text(self._process.wait())

    def kill(self) -> None:
        """End it, whatever it computes."""
        self._process.kill()

    def close(self) -> None:
        """Let go of what reaches it, once it has ended."""
        self._process.wait()
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _receive(self) -> tuple[str, Any]:
        try:
            what, more = wire.unpack(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ActorLost("the process that computes has ended") from error
        return what, more


def _exit_text(code: int) -> str:
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def main() -> None:
    """Answer batches until the worker is gone."""
    hold()
    other_end, keep_models, preload = Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    try:
        for name in preload:
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"--preload: {name!r} cannot be imported: {error}") from error
    from chimera.inference.models import answers, load

    def notify(what: str, more: Any) -> None:
        other_end.send_bytes(wire.pack([what, more]))

    models = ModelCache(load, answers, keep_models=keep_models, notify=notify)
    notify("ready", None)
    with contextlib.suppress(EOFError):
        while True:
            asked = wire.unpack(other_end.recv_bytes())
            found, seconds = models.answer(asked["model"], asked["queries"])
            errors = sum("error" in one for one in found)
            notify("done", {"seconds": seconds, "errors": errors, "results": wire.pack(found)})


if __name__ == "__main__":
    try:
        main()
    except ConfigurationError as refused:
        sys.stderr.write(f"chimera: error: {refused}\n")
        raise SystemExit(2) from None
