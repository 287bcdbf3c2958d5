"""The interface of a pool of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from chimera.inference.membership import Member
from chimera.inference.worker.protocol import Link


class Pool(ABC):
    """The workers of a cluster.

    Attributes
    ----------
    poll_s : seconds between two polls for new workers. Links report deaths sooner.
    """

    poll_s = 0.1

    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """Return the addresses of the workers that have joined, by name. A worker that restarts has a new address."""

    def silent_s(self, name: str) -> float:  # noqa: ARG002
        """Return the age of a worker's heartbeat in seconds at the last call of `addresses`; 0 if there are no heartbeats."""
        return 0.0

    @abstractmethod
    def link(self, address: str) -> Link:
        """Return a link to a worker, without connecting yet."""

    @abstractmethod
    def kill(self, name: str, address: str) -> bool:
        """Kill a worker that hangs; return whether this process can."""

    @abstractmethod
    def members(self) -> list[Member]:
        """Return the workers that are not in the folder of members."""

    def host(self, name: str) -> str:  # noqa: ARG002
        """Return the name of a worker's machine; empty if it is not known."""
        return ""

    def warning(self, name: str) -> str:  # noqa: ARG002
        """Return what is unusual about a worker's machine; empty: nothing."""
        return ""

    def rejoin_s(self, name: str) -> float:  # noqa: ARG002
        """Return the seconds for which a new coordinator waits for a worker that it does not find."""
        return 0.0

    def shares_files(self, name: str) -> bool:  # noqa: ARG002
        """Return whether a worker can read the files that the coordinator can read."""
        return True
