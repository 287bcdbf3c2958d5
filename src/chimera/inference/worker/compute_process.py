"""The computing process of a worker, and the worker's interface to it.

Importing libraries, loading models and computing may hold the GIL for seconds, and may crash the process. In a separate process
that delays no heartbeat, and a crash is noticed at once. Values are sent as `wire`, without pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.core.processes import describe_exit
from chimera.engines.http import wire
from chimera.engines.parent_watch import exit_with_parent
from chimera.inference.worker.model_cache import ModelCache


class ComputeProcess:
    """A process that computes batches, one after the other; it ends with its parent.

    Parameters
    ----------
    keep_models : maximum number of models in memory.
    preload : modules to import before the first batch.
    folder : working directory.

    Raises
    ------
    RunError : the process did not start; its stderr has the reason.
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
            raise RunError(f"the computing process did not start, it {describe_exit(code)}: see its output") from None

    def compute(self, model: Mapping[str, Any], queries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Compute a batch, and yield the events of the process.

        Yields
        ------
        ``loading`` and a key, ``loaded`` and the keys of all models in memory, ``piece`` and the index of a query, a position
        and the text of its answer from there on; at last ``done`` and a dictionary with ``seconds``, ``errors``, ``results``
        (packed) and ``tokens``.

        Raises
        ------
        ActorLost : the process has ended.
        """
        try:
            self._connection.send_bytes(wire.pack({"model": dict(model), "queries": list(queries)}))
        except OSError as error:
            raise ActorLost("the computing process has ended") from error
        what = ""
        while what != "done":
            what, more = self._receive()
            yield what, more

    def wait(self) -> str:
        """Wait for the end of the process, and return how it ended."""
        return describe_exit(self._process.wait())

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Close the pipes, once the process has ended."""
        self._process.wait()
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _receive(self) -> tuple[str, Any]:
        try:
            what, more = wire.unpack(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ActorLost("the computing process has ended") from error
        return what, more


def main() -> None:
    """Compute batches until the worker has ended."""
    exit_with_parent()
    other_end, keep_models, preload = Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    try:
        for name in preload:
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"--preload: {name!r} cannot be imported: {error}") from error
    from chimera.inference.models import answers, load
    from chimera.inference.models.answers import tokens_of

    def notify(what: str, more: Any) -> None:
        other_end.send_bytes(wire.pack([what, more]))

    models = ModelCache(load, answers, keep_models=keep_models, notify=notify)
    notify("ready", None)
    with contextlib.suppress(EOFError):
        while True:
            asked = wire.unpack(other_end.recv_bytes())
            found, seconds = models.answer(asked["model"], asked["queries"])
            errors = sum("error" in one for one in found)
            tokens = sum(map(tokens_of, found))
            notify("done", {"seconds": seconds, "errors": errors, "results": wire.pack(found), "tokens": tokens})


if __name__ == "__main__":
    try:
        main()
    except ConfigurationError as refused:
        sys.stderr.write(f"chimera: error: {refused}\n")
        raise SystemExit(2) from None
