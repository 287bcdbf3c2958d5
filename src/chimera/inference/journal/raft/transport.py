"""The transport of pysyncobj's messages between voters: msgpack with a fixed schema, without pickle.

Messages use authenticated connections (`connection`), so that no message of an unauthenticated peer is decoded.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chimera.inference.journal.raft.connection import HANDSHAKE_S, Connection, parse_address
from chimera.inference.journal.raft.library import POLL_EVENT_TYPE, Node, Transport

_RETRY_S = 0.1
_MAX_UNAUTHENTICATED = 64
_MAX_NAME_BYTES = 300
_MAX_AHEAD_BYTES = 4 << 20


class _Message(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The schema of all messages. It excludes the parts of a split entry, which pysyncobj would unpickle."""

    type: Literal[
        "request_vote", "response_vote", "append_entries", "next_node_idx", "apply_command", "apply_command_response",
        "ask_index", "index",
    ]  # fmt: skip
    term: int | UnsetType = UNSET
    last_log_index: int | UnsetType = UNSET
    last_log_term: int | UnsetType = UNSET
    commit_index: int | UnsetType = UNSET
    entries: list[tuple[bytes, int, int]] | UnsetType = UNSET
    prevLogIdx: int | UnsetType | None = UNSET  # noqa: N815 - pysyncobj calls it so, as the next
    prevLogTerm: int | UnsetType | None = UNSET  # noqa: N815
    serialized: tuple[bytes, bool, bool] | UnsetType | None = UNSET
    next_node_idx: int | UnsetType = UNSET
    reset: bool | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    command: bytes | UnsetType = UNSET
    request_id: int | UnsetType = UNSET
    log_idx: int | UnsetType = UNSET
    log_term: int | UnsetType = UNSET
    error: int | UnsetType = UNSET


_DECODER = msgspec.msgpack.Decoder(_Message)


class _Unauthenticated:
    """Connections that are not authenticated yet. If there are too many, the oldest is closed.

    If new ones were refused instead, a few slow connections could block the other voters.
    """

    def __init__(self) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def add(self, raw: socket.socket) -> None:
        """Add a connection, and close the oldest if there are too many."""
        with self._lock:
            self._open[raw] = None
            oldest = next(iter(self._open)) if len(self._open) > _MAX_UNAUTHENTICATED else None
            if oldest is not None:
                del self._open[oldest]
        if oldest is not None:
            _shut_down(oldest)

    def remove(self, raw: socket.socket) -> None:
        """Remove a connection that is authenticated now, or has ended."""
        with self._lock:
            self._open.pop(raw, None)

    def close(self) -> None:
        """End all."""
        with self._lock:
            ended = list(self._open)
            self._open.clear()
        for raw in ended:
            _shut_down(raw)


def _shut_down(raw: socket.socket) -> None:
    """Shut a socket down, so that the thread that reads from it ends and closes it."""
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)


