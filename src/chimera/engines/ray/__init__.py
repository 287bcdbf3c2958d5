"""The Ray engine: actors on this machine or a cluster, values in Ray's object store or, on one machine, in shared memory."""

from chimera.engines.ray.engine import Ray

__all__ = ["Ray"]
