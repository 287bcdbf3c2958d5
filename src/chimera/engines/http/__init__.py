"""The HTTP engine: actors that live in the nodes of other machines, or in the driver."""

from chimera.engines.http.engine import HttpEngine
from chimera.engines.http.routes import Route

__all__ = ["HttpEngine", "Route"]
