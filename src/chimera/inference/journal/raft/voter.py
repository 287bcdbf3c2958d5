"""pysyncobj's voter with overridden private methods: no pickles, no loss of log entries, and flow control."""

from __future__ import annotations

import functools
import itertools
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from chimera.core.errors import DataError
from chimera.inference.journal.raft.library import Node, SyncObj, SyncObjConf
from chimera.inference.journal.raft.snapshot import Entry
from chimera.inference.journal.raft.state import RaftState, Reply
from chimera.inference.journal.raft.transport import RaftTransport

REGULAR = b"\x00"
"""pysyncobj's type byte of a command of the application; the log also contains commands of other types."""

PIECE_BYTES = 1 << 20
"""Approximate maximum size of a command."""

_LOG_BYTES = 64 << 20
"""Minimum size at which a log is replaced by a snapshot; pysyncobj counts entries only, and fails at 4 GiB."""

_REPEAT_S = 0.5
_ELECTION_SPACING_S = 0.1  # longer than it takes to be elected
_TIMES = {
    "appendEntriesPeriod": 0.06,  # the leader's heartbeat
    "raftMinTimeout": 0.25,
    "raftMaxTimeout": 0.5,
    "leaderFallbackTimeout": 1.0,
    "connectionTimeout": 5.0,
}
# A voter that receives no whole message for the election timeout starts an election, so each message must arrive sooner.
_SIZES = {
    "appendEntriesBatchSizeBytes": PIECE_BYTES
    + (64 << 10),  # larger than a command, which would otherwise be split and pickled
    "appendEntriesUseBatch": False,
    "logCompactionMinEntries": 20_000,
    "logCompactionMinTime": 1800,
    "logCompactionBatchSize": 1 << 20,
}


def settings(**more: Any) -> SyncObjConf:
    """Return pysyncobj's settings for a voter."""
    return SyncObjConf(**_TIMES, **_SIZES, commandsWaitLeader=False, tcp_keepalive=None, **more)


class _ReadyNodes(set[Node]):
    """The connected nodes, except those that are behind. pysyncobj checks this set before each of a series of messages.

    Parameters
    ----------
    is_behind : returns whether many bytes are queued for a node.
    """

    def __init__(self, is_behind: Callable[[Node], bool]) -> None:
        super().__init__()
        self._is_behind = is_behind

    def __contains__(self, node: object) -> bool:
        return super().__contains__(node) and not self._is_behind(node)


