"""Where the workers of a cluster are, and how they are reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from chimera.inference.membership import Member
from chimera.inference.worker.protocol import Link


class Pool(ABC):
    """The workers, as a coordinator sees them.

    Attributes
    ----------
    poll_s : how long after a look at which workers there are the next one is due. Deaths are told by links, and sooner.
    """

    poll_s = 0.1

    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """Return the addresses of the workers that have joined, by name; one that begins anew has another address."""

    def silent_s(self, name: str) -> float:  # noqa: ARG002
        """Return for how long a worker had written nothing when the addresses were asked for; 0 where none of them writes."""
        return 0.0

    @abstractmethod
    def link(self, address: str) -> Link:
        """Return a link to a worker; nobody is asked anything yet."""

    @abstractmethod
    def members(self) -> list[Member]:
        """Return a row for each worker that is written down nowhere else."""
