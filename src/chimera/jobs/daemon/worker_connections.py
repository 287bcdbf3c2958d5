"""Connections of the daemon to its workers: a thread for each receives messages and passes them to the daemon."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Container, Iterator, Set
from typing import Any, Protocol

import msgspec

from chimera.jobs.cluster.connection import Connection, Hello, connection_to_worker
from chimera.jobs.cluster.log import log
from chimera.jobs.scheduling.messages import ToCoordinator, ToWorker

_RETRY_S = 1.0  # until the system may have files or threads again


class WorkerEvents(Protocol):
    """Receives the events of connections. Calls hold the lock of `WorkerConnections`."""

    def worker_connected(self, hello: Hello) -> None:
        """Handle a new connection of a worker."""

    def worker_message(self, name: str, message: ToCoordinator) -> None:
        """Handle a message of a worker."""

    def worker_disconnected(self, name: str) -> None:
        """Handle the end of a worker's connection."""

    def event_failed(self, error: Exception) -> None:
        """Handle an error of one of the other methods. This call does not hold the lock."""


class WorkerConnections:
    """The connected workers of one daemon.

    Parameters
    ----------
    listener : listening socket for workers.
    lock : held while an event is handled.
    events : receives the events.

    Attributes
    ----------
    workers : the first message of each connected worker, by name.
    silent : workers that did not answer in time and have sent nothing since, such as stopped processes.
    """

    def __init__(self, listener: socket.socket, lock: threading.RLock, events: WorkerEvents) -> None:
        self.workers: dict[str, Hello] = {}
        self.silent: set[str] = set()
        self._listener, self._lock, self._events = listener, lock, events
        self._connections: dict[str, Connection[Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._connections

    def free(self, busy: Set[str]) -> list[str]:
        """Return the connected workers that are not ``busy``; silent ones last, so that they do not hold up the queue."""
        return sorted(self.workers.keys() - busy, key=lambda name: (name in self.silent, name))

    def state(self, name: str, busy: Container[str]) -> str:
        """Return the state of a connected worker: ``busy``, ``silent`` or ``free``."""
        return "busy" if name in busy else "silent" if name in self.silent else "free"

    def send(self, name: str, message: ToWorker) -> None:
        """Send a message to a worker. Without a connection, or if it breaks, the message is dropped."""
        connection = self._connections.get(name)
        if connection is not None:
            with contextlib.suppress(OSError):  # `_receive` handles the lost connection
                connection.send(message)

    def accept(self) -> None:
        """Accept workers until the listener is closed. Errors, such as too many open files, are logged; it is tried again."""
        while self._listener.fileno() >= 0:
            try:
                self._accept_one()
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                log(f"the daemon cannot accept a worker: {error}; it is tried again")
                time.sleep(_RETRY_S)

    def _accept_one(self) -> None:
        own, _ = self._listener.accept()
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(own.close)
            connection = connection_to_worker(own)
            threading.Thread(target=self._serve, args=(connection,), name="chimera worker", daemon=True).start()
            if_it_fails.pop_all()

    def _serve(self, connection: Connection[Hello | ToCoordinator]) -> None:
        try:
            self._receive(connection)
        except Exception as error:  # the state of the daemon may be inconsistent
            self._events.event_failed(error)

    def _receive(self, connection: Connection[Hello | ToCoordinator]) -> None:
        """Handle the messages of a worker until its connection ends."""
        name = ""
        try:
            for message in _messages(connection):
                with self._lock:
                    if isinstance(message, Hello):
                        name = message.name
                        self._connections[name], self.workers[name] = connection, message
                        self._events.worker_connected(message)
                    else:
                        self._events.worker_message(name, message)
                    self.silent.discard(name)
        finally:
            connection.close()
            with self._lock:
                if self._connections.get(name) is connection:
                    del self._connections[name], self.workers[name]
                    self._events.worker_disconnected(name)


def _messages(connection: Connection[Hello | ToCoordinator]) -> Iterator[Hello | ToCoordinator]:
    """Yield the messages of a worker until its connection ends, or until one is invalid."""
    while True:
        try:
            yield from connection.receive()
        except EOFError:
            return
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log(f"a worker sent an invalid message, and is disconnected: {error}")
            return
