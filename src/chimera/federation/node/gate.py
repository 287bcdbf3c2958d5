"""What decides at a node which calls are run and which answers leave; the trivial decision is beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias


class Requester(NamedTuple):
    """A driver, as the hub has identified it.

    Attributes
    ----------
    fingerprint : SHA-256 of its certificate, in hexadecimal digits.
    """

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Call:
    """A call that a driver asks a node to run.

    Attributes
    ----------
    run, number : key of the driver's run, and the number of the call in it.
    kind : class of the actor, as the driver names it; empty if it is unknown.
    method : the method; the constructor is called ``__init__``.
    settings : positional and named arguments of the call, as far as they are plain values.
    """

    run: str
    number: int
    kind: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class Allowed(NamedTuple):
    """The call may be run, or its answer may leave."""


class Refused(NamedTuple):
    """The call is not run, or its answer does not leave."""

    reason: str


class Held(NamedTuple):
    """The call waits for a decision of the node's administrator, under this number."""

    number: int


Decision: TypeAlias = Allowed | Refused | Held


class Gate(Protocol):
    """Decides for one node."""

    def request(self, requester: Requester, call: Call) -> Decision:
        """Decide whether a call may be run."""

    def answer(self, requester: Requester, call: Call, answer_bytes: int) -> Decision:
        """Decide whether an answer of this size may leave, and make the decision durable."""


class AllowAll:
    """Runs every call, for tests and for federations of one owner."""

    def request(self, requester: Requester, call: Call) -> Decision:  # noqa: ARG002
        """Allow it."""
        return Allowed()

    def answer(self, requester: Requester, call: Call, answer_bytes: int) -> Decision:  # noqa: ARG002
        """Allow it."""
        return Allowed()
