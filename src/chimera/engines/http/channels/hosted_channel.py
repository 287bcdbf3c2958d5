"""Actors that a node hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from chimera.core.errors import DataError, TimeLimitError
from chimera.engines.handle import CONSTRUCT
from chimera.engines.http import wire
from chimera.engines.http.channels.actor_channels import RemoteChannel
from chimera.engines.http.connection import Answer, InvalidAnswer, Unreachable
from chimera.engines.http.envelope import read_answer
from chimera.engines.http.failure import Failed, raised, raised_by
from chimera.engines.http.joined import MAX_CALLS, read_replies
from chimera.engines.http.node import ACTORS
from chimera.engines.http.refs import Call, Outcome, Ref
from chimera.engines.http.routes import error_of
from chimera.engines.http.values import Value

_MAX_REASON_CHARACTERS = 300  # characters of an exception's text
_MAX_JOINED_BYTES = 1 << 18  # size of the arguments of calls that are sent in one request


class HostedChannel(RemoteChannel):
    """An actor that a node hosts. Requests create, call and end it.

    Parameters
    ----------
    key : name of the actor on the node.
    kind : name of its class there.
    module : module of its class here; exceptions of that module are recreated.
    threads : maximum number of threads for its arithmetic.
    failure_is_loss : whether the actor is lost if a call exceeds its time limit, or fails after the creation of the actor. If
        not, the failure is raised where the result is awaited.
    settings : settings of the run, sent with the request that creates the actor.
    brief : methods that take little time. A call of one is sent in the request of the call before it, if that still waits and
        both are small.
    """

    def __init__(
        self,
        *args: Any,
        key: str,
        kind: str,
        module: str,
        threads: int,
        failure_is_loss: bool = False,
        settings: Mapping[str, Any] | None = None,
        brief: frozenset[str] = frozenset(),
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._failure_is_loss, self._settings, self._brief = failure_is_loss, settings, brief
        self._node_joins: bool | None = None  # not known yet; the actor stays in one process of the node
        self.key, self._kind, self._module, self._threads = key, kind, module, threads
        self._path = f"{ACTORS}/{quote(key)}"

    def prepare(self, call: Call) -> None:
        """Pack the present values; refs follow when they are resolved."""
        plain = [None if type(a) is Ref else a for a in call.args]
        kwargs = {k: a for k, a in call.kwargs.items() if type(a) is not Ref}
        call.body = wire.pack([plain, kwargs])

    def joins(self, calls: Sequence[Call], following: Call) -> bool:
        """Return whether the request of these calls may have a further call."""
        if following.method not in self._brief or calls[0].method == CONSTRUCT or len(calls) >= MAX_CALLS:
            return False
        if sum(map(_size, calls)) + _size(following) > _MAX_JOINED_BYTES:  # large answers would be copied
            return False
        if self._node_joins is None:
            self._node_joins = self.node.takes_joined()
        return self._node_joins

    def perform(self, call: Call) -> Outcome:
        """Send the call, and keep the results in packed form."""
        return self.perform_joined([call])[0]

    def perform_joined(self, calls: Sequence[Call]) -> list[Outcome]:
        """Send calls in one request, and keep the results in packed form."""
        first, path = calls[0], self._path
        if first.method != CONSTRUCT:
            path += f"/{','.join(quote(call.method, safe='') for call in calls)}"
        try:
            documents = [self._document(call) for call in calls]
        except Exception as error:  # a value of another actor that cannot be sent; only the first call has such values
            failure = raised_by(error, self.name, first.method)
            return [Outcome(failure), *(self.perform(call) for call in calls[1:])]
        body = wire.pack(documents[0] if len(calls) == 1 else {"calls": documents})
        try:
            answer = self.ask("POST", path, body, wire.CONTENT_TYPE, idempotent=False)
            return self._read_all(calls, answer)
        except TimeLimitError as error:
            if self._failure_is_loss:
                return [Outcome(self.mark_dead(f"was lost: {error}"))] * len(calls)
            return [Outcome(raised(TimeLimitError(f"{self.name}, call {call.method!r}: {error}"))) for call in calls]
        except Unreachable as error:
            return [Outcome(self.mark_dead(f"at {self.node.url} was lost: {error}"))] * len(calls)
        except (InvalidAnswer, DataError) as error:
            return [Outcome(self.mark_dead(f"at {self.node.url} sent an invalid answer: {error}"))] * len(calls)

    def accepted(self, call: Call, outcome: Outcome) -> Outcome:
        """Return the outcome. If failures are losses, the actor is lost by one."""
        if not (self._failure_is_loss and call.method != CONSTRUCT and isinstance(outcome.values, Failed)):
            return outcome
        message = " ".join(str(outcome.values.exception()).split())[:_MAX_REASON_CHARACTERS]
        reason = f"{call.method} raised {outcome.values.kind}: {message}"
        return Outcome(self.mark_dead(f"at {self.node.url} was lost: {reason}"))

    def _document(self, call: Call) -> dict[str, Any]:
        """Return the content of the request for a call."""
        assert call.body is not None
        document: dict[str, Any] = {"call": wire.Packed(call.body)}
        if call.needs:
            document["places"] = {str(i): _packed(a) for i, a in enumerate(call.args) if type(a) is Ref}
            document["names"] = {k: _packed(a) for k, a in call.kwargs.items() if type(a) is Ref}
        if call.returns is not None:
            document["returns"] = call.returns
        if call.method == CONSTRUCT:
            document |= {"kind": self._kind, "threads": self._threads}
            if self._settings is not None:
                document["settings"] = dict(self._settings)
        return document

    def _read_all(self, calls: Sequence[Call], answer: Answer) -> list[Outcome]:
        """Return the outcome of each call of a request, up to the first later one that did not run yet."""
        if len(calls) == 1 or answer.content_type != wire.CONTENT_TYPE:  # the latter refuses all of them
            return [self._read(call, answer) for call in calls]
        replies = read_replies(answer.body, len(calls))
        outcomes: list[Outcome] = []
        for call, (status, kind, body) in zip(calls, replies, strict=True):
            if outcomes and status == 503:
                break  # the node runs no call after one that has to wait
            outcomes.append(self._read(call, Answer(status, kind, body)))
        return outcomes

    def _read(self, call: Call, answer: Answer) -> Outcome:
        if answer.content_type != wire.CONTENT_TYPE:
            error = error_of(answer, f"{self.node.url}{self._path}") if answer.status >= 400 else None
            if error is None:
                raise InvalidAnswer(f"an answer of type {answer.content_type!r} with status {answer.status}")
            if answer.status == 404:
                return Outcome(self.mark_dead(f"at {self.node.url} was lost: the node does not know it ({error})"))
            return Outcome(raised(error))
        return read_answer(answer.body, len(call.refs), self.name, call.method, self._module)


def _size(call: Call) -> int:
    """Return the size of a call's arguments, in bytes."""
    assert call.body is not None
    sizes: list[int] = [ref.outcome.nbytes for ref in call.needs if isinstance(ref.outcome, Value)]
    return len(call.body) + sum(sizes)


def _packed(ref: Ref) -> wire.Packed:
    value = ref.outcome
    assert isinstance(value, Value)
    return value.packed()
