"""The reports of a node about its budget of epsilon, which its policy releases to the hub."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from chimera.core.errors import ChimeraError
from chimera.engines.federation.wire.frames import Budget, ConnectedNodes, pack
from chimera.engines.federation.wire.port import Port
from chimera.federation.policy.policy import Policy

_REPORT_S = 5.0
_REVISION = 2  # hubs of earlier revisions do not read the reports


def budget_of(policy: Policy, spent: Callable[[], float]) -> Callable[[], Budget] | None:
    """Return a function that reads the budget; None if the policy does not release it.

    Parameters
    ----------
    spent : returns the spent epsilon of all requesters.
    """
    bounds = policy.privacy

    def read() -> Budget:
        return Budget(_finite(spent()), _finite(bounds.epsilon_in_all), bounds.delta, bounds.protects)

    return read if policy.release.epsilon else None


def _finite(epsilon: float) -> float | None:
    return None if math.isinf(epsilon) else epsilon


class BudgetReports:
    """Sends the budget to the hub when it has changed, and on each new connection. Its methods run in the event loop.

    Parameters
    ----------
    read : returns the budget, in another thread; None: the policy does not release it.
    """

    def __init__(self, read: Callable[[], Budget] | None) -> None:
        self._read = read
        self._port: Port | None = None
        self._frame = b""

    def joined(self, port: Port, present: ConnectedNodes) -> None:
        """Send the reports over a new connection."""
        self._port = port if present.revision >= _REVISION else None
        self._send()

    def parted(self) -> None:
        """Note that the connection is closed."""
        self._port = None

    async def run(self) -> None:
        """Send reports until the task is cancelled."""
        while self._read is not None:
            with contextlib.suppress(ChimeraError):  # the report is for display; calls report an error of the ledger
                frame = pack(await asyncio.to_thread(self._read))
                if frame != self._frame:
                    self._frame = frame
                    self._send()
            await asyncio.sleep(_REPORT_S)

    def _send(self) -> None:
        if self._port is not None and self._frame:
            self._port.post(self._frame)
