"""A request at the gate of its node: the decisions about its calls, and the reply that may leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chimera.core.errors import ActorLost, PrivacyError, UnavailableError
from chimera.engines.http.hosting.dispatch import refusal
from chimera.engines.http.hosting.host import Body, ReadBody
from chimera.engines.http.hosting.hosted_actor import Reply, error_reply
from chimera.engines.http.joined import calls_of
from chimera.federation.policy.answers import leaving
from chimera.federation.policy.requests import Allowed, Call, Decides, Decision, Held, Later, Refused, Requester


class GatedRequest:
    """A request. The gate decides about each of its calls as about a call of its own; those that it refuses do not run.

    Parameters
    ----------
    gate : decides about calls and answers.
    calls : the calls of the request, at least one.
    """

    def __init__(self, gate: Decides, requester: Requester, calls: Sequence[Call]) -> None:
        self._gate, self._requester, self._calls = gate, requester, calls
        self._decisions: list[Decision] = []

    def decide(self) -> Held | Later | None:
        """Decide about the calls; return the reason if the request has to wait. Then a new object decides about it again.

        A request waits only if its first call does. If a later call has to wait, the calls from there on do not run, and their
        replies tell the driver to send them again.
        """
        refused_bytes = 0  # the size of the request is that of its first call; a limit counts it with one that runs
        for call in self._calls:
            sized = replace(call, size=call.size + refused_bytes) if refused_bytes else call
            decision = self._gate.request(self._requester, sized)
            if isinstance(decision, Held | Later):
                if not self._decisions:
                    return decision
                self._decisions += [decision] * (len(self._calls) - len(self._decisions))  # calls keep their order
                break
            refused_bytes = sized.size if isinstance(decision, Refused) else 0
            self._decisions.append(decision)
        return None

    def allowed(self, method: str, body: Body) -> tuple[str, Body] | None:
        """Return the methods of the calls that run, as in a path, and their body; None if none runs.

        Parameters
        ----------
        method, body : those of the whole request.
        """
        places = [place for place, decision in enumerate(self._decisions) if decision == Allowed()]
        if len(places) == len(self._calls):
            return method, body
        methods = [self._calls[place].method for place in places]
        if not methods or not isinstance(body, ReadBody):  # the gate refuses a body that cannot be read
            return None
        parts = [calls_of([call.method for call in self._calls], body.request)[place] for place in places]
        return ",".join(methods), ReadBody(parts[0] if len(parts) == 1 else {"calls": parts}, body.size)

    def reply(self, reply: Reply | None) -> Reply:
        """Return the reply that may leave, once the gate has decided about the answers.

        Parameters
        ----------
        reply : that of the actor to the calls that have run, or of the host; None if none has.
        """
        replies = iter(() if reply is None else reply.parts)
        return Reply.joined([
            self._left(call, next(replies, reply)) if decision == Allowed() else _refusal(decision)
            for call, decision in zip(self._calls, self._decisions, strict=True)
        ])  # fmt: skip

    def _left(self, call: Call, reply: Reply | None) -> Reply:
        assert reply is not None
        reply, spent = leaving(call.method, reply)
        decision = self._gate.answer(self._requester, call, len(reply.body), spent)
        return _refusal(decision) if isinstance(decision, Refused) else reply


def _refusal(decision: Decision) -> Reply:
    if isinstance(decision, Refused):
        return error_reply(403, PrivacyError(decision.reason))
    if isinstance(decision, Held | Later):
        return refusal(UnavailableError("the policy of this node does not let the call run now: ask again"))
    return refusal(ActorLost("the answer of this call was lost"))  # it has run, and must not run again
