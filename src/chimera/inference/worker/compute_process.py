"""A worker's interface to one computing process.

Importing libraries, loading models and computing may hold the GIL for seconds, and may crash the process. A separate process
does not delay heartbeats, and a crash is noticed at once. Values are sent as `wire`, without pickle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ActorLost
from chimera.core.processes import describe_exit
from chimera.engines.http import wire
from chimera.inference.models import modules_of
from chimera.inference.preload import KINDS
from chimera.inference.worker.fork_client import ForkClient
from chimera.inference.worker.fork_protocol import MAX_BYTES, Request

_MAX_SHARED = MAX_BYTES // 2  # bytes of the table of a model that the fork server loads
_OUTPUT = 1, 2  # descriptors of stdout and stderr
_POLL_S = 0.1


class ComputeProcess:
    """A process that loads a model and computes batches, one after the other. It and its children end with this one.

    Parameters
    ----------
    forks : the fork server.
    model : table of the model.
    preload : modules to import before the model is loaded, besides those that its kind needs.
    keep_models : maximum number of models in the memory of the fork server.
    folder : working directory.
    on_end : called in a thread when the process has ended.

    Attributes
    ----------
    ended : whether the process has ended.
    load_s : seconds that the load of its model took, once it is `ready`.
    """

    def __init__(
        self,
        forks: ForkClient,
        model: Mapping[str, Any],
        *,
        preload: Sequence[str],
        keep_models: int,
        folder: Path,
        on_end: Callable[[], None],
    ) -> None:
        self.ended, self.load_s = False, 0.0
        self._model, self._on_end = dict(model), on_end
        self._pid, self._refusal = 0, ""
        self._status: int | None = None
        self._changed = threading.Condition()
        self._connection, other_end = Pipe()
        pipe_read, self._parent_pipe = os.pipe()
        wanted = request_for(self._model, preload=preload, keep_models=keep_models, folder=folder, fork=True)
        with other_end:
            self._reply = forks.request(wanted, (other_end.fileno(), pipe_read, *_OUTPUT))
        os.close(pipe_read)
        self._watcher = threading.Thread(target=self._watch, name="chimera-compute-end", daemon=True)
        self._watcher.start()

    @property
    def unanswered(self) -> bool:
        """Whether the fork server has ended, or was about to, before it answered."""
        return self.ended and not self._pid and not self._refusal and self._status is None

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped, by SIGSTOP for example; False where this is unknown."""
        return self._state() == "T"

    def ready(self) -> str:
        """Wait until the model is loaded; return why it cannot be loaded, or an empty text.

        Raises
        ------
        ActorLost : the process has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pid or self._refusal or self.ended)
        if self._refusal:
            return self._refusal
        if not self._pid:
            raise ActorLost("the computing process was not started")
        self._send(self._model)
        what, more = self._receive()
        if what == "failed":
            return str(more)
        self.load_s = float(more)
        return ""

    def compute(self, queries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Compute a batch, and yield the events of the process; it must be `ready`.

        Yields
        ------
        ``piece`` and the index of a query, a position and the text of its answer from there on; finally ``done`` and a
        dictionary with ``seconds``, ``errors``, ``error`` (the first), ``results`` (packed) and ``tokens``.

        Raises
        ------
        ActorLost : the process has ended.
        """
        self._send(list(queries))
        what = ""
        while what != "done":
            what, more = self._receive()
            yield what, more

    def wait(self) -> str:
        """Wait for the end of the process, and return how it ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended)
        return "ended" if self._status is None else describe_exit(self._status)

    def kill(self) -> None:
        """Kill the process and its children, also if they are stopped or it does not run yet."""
        with self._changed:
            if self.ended:
                return
            if self._parent_pipe >= 0:  # a process that is forked later ends at once
                os.close(self._parent_pipe)
                self._parent_pipe = -1
            if self._pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, signal.SIGKILL)
            else:
                self._reply.shutdown(2)

    def close(self) -> None:
        """Kill the process, and close the pipes once it has ended."""
        self.kill()
        self._watcher.join()
        self._connection.close()
        self._reply.close()
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)
            self._parent_pipe = -1

    def _watch(self) -> None:
        with contextlib.suppress(OSError), self._reply.makefile("rb") as answers:
            for line in answers:
                answer = msgspec.json.decode(line)
                with self._changed:
                    self._pid, self._status = answer.get("pid", self._pid), answer.get("status", self._status)
                    self._refusal = answer.get("failed", "")
                    self._changed.notify_all()
        while self._pid and self._state() not in ("", "Z"):  # the fork server has ended, and this process has not
            time.sleep(_POLL_S)
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        self._on_end()

    def _state(self) -> str:
        """Return the letter of the state of the process; empty if it is unknown or has ended."""
        try:
            return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] if self._pid else ""
        except (OSError, IndexError):
            return ""

    def _send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(wire.pack(message))
        except OSError as error:
            raise ActorLost("the computing process has ended") from error

    def _receive(self) -> tuple[str, Any]:
        try:
            what, more = wire.unpack(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise ActorLost("the computing process has ended") from error
        return what, more


def request_for(
    model: dict[str, Any], *, preload: Sequence[str], keep_models: int, folder: Path = Path(), fork: bool
) -> Request:
    """Return the request for a process with a model, or without ``fork`` to get ready for one; see `ComputeProcess`."""
    table = msgspec.json.encode(model)
    is_whole = msgspec.json.decode(table) == model  # JSON does not keep a number that is not finite
    is_shared = is_whole and len(table) <= _MAX_SHARED and model.get("kind") in KINDS
    return Request(
        [*preload, *modules_of([str(model.get("kind"))])],
        model=model if is_shared else None,
        fork=fork,
        folder=str(folder),
        environment={name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ},
        keep_models=keep_models,
    )