class Voter(SyncObj):  # type: ignore[misc] # of a library without types
    """pysyncobj's object with some private methods overridden. Tests cover each change.

    - Commands are plain bytes; pysyncobj's are pickles of calls.
    - Entries that the log has already are kept. pysyncobj removes and appends them again: a voter that dies in between loses
      entries that it has acknowledged.
    - A node that is behind gets entries only as fast as it receives them, and once. pysyncobj sends all of them again for each
      answer to an earlier heartbeat.
    - A voter starts an election as soon as its connection to the leader has ended. pysyncobj waits for the election timeout.
    - The transfer of a snapshot restarts if a part may be lost. pysyncobj continues with the rest.
    - Entries after the snapshot are kept if the voter was killed before it cut its log. pysyncobj deletes them.

    Parameters
    ----------
    state : the state that commands change.
    own : address of this voter; None for a follower.
    others : addresses of the other voters.
    conf : the `settings`.
    listener : socket at which other nodes connect.
    token : token of the cluster.
    snapshot : the last two entries of the log in the voter's snapshot, the last one first; None without a snapshot.

    Raises
    ------
    DataError : the entries before the log are not in the snapshot.
    """

    transport: RaftTransport
    _restart_snapshot: Callable[[Node], None]
    """Reset the progress of a snapshot's transfer to a node."""

    def __init__(
        self,
        state: RaftState,
        own: str | None,
        others: Sequence[str],
        conf: SyncObjConf,
        listener: socket.socket | None,
        token: str,
        snapshot: tuple[Entry, Entry] | None,
    ) -> None:
        self._state, self._snapshot = state, snapshot
        self._logged_bytes, self._max_logged_bytes = 0, _LOG_BYTES
        self._last_requests: dict[Node, tuple[int, int, float]] = {}
        connected = functools.partial(self._make_transport, listener=listener, token=token)
        me = None if own is None else Node(own)
        super().__init__(me, [Node(other) for other in others], conf, transportClass=connected)

    def snapshot_written(self, size: int) -> None:
        """Note that a snapshot has replaced the log; the next one is made when the log is as large as this snapshot."""
        self._logged_bytes, self._max_logged_bytes = 0, max(size, _LOG_BYTES)

    def committed(self) -> int | None:
        """Return the commit index as leader; None until an entry of this term is committed (Ongaro 2014, section 6.4).

        Before that, entries of earlier terms may be committed that this voter does not yet know to be.
        """
        first = self._SyncObj__noopIDx
        return (
            self.raftCommitIndex if self._isLeader() and first is not None and self.raftCommitIndex >= first else None
        )

    def _make_transport(self, *args: Any, **kwargs: Any) -> RaftTransport:
        self._join_snapshot_and_log()  # here, since the log is open now, and no thread uses it yet
        self.transport = RaftTransport(*args, **kwargs)
        self._SyncObj__connectedNodes = _ReadyNodes(self.transport.is_behind)
        copies = self._SyncObj__serializer
        # pysyncobj cancels transfers to nodes that are not connected, and treats those that are behind like these
        self._restart_snapshot, copies.cancelTransmisstion = copies.cancelTransmisstion, lambda _: None
        return self.transport

    def _join_snapshot_and_log(self) -> None:
        """Cut the log where the snapshot ends, unless that has been done."""
        log = self._SyncObj__raftLog
        last, before = self._snapshot or (None, None)
        at = (before[1] if before else 1) - log[0][1]  # a log without a snapshot begins with entry 1
        if at < 0:
            log._destroy()
            raise DataError("the log lacks entries that are not in the snapshot either")
        if 0 < at < len(log) - 1 and (log[at + 1], log[at]) == (last, before):
            log.deleteEntriesTo(at)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802 - pysyncobj's name, as the next ones
        for node in self.otherNodes | self.readonlyNodes:
            self._reset_peer(node)
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        self._reset_peer(node)
        super()._SyncObj__onNodeDisconnected(node)
        if self.selfNode is not None and node == self._getLeader():
            self._hasten_election(node)

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
        if message.get(
            "serialized"
        ):  # otherwise the leader gets an answer to the last part only, and counts the node as lost
            self._SyncObj__sendNextNodeIdx(node)
        lacks_more = self._SyncObj__raftNextIndex.get(node, 0) <= self._SyncObj__getCurrentLogIndex()
        if message["type"] == "next_node_idx" and lacks_more:
            self._SyncObj__newAppendEntriesTime = 0.0  # send the next entries without waiting for a heartbeat

    def _hasten_election(self, lost: Node) -> None:
        """Start the election earlier. The other voters become candidates in turn, so that no vote is split."""
        others = sorted(each.id for each in (self.selfNode, *self.otherNodes) if each != lost)
        at_s = time.monotonic() + _ELECTION_SPACING_S * others.index(self.selfNode.id)
        deadline_s: float = self._SyncObj__raftElectionDeadline  # type: ignore[has-type]
        self._SyncObj__raftElectionDeadline = min(deadline_s, at_s)

    def _reset_peer(self, node: Node) -> None:
        """Reset the state of a node: messages in flight may be lost, and followers reconnect under another name."""
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
        """Return whether a node has just requested the entries from the same index on, in this term."""
        asked, now_s = (self.raftCurrentTerm, index), time.monotonic()
        *last, last_s = self._last_requests.get(node, (0, 0, 0.0))
        if asked == tuple(last) and now_s - last_s < _REPEAT_S:
            return True
        self._last_requests[node] = (*asked, now_s)
        return False
