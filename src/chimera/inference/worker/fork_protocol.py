"""The requests to a fork server, and its answers.

A request is a message with open files: the socket for its answers, and the connection, stdin, stdout and stderr of the
computing process. The answers are lines of JSON: ``{"pid": N}`` once the process runs, ``{"status": N}`` at its end,
``{"ready": true}``, ``{"failed": "why"}``, or ``{"failures": {"module": "why"}}``. A status without an earlier process ID
is that of the process that imported the modules, or loaded the model.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

MAX_BYTES = 1 << 16
"""Maximum size of a request."""
READY = b"ready"
SOCKET_TYPE = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
"""The type of a request socket."""


class Request(Struct, frozen=True):
    """A request.

    Attributes
    ----------
    modules : modules that must be imported first.
    strict : whether a worker waits for the imports, and receives their errors. Otherwise the load of the model fails.
    model : table of a model whose weights are shared; None: the computing process loads its model itself.
    fork : whether to fork a computing process; else only get ready for that.
    folder : its working directory.
    environment : variables to set in it.
    keep_models : maximum number of models in the memory of the tree.
    """

    modules: list[str]
    strict: bool = False
    model: dict[str, Any] | None = None
    fork: bool = True
    folder: str = "."
    environment: dict[str, str] = {}
    keep_models: int = 1


def sockets() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection to a fork server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, SOCKET_TYPE)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_BYTES)
    return ours, theirs


def request(requests: socket.socket, wanted: Request, files: Sequence[int] = ()) -> socket.socket:
    """Send a request to a fork server, and return the socket of its answers; none arrives if the fork server ends.

    Parameters
    ----------
    files : descriptors of the connection, stdin, stdout and stderr of the computing process; empty if it forks none.
    """
    ours, theirs = socket.socketpair()
    with theirs, contextlib.suppress(OSError):
        socket.send_fds(requests, [msgspec.json.encode(wanted)], [theirs.fileno(), *files])
    return ours


def received(request_socket: socket.socket) -> tuple[Request | None, bytes, list[int]]:
    """Receive a request, its body and its descriptors; None if it is invalid, and an empty body if no more will come.

    Raises
    ------
    BlockingIOError : the socket does not block, and there is none.
    """
    try:
        body, descriptors, *_ = socket.recv_fds(request_socket, MAX_BYTES, 5)
    except ConnectionError:  # the other end is closed, and its owner had not read that this process is ready
        return None, b"", []
    with contextlib.suppress(msgspec.MsgspecError):
        wanted = msgspec.json.decode(body, type=Request)
        if len(descriptors) == (5 if wanted.fork else 1):
            return wanted, body, descriptors
    for number in descriptors:
        os.close(number)
    return None, body, []


@dataclass
class Child:
    """A process of the tree that this one has forked.

    Attributes
    ----------
    waiting : the sockets of requests that wait until it is ready; None once it is.
    """

    pid: int
    request_socket: socket.socket
    waiting: list[socket.socket] | None = field(default_factory=list)

    def close(self) -> None:
        """Send it no more requests."""
        self.request_socket.close()
        self.is_ready()

    def has_reported(self) -> bool:
        """Return whether the child has sent the message that it is ready. Call it when the socket can be read."""
        try:
            return bool(self.request_socket.recv(len(READY), socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def is_ready(self) -> None:
        """Note that it answers the requests that wait."""
        for each in self.waiting or ():
            each.close()
        self.waiting = None


def pass_on(child: Child, body: bytes, reply: socket.socket, files: list[int], *, awaited: bool) -> None:
    """Pass a request on to a child. ``awaited``: a worker waits for the answer, and receives the status if the child dies."""
    with contextlib.suppress(OSError):  # the child has just died: the worker repeats the request
        socket.send_fds(child.request_socket, [body], [reply.fileno(), *files])
    if child.waiting is None or not awaited:
        reply.close()
    else:
        child.waiting.append(reply)


def send_reply(reply: socket.socket, **answer: Any) -> None:
    """Send an answer to a worker."""
    with contextlib.suppress(OSError):  # the worker has died
        reply.sendall(msgspec.json.encode(answer) + b"\n")
