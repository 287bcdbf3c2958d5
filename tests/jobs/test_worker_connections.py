"""Connections of the daemon to its workers after errors: no worker stays connected without a thread, or stays refused."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from chimera.core.errors import RunError
from chimera.jobs.cluster.connection import Connection, Hello, connection_to_daemon
from chimera.jobs.daemon import worker_connections
from chimera.jobs.daemon.worker_connections import WorkerConnections
from chimera.jobs.scheduling.messages import Attempt, Reserved, ToCoordinator, ToWorker

LIMIT_S = 20.0


class Events:
    """Receives the events of connections; ``raises`` holds the names of the methods that raise."""

    def __init__(self, *raises: str) -> None:
        self.raises = set(raises)
        self.connected, self.failed = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self.disconnected: list[str] = []

    def worker_connected(self, hello: Hello) -> None:
        self._raise("worker_connected")
        self.connected.set()

    def worker_message(self, name: str, message: ToCoordinator) -> None:
        self._raise("worker_message")

    def worker_disconnected(self, name: str) -> None:
        self.disconnected.append(name)
        self._raise("worker_disconnected")

    def event_failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.failed.set()

    def _raise(self, name: str) -> None:
        if name in self.raises:
            raise RunError(f"the store is locked: {name}")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server
        server.shutdown(socket.SHUT_RDWR)  # ends the wait of the thread that accepts


def accepting(listener: socket.socket, events: Events) -> WorkerConnections:
    """Return the connections, which a thread accepts."""
    connections = WorkerConnections(listener, threading.RLock(), events)
    threading.Thread(target=connections.accept, daemon=True).start()
    return connections


def connected(listener: socket.socket) -> Connection[ToWorker]:
    """Return the worker's end of a new connection, after its first message."""
    own = connection_to_daemon(socket.create_connection(listener.getsockname(), LIMIT_S))
    own.send(Hello("w0", "host", 1))
    return own


def test_the_daemon_accepts_workers_again_after_it_had_too_many_open_files(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paused, resumed = threading.Event(), threading.Event()

    def pause(_: float) -> None:
        paused.set()
        resumed.wait(LIMIT_S)

    monkeypatch.setattr(worker_connections, "time", SimpleNamespace(sleep=pause))
    worker, events = connected(listener), Events()
    with few_files():
        connections = accepting(listener, events)
        assert paused.wait(LIMIT_S)
    resumed.set()
    assert events.connected.wait(LIMIT_S)
    assert "w0" in connections
    assert "the daemon cannot accept a worker: [Errno 24] Too many open files" in capsys.readouterr().err
    worker.close()


@contextlib.contextmanager
def few_files() -> Iterator[None]:
    """Refuse each further file of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "raises", [["worker_connected"], ["worker_message"], ["worker_message", "worker_disconnected"]]
)
def test_an_error_ends_the_connection_is_reported_and_the_worker_connects_again(
    listener: socket.socket, raises: list[str]
) -> None:
    events = Events(*raises)
    connections = accepting(listener, events)
    worker = connected(listener)
    worker.send(Reserved(Attempt("1", 1)))
    assert events.failed.wait(LIMIT_S)
    assert str(events.errors[0]) == f"the store is locked: {raises[-1]}"
    assert events.disconnected == ["w0"]
    assert "w0" not in connections
    with pytest.raises(EOFError):
        list(worker.receive())
    worker.close()
    events.raises.clear()
    events.connected.clear()
    again = connected(listener)
    assert events.connected.wait(LIMIT_S)
    again.close()


def test_an_invalid_message_ends_the_connection_without_an_error_of_the_daemon(
    listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    events = Events()
    accepting(listener, events)
    worker = connected(listener)
    worker._socket.sendall(b'{"type": "Nothing"}\n')
    with pytest.raises(EOFError):
        list(worker.receive())
    worker.close()
    assert "a worker sent an invalid message, and is disconnected" in capsys.readouterr().err
    assert not events.failed.is_set()
