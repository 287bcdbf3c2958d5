"""Frames that a driver misses because it reads too slowly, so that nodes need not wait for it."""

from __future__ import annotations

import asyncio

from chimera.engines.federation.wire.frames import CHUNK, WINDOW, ConnectedNodes, pack
from chimera.engines.federation.wire.port import Port

_CHECK_INTERVAL_S = 0.1


class MissedFrames:
    """The nodes whose frames to one driver the hub has dropped.

    A node keeps an answer until its driver has confirmed it. So once the driver has read most of the frames that wait for it,
    the hub names these nodes to it again. The driver then asks them for the bytes that it lacks, as after a break. The hub
    names a few nodes at a time: it would have to drop most of the answers of all nodes again.

    Parameters
    ----------
    port : sends frames to the driver.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._nodes: dict[str, str] = {}  # with the names of their processes, in the order in which they will be named
        self._check: asyncio.TimerHandle | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def add(self, node: str, boot: str) -> None:
        """Note that a frame of a node was dropped. Its later frames are useless until the node is named again.

        Parameters
        ----------
        boot : name of the node's process.
        """
        self._nodes[node] = boot
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._resume)

    def forget(self, node: str) -> None:
        """Note that the driver learns in another way that the node has come, or that it has gone."""
        self._nodes.pop(node, None)

    def close(self) -> None:
        """Forget all nodes, since the driver is not connected any more: it asks all nodes when it connects."""
        self._nodes.clear()
        if self._check is not None:
            self._check.cancel()

    def _resume(self) -> None:
        """Name the nodes for whose chunks in flight there is room."""
        self._check = None
        if spare_bytes := self._port.spare_bytes:
            for node in list(self._nodes)[: max(spare_bytes // (WINDOW * CHUNK), 1)]:
                self._port.post(pack(ConnectedNodes({node: self._nodes.pop(node)})))
        if self._nodes:
            self._check = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._resume)
