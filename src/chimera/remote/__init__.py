"""Executors: an ordinary function runs on many workers, which send one another messages and reduce arrays (docs/remote.md)."""

from chimera.remote.run import run
from chimera.remote.worker import Worker

__all__ = ["Worker", "run"]
