"""The simulated engine: one process, virtual time, real arithmetic."""

from __future__ import annotations

from chimera.engines.simulated.availability import Availability
from chimera.engines.simulated.compute import Compute
from chimera.engines.simulated.engine import Simulated
from chimera.engines.simulated.network import Network, NodeNetwork

__all__ = ["Availability", "Compute", "Network", "NodeNetwork", "Simulated"]
