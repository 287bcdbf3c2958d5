"""The federation engine: the HTTP engine with nodes that dial out to a hub, which relays the calls."""

from chimera.engines.federation.engine import FederationEngine

__all__ = ["FederationEngine"]