class RaftTransport(Transport):  # type: ignore[misc] # of a library without types
    """Connects the voters and followers.

    Parameters
    ----------
    node : pysyncobj's object; its callbacks are called in its thread.
    own : this voter; None for a follower.
    others : the other voters.
    listener : socket at which they connect to this one (`listen`).
    token : token of the cluster.

    Attributes
    ----------
    disconnected_s : time of the last end of a connection, by the monotonic clock.
    """

    def __init__(
        self, node: Any, own: Node | None, others: Iterable[Node], *, listener: socket.socket | None, token: str
    ) -> None:
        super().__init__(node, own, others)
        self._node, self._own, self._token = node, own, token.encode()
        self._others = {other.id: other for other in others}
        self._connections: dict[str, Connection] = {}
        self._followers: dict[str, Node] = {}
        self._events: deque[tuple[str, str, Any]] = deque()
        self._closed, self.disconnected_s = threading.Event(), float("-inf")
        self._unauthenticated = _Unauthenticated()
        self._index_requests: dict[int, tuple[threading.Event, list[int]]] = {}
        self._request_numbers = itertools.count()
        self._wake_out, self._wake_in = os.pipe()
        for end in (self._wake_out, self._wake_in):
            os.set_blocking(end, False)
        node._poller.subscribe(self._wake_out, self._drain_pipe, POLL_EVENT_TYPE.READ)
        node.addOnTickCallback(self._dispatch_events)
        self._listener = listener
        if listener is not None:
            threading.Thread(target=self._listen, args=(listener,), name="chimera-raft", daemon=True).start()
        for other in self._others:
            if own is None or own.id > other:  # of two voters, one calls the other
                threading.Thread(target=self._connect_to, args=(other,), name="chimera-raft-call", daemon=True).start()

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        """Send a message to a voter or follower; return whether it is connected."""
        connection = self._connections.get(node.id)
        if connection is None:
            return False
        connection.send(msgspec.msgpack.encode(message))
        return True

    def is_behind(self, node: Node) -> bool:
        """Return whether many bytes are queued for a voter or follower."""
        connection = self._connections.get(node.id)
        return connection is not None and connection.queued_bytes > _MAX_AHEAD_BYTES

    def commit_index_of(self, leader: Node, timeout_s: float) -> int | None:
        """Request the leader's commit index; return None if it does not answer. Any thread may call it."""
        number, answered = next(self._request_numbers), (threading.Event(), list[int]())
        self._index_requests[number] = answered
        try:
            if self.send(leader, {"type": "ask_index", "request_id": number}):
                answered[0].wait(timeout_s)
            return answered[1][0] if answered[1] else None
        finally:
            del self._index_requests[number]

    def destroy(self) -> None:
        """End all connections."""
        self._closed.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        self._unauthenticated.close()
        for connection in list(self._connections.values()):
            connection.close()

    def _listen(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                raw, _ = listener.accept()
            except OSError:
                if self._closed.wait(_RETRY_S):  # otherwise this process has no room for a connection now
                    return
                continue
            self._unauthenticated.add(raw)
            threading.Thread(target=self._accept, args=(raw,), name="chimera-raft-answer", daemon=True).start()

    def _accept(self, raw: socket.socket) -> None:
        connection = None
        try:
            connection = Connection(raw, self._token, client=False)
            name = connection.receive(_MAX_NAME_BYTES).decode()
            connection.end_handshake()
        except (OSError, UnicodeDecodeError):
            (connection or raw).close()  # `Connection.close` ends the writer too
            return
        finally:
            self._unauthenticated.remove(raw)
        self._read_messages(name, connection)

    def _connect_to(self, other: str) -> None:
        me = f"follower {secrets.token_hex(8)}" if self._own is None else self._own.id
        while not self._closed.wait(_RETRY_S):
            try:
                raw = socket.create_connection(parse_address(other), HANDSHAKE_S)
            except OSError:
                continue
            try:
                connection = Connection(raw, self._token, client=True)
                connection.end_handshake()
            except OSError:
                raw.close()
                continue
            connection.send(me.encode())
            self._read_messages(other, connection)

    def _read_messages(self, peer: str, connection: Connection) -> None:
        """Read messages until the connection ends."""
        self._enqueue("connected", peer, connection)
        try:
            while True:
                self._enqueue("message", peer, _DECODER.decode(connection.receive()))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            pass
        connection.close()
        self._enqueue("disconnected", peer, connection)

    def _enqueue(self, what: str, peer: str, more: Any) -> None:
        self._events.append((what, peer, more))
        with contextlib.suppress(OSError):  # the pipe is full, so the poller will wake anyway
            os.write(self._wake_in, b".")

    def _drain_pipe(self, descriptor: int, event: int) -> None:  # noqa: ARG002 - the poller's signature
        with contextlib.suppress(BlockingIOError):
            while os.read(descriptor, 4096):
                pass
        self._dispatch_events()

    def _dispatch_events(self) -> None:
        """Pass queued events to pysyncobj, in its thread."""
        while self._events:
            what, peer, more = self._events.popleft()
            if what == "connected":
                self._add_peer(peer, more)
            elif what == "disconnected":
                if self._connections.get(peer) is more:
                    self._remove_peer(peer)
            elif peer in self._connections:
                self._handle_message(peer, more)

    def _add_peer(self, peer: str, connection: Connection) -> None:
        if self._closed.is_set():
            connection.close()
            return
        if peer in self._connections:
            self._connections[peer].close()
            self._remove_peer(peer)
        self._connections[peer] = connection
        if peer in self._others:
            self._onNodeConnected(self._others[peer])
        else:
            self._followers[peer] = Node(peer)
            self._onReadonlyNodeConnected(self._followers[peer])

    def _remove_peer(self, peer: str) -> None:
        del self._connections[peer]
        self.disconnected_s = time.monotonic()
        for waiting, _ in list(self._index_requests.values()):  # the peer may be the leader, which will not answer
            waiting.set()
        if peer in self._others:
            self._onNodeDisconnected(self._others[peer])
        else:
            self._onReadonlyNodeDisconnected(self._followers.pop(peer))

    def _handle_message(self, peer: str, message: _Message) -> None:
        node = self._others.get(peer) or self._followers[peer]
        if message.type == "ask_index":
            committed = self._node.committed()
            if committed is not None:
                self.send(node, {"type": "index", "request_id": message.request_id, "commit_index": committed})
        elif message.type == "index":
            asked = self._index_requests.get(message.request_id) if isinstance(message.request_id, int) else None
            if asked is not None and isinstance(message.commit_index, int):
                asked[1].append(message.commit_index)
                asked[0].set()
        elif peer in self._others or message.type in ("apply_command", "next_node_idx"):
            given = msgspec.structs.asdict(message)
            self._onMessageReceived(node, {name: value for name, value in given.items() if value is not UNSET})
