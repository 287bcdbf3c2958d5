"""The memory limit of an actor's process."""

from __future__ import annotations

import sys
from pathlib import Path

from chimera.core.errors import MemoryLimitError

_TORCH_HAS_NONE = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


class MemoryLimit:
    """A memory limit for this process from now on, enforced by the kernel on Linux.

    Parameters
    ----------
    megabytes : private memory beyond the present use, in MB; None: no limit.
    """

    def __init__(self, megabytes: float | None) -> None:
        self._megabytes = megabytes
        if megabytes is not None and sys.platform == "linux":
            import resource

            most = _private_bytes() + int(megabytes * 1e6)
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def named(self, error: BaseException, actor: str) -> BaseException:
        """Return the error to report: one about the limit if ``error`` is a failed allocation, otherwise ``error``."""
        if self._megabytes is None or not (isinstance(error, MemoryError) or _torch_has_none(error)):
            return error
        limit = MemoryLimitError(
            f"{actor} needs more memory than its memory_mb = {self._megabytes:g}: allow more, take smaller batches, "
            "or cut the model over more workers (pipeline-parallel)"
        )
        return limit.with_traceback(error.__traceback__)


def _torch_has_none(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TORCH_HAS_NONE)


def _private_bytes() -> int:
    """Return the bytes that the kernel counts for ``RLIMIT_DATA``."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
