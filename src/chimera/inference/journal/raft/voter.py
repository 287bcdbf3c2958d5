"""A voter of pysyncobj's, mended where it has no hooks: it loads no pickles, forgets nothing, sends no more than is heard."""

from __future__ import annotations

import functools
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from chimera.inference.journal.raft.library import Node, SyncObj, SyncObjConf
from chimera.inference.journal.raft.state import RaftState, Reply
from chimera.inference.journal.raft.transport import RaftTransport

REGULAR = b"\x00"
"""pysyncobj's mark of a command that is the state's; its own elections leave others in the log."""

PIECE_BYTES = 1 << 20
"""A command is about so large at most."""

_LOG_BYTES = 64 << 20
"""A voter's log is at most so large, or as the copy of its state before it; pysyncobj counts entries, and breaks at 4 GiB."""

_REPEAT_S = 0.5
_TIMES = {
    "appendEntriesPeriod": 0.06,  # the leader's heartbeat
    "raftMinTimeout": 0.25,
    "raftMaxTimeout": 0.5,
    "leaderFallbackTimeout": 1.0,
    "connectionTimeout": 5.0,
}
# Who hears nothing for an election's timeout calls one, and what is heard is whole messages: each must arrive sooner than that.
_SIZES = {
    "appendEntriesBatchSizeBytes": PIECE_BYTES + (64 << 10),  # more than a command has: it would be cut up and pickled
    "appendEntriesUseBatch": False,
    "logCompactionMinEntries": 20_000,
    "logCompactionMinTime": 1800,
    "logCompactionBatchSize": 1 << 20,
}


def settings(**more: Any) -> SyncObjConf:
    """Return pysyncobj's settings for a voter."""
    return SyncObjConf(**_TIMES, **_SIZES, commandsWaitLeader=False, tcp_keepalive=None, **more)


class _ReadyNodes(set[Node]):
    """Who is connected, but for those who are behind: pysyncobj looks here before it sends one more message of many.

    Parameters
    ----------
    is_behind : whether much is still on its way to one.
    """

    def __init__(self, is_behind: Callable[[Node], bool]) -> None:
        super().__init__()
        self._is_behind = is_behind

    def __contains__(self, node: object) -> bool:
        return super().__contains__(node) and not self._is_behind(node)


class Voter(SyncObj):  # type: ignore[misc] # of a library without types
    """pysyncobj's object, overridden where its ways would do harm; the tests hold each of them.

    - Its state is changed by plain bytes, where its own would be by pickles of calls.
    - Entries that the log has already stay there, where it would cut them off and append them anew: who dies in between has
      lost what it had promised to keep.
    - Who lacks much is sent it no faster than it hears it, and once, where each of its answers to heartbeats of before would
      let all of it be sent again.
    - A copy of the state of which a part may be lost is begun anew, where it would go on with the rest.

    Parameters
    ----------
    state : what the commands change.
    own : the address of this voter; None for one that has no vote.
    others : those of the other voters.
    conf : its `settings`.
    listener : where it is reached.
    token : of the cluster.
    """

    transport: RaftTransport
    _restart_snapshot: Callable[[Node], None]
    """Forget how much of a copy somebody was sent."""

    def __init__(
        self,
        state: RaftState,
        own: str | None,
        others: Sequence[str],
        conf: SyncObjConf,
        listener: socket.socket | None,
        token: str,
    ) -> None:
        self._state = state
        self._logged_bytes, self._max_logged_bytes = 0, _LOG_BYTES
        self._last_requests: dict[Node, tuple[int, int, float]] = {}
        connected = functools.partial(self._make_transport, listener=listener, token=token)
        me = None if own is None else Node(own)
        super().__init__(me, [Node(other) for other in others], conf, transportClass=connected)

    def snapshot_written(self, size: int) -> None:
        """Take note that a copy of the state takes the place of the log; the next one comes when that is as large as this."""
        self._logged_bytes, self._max_logged_bytes = 0, max(size, _LOG_BYTES)

    def _make_transport(self, *args: Any, **kwargs: Any) -> RaftTransport:
        self.transport = RaftTransport(*args, **kwargs)
        self._SyncObj__connectedNodes = _ReadyNodes(self.transport.is_behind)
        copies = self._SyncObj__serializer
        # pysyncobj gives a copy up for who is not connected, and takes those who are behind for such
        self._restart_snapshot, copies.cancelTransmisstion = copies.cancelTransmisstion, lambda _: None
        return self.transport

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802 - this is its name there, as are the next
        for node in self.otherNodes | self.readonlyNodes:
            self._reset_peer(node)
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        self._reset_peer(node)
        super()._SyncObj__onNodeDisconnected(node)

    def _SyncObj__onReadonlyNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        self._reset_peer(node)
        super()._SyncObj__onReadonlyNodeDisconnected(node)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Reply | None:  # noqa: N802
        self._logged_bytes += len(command)
        if self._logged_bytes > self._max_logged_bytes:
            self.forceLogCompaction()
        return self._state.apply(command[1:]) if command[:1] == REGULAR else None

    def _SyncObj__onMessageReceived(self, node: Node, message: dict[str, Any]) -> None:  # noqa: N802
        if message.get("entries"):
            message = self._without_known_entries(message)
        elif message.get("reset") and self._requested_recently(node, message["next_node_idx"]):
            message = {**message, "reset": False}
        super()._SyncObj__onMessageReceived(node, message)
        if message.get("serialized"):  # the leader would hear of the last part alone, and think nobody there until then
            self._SyncObj__sendNextNodeIdx(node)
        lacks_more = self._SyncObj__raftNextIndex.get(node, 0) <= self._SyncObj__getCurrentLogIndex()
        if message["type"] == "next_node_idx" and lacks_more:
            self._SyncObj__newAppendEntriesTime = 0.0  # it has heard something: go on, and wait for no heartbeat

    def _reset_peer(self, node: Node) -> None:
        """Begin anew with somebody: what was on its way may be lost, and followers come back by another name."""
        self._restart_snapshot(node)
        self._last_requests.pop(node, None)

    def _without_known_entries(self, message: dict[str, Any]) -> dict[str, Any]:
        entries = message["entries"]
        ours = self._SyncObj__getEntries(message["prevLogIdx"], len(entries) + 1)
        if not ours or ours[0][2] != message["prevLogTerm"]:
            return message
        pairs = itertools.takewhile(lambda pair: pair[0][1:] == pair[1][1:], zip(ours[1:], entries, strict=False))
        known = sum(1 for _ in pairs)
        _, index, term = entries[known - 1] if known else ours[0]
        return {**message, "prevLogIdx": index, "prevLogTerm": term, "entries": entries[known:]}

    def _requested_recently(self, node: Node, index: int) -> bool:
        """Whether a voter has just asked, in this term, for what comes from the same index on."""
        asked, now_s = (self.raftCurrentTerm, index), time.monotonic()
        *last, last_s = self._last_requests.get(node, (0, 0, 0.0))
        if asked == tuple(last) and now_s - last_s < _REPEAT_S:
            return True
        self._last_requests[node] = (*asked, now_s)
        return False
