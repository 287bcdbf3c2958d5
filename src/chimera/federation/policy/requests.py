"""Calls of requesters, and the decisions of a node about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias


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
    run, number : the key of the run, and the number of the call in it; together always unique.
    kind : class of the actor, as the requester names it.
    method : the called method; ``__init__`` creates the actor.
    settings : the settings that the requester declares for the run, see `Declared`; None: those of the run's first call.
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
    statistics : whether the answer has statistics of columns.
    stored : name of the file with the answer in the node's store of results.
    failed : whether the answer is an error, whose text contains no data; see `read_answer`.
    """

    rows: int = 0
    metrics: tuple[str, ...] = ()
    stored: str = ""
    failed: bool = False
    statistics: bool = False


@dataclass(frozen=True)
class Allowed:
    """The call may run, or its answer may leave the node.

    Attributes
    ----------
    again : the call has run already, and its answer is in the store of results; it must not run a second time.
    """

    again: bool = False


@dataclass(frozen=True)
class Refused:
    """The call does not run, or its answer does not leave the node.

    Attributes
    ----------
    reason : one line for the requester, which contains nothing about the data of the node.
    """

    reason: str


@dataclass(frozen=True)
class Held:
    """The run waits for a decision of the node's administrator.

    Attributes
    ----------
    number : the number of the run at this node, for ``chimera node approve``.
    """

    number: int


@dataclass(frozen=True)
class Later:
    """The policy does not let the call run now. The call waits, and is decided about again.

    Attributes
    ----------
    reason : ``hours``: the policy allows requests at other hours. ``day``: a limit of the day is reached.
    wait_s : seconds until then.
    """

    reason: Literal["hours", "day"]
    wait_s: int


Decision: TypeAlias = Allowed | Refused | Held | Later


class Decides(Protocol):
    """Decides about calls and answers of one node; `chimera.federation.policy.gate.Gate` does so by the node's policy."""

    def request(self, requester: Requester, call: Call) -> Decision:
        """Decide whether a call may run."""

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        """Decide whether an answer of this size may leave, and make the decision durable."""


NOT_ALLOWED = "the policy of this node does not allow this request"
REVOKED = "the certificate of the requester is revoked"
"""The reason of each refusal that could depend on data, and of most others, so that a requester cannot distinguish them."""
PARTICIPANTS = "the list of keys does not have enough different nodes with valid certificates"
EARLIER = "this number belongs to an earlier call"
LOST = "the process of this node that had the call has ended"
EXHAUSTED = "the budget of this node does not allow another update"
"""Budgets depend on earlier requests only, not on data."""
RUN_OVER = "the run has had all the rounds that it declared"
DECLINED = "the administrator of this node declined the run"
CHANGED = "the settings of a run cannot change: begin another run"
LIMIT = "this node has reached its limit for today"
TOO_MANY_HELD_RUNS = "too many runs of this requester wait for the administrator of this node"
