"""Frames that a driver or a node misses because it reads too slowly, so that others need not wait for it."""

from __future__ import annotations

import asyncio

from chimera.engines.federation.wire.frames import CHUNK, WINDOW, ConnectedNodes, pack
from chimera.engines.federation.wire.port import Port

_CHECK_INTERVAL_S = 0.1


class MissedFrames:
    """The nodes whose frames to one driver, or from it, the hub has dropped.

    A node keeps an answer until its driver has confirmed it, and a driver keeps a request until it has the answer. So once both
    have read most of the frames that wait for them, the hub names the node to the driver again. The driver then asks it for the
    bytes that it lacks, and sends those that the node lacks, as after a break. The hub names a few nodes at a time: it would
    have to drop most of the answers of all nodes again.

    Parameters
    ----------
    port : sends frames to the driver.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._nodes: dict[
            str, tuple[str, Port]
        ] = {}  # names of processes, and ports, in the order in which they are named
        self._check: asyncio.TimerHandle | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def add(self, node: str, boot: str, port: Port) -> None:
        """Note that a frame of a node was dropped. Its later frames are useless until the node is named again.

        Parameters
        ----------
        boot : name of the node's process.
        port : sends frames to the node.
        """
        self._nodes[node] = boot, port
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
            ready = [node for node, (_, port) in self._nodes.items() if port.spare_bytes]
            for node in ready[: max(spare_bytes // (WINDOW * CHUNK), 1)]:
                boot, _ = self._nodes.pop(node)
                self._port.post(pack(ConnectedNodes({node: boot})))
        if self._nodes:
            self._check = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._resume)
