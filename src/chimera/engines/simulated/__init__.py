"""The simulated engine: one process, virtual time, real arithmetic."""

from __future__ import annotations

from chimera.engines.simulated.engine import Simulated
from chimera.engines.simulated.models.availability import Availability
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.models.devices import Devices
from chimera.engines.simulated.models.network import Network, NodeNetwork

__all__ = ["Availability", "Compute", "Devices", "Network", "NodeNetwork", "Simulated"]
