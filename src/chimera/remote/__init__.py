"""Remote functions: run an ordinary function on many workers, which exchange messages and reduce arrays.

See docs/how-to/remote.md.
"""

from chimera.remote.run import run
from chimera.remote.worker import Worker

__all__ = ["Worker", "run"]
