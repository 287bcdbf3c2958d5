"""The computing process of a worker, and the worker's interface to it.

Importing libraries, loading models and computing may hold the GIL for seconds, and may crash the process. In a separate process
that delays no heartbeat, and a crash is noticed at once. Values are sent as `wire`, without pickle.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A process that computes batches, one after the other; it ends with its parent, and its own children end with it.

    Parameters
    ----------
    keep_models : maximum number of models in memory.
    preload : modules to import before the first batch.
    folder : working directory.
    on_end : called in a thread when the process has ended.

    Attributes
    ----------
    killed : whether `kill` was called.
    """

    def __init__(self, *, keep_models: int, preload: Sequence[str], folder: Path, on_end: Callable[[], None]) -> None:
        self.killed = False
        self._on_end = on_end
        self._connection, other_end = Pipe()
        command = [sys.executable, "-m", __name__, str(other_end.fileno()), str(keep_models), *preload]
        with other_end:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, a module of the project, no shell
                command, stdin=subprocess.PIPE, pass_fds=[other_end.fileno()], cwd=folder, start_new_session=True
            )
        self.pid = self._process.pid
        self._sending = threading.Lock()
        threading.Thread(target=self._watch, name="chimera-compute-end", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped, by SIGSTOP for example; False where this is unknown."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state == "T"

    def ready(self) -> None:
        """Wait until the process can compute.

        Raises
        ------
        RunError : the process did not start; its stderr has the reason.
        """
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
        and the text of its answer from there on; at last ``done`` and a dictionary with ``seconds``, ``errors``, ``error`` (the
        first), ``results`` (packed) and ``tokens``.

        Raises
        ------
        ActorLost : the process has ended.
        """
        try:
            self._send({"model": dict(model), "queries": list(queries)})
        except OSError as error:
            raise ActorLost("the computing process has ended") from error
        what = ""
        while what != "done":
            what, more = self._receive()
            yield what, more

    def prepare(self, kinds: Sequence[str]) -> None:
        """Let the process import what models of these kinds need, in a thread. A process that has ended ignores it."""
        with contextlib.suppress(OSError):
            self._send({"kinds": list(kinds)})

    def wait(self) -> str:
        """Wait for the end of the process, and return how it ended."""
        return describe_exit(self._process.wait())

    def kill(self) -> None:
        """Kill the process and its children, also if they are stopped."""
        self.killed = True
        if not self.ended:
            self._kill_group()

    def close(self) -> None:
        """Close the pipes, once the process has ended."""
        self._process.wait()
        self._connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _watch(self) -> None:
        self._process.wait()
        self._kill_group()  # a child of the process may hold the other end of the connection
        self._on_end()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._connection.send_bytes(wire.pack(message))

    def _receive(self) -> tuple[str, Any]:
        try:
            what, more = wire.unpack(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ActorLost("the computing process has ended") from error
        return what, more


class Imports:
    """Imports modules in a thread, while batches are computed.

    A model is loaded only after that: two threads that import the same libraries may find a module half imported.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def add(self, modules: Sequence[str]) -> None:
        """Import modules after those of earlier calls."""
        missing = [name for name in modules if name not in sys.modules]
        if missing:
            self._thread = threading.Thread(
                target=self._run, args=(missing, self._thread), name="chimera-import", daemon=True
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until all are imported."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, modules: Sequence[str], earlier: threading.Thread | None) -> None:
        if earlier is not None:
            earlier.join()
        for name in modules:
            with contextlib.suppress(Exception):  # any library may raise anything; the model's load has the error
                importlib.import_module(name)


def main() -> None:
    """Compute batches until the worker has ended."""
    exit_with_parent()
    other_end, keep_models, preload = Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    try:
        for name in preload:
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"--preload: {name!r} cannot be imported: {error}") from error
    from chimera.inference.models import answers, load, modules_of
    from chimera.inference.models.answers import tokens_of

    def notify(what: str, more: Any) -> None:
        other_end.send_bytes(wire.pack([what, more]))

    imports = Imports()

    def load_after_imports(model: Mapping[str, Any]) -> Any:
        imports.wait()
        return load(model)

    models = ModelCache(load_after_imports, answers, keep_models=keep_models, notify=notify)
    notify("ready", None)
    with contextlib.suppress(EOFError):
        while True:
            asked = wire.unpack(other_end.recv_bytes())
            if "kinds" in asked:
                imports.add(modules_of(asked["kinds"]))
                continue
            found, seconds = models.answer(asked["model"], asked["queries"])
            errors = [one["error"] for one in found if "error" in one]
            done = {"seconds": seconds, "errors": len(errors), "error": errors[0] if errors else ""}
            notify("done", {**done, "results": wire.pack(found), "tokens": sum(map(tokens_of, found))})


if __name__ == "__main__":
    try:
        main()
    except ConfigurationError as refused:
        sys.stderr.write(f"chimera: error: {refused}\n")
        raise SystemExit(2) from None
