"""The HTTP engine: actors in nodes on other machines, or in the driver."""

from chimera.engines.http.engine import HttpEngine
from chimera.engines.http.routes import Route

__all__ = ["HttpEngine", "Route"]
