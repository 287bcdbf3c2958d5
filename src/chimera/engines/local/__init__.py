"""The local engine: processes on this machine that share memory."""

from chimera.engines.local.engine import Local

__all__ = ["Local"]
