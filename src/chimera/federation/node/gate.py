"""What decides at a node which calls are run and which answers leave; the trivial decision is beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True)
class Requester:
    """The owner of the certificate with which a call was sent.

    Attributes
    ----------
    name : the name in the certificate.
    fingerprint : SHA-256 of the certificate (DER), hexadecimal.
    """

    name: str
    fingerprint: str


@dataclass(frozen=True)
class Call:
    """A call of a requester.

    Attributes
    ----------
    run, number : the key of the run, and the number of the call in it; together unique for ever.
    kind : class of the actor, as the requester names it; empty if it is unknown.
    method : the called method; ``__init__`` creates the actor.
    settings : the settings that the requester declares for the run; None: those of the run's first call.
    actor : name of the actor.
    given, named : positional and named arguments.
    size : size of the request, in bytes.
    """

    run: str
    number: int
    kind: str
    method: str
    settings: Mapping[str, Any] | None = None
    actor: str = ""
    given: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True)
class Spending:
    """The cost of a call that has run, as the node measured it.

    Attributes
    ----------
    rows : rows of data that the call read; a row that it read twice counts twice.
    metrics : names of the metrics in the answer.
    """

    rows: int = 0
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """The call may run, or its answer may leave the node."""


@dataclass(frozen=True)
class Refused:
    """The call does not run, or its answer does not leave the node."""

    reason: str


@dataclass(frozen=True)
class Held:
    """The run waits for a decision of the node's administrator, under this number."""

    number: int


Decision: TypeAlias = Allowed | Refused | Held


class Gate(Protocol):
    """Decides for one node."""

    def request(self, requester: Requester, call: Call) -> Decision:
        """Decide whether a call may run."""

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        """Decide whether an answer of this size may leave, and make the decision durable."""


class AllowAll:
    """Runs every call, for tests and for federations of one owner."""

    def request(self, requester: Requester, call: Call) -> Decision:  # noqa: ARG002
        """Allow it."""
        return Allowed()

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:  # noqa: ARG002
        """Allow it."""
        return Allowed()
