"""Actors that exist already, behind documented routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chimera.engines.handle import CONSTRUCT, results
from chimera.engines.http.channels.actor_channels import RemoteChannel
from chimera.engines.http.channels.channel import opened
from chimera.engines.http.connection import InvalidAnswer, Unreachable
from chimera.engines.http.failure import Failed, lost, raised, raised_by
from chimera.engines.http.refs import Call, Outcome
from chimera.engines.http.routes import Route, document_of, error_of, request_body
from chimera.engines.http.values import Value, size_of


class RoutedChannel(RemoteChannel):
    """An actor that exists already, behind documented routes. Its object in the driver makes requests and reads answers.

    Parameters
    ----------
    actor_type : class with ``routes``; see `Route`. With ``failure_is_loss = True``, a failed call for any reason is the loss
        of the actor. With ``comes_back = True`` it is never lost: its calls fail with `ActorLost` while no process answers.
    """

    def __init__(self, *args: Any, actor_type: Callable[..., Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self._type = actor_type
        self._routes: Mapping[str, Route] = actor_type.routes  # type: ignore[attr-defined]
        self._failure_is_loss = bool(getattr(actor_type, "failure_is_loss", False))
        self._comes_back = bool(getattr(actor_type, "comes_back", False))
        self._target: Any = None

    @property
    def tries_again(self) -> bool:
        """Whether the actor must not count as lost now."""
        return self._comes_back or super().tries_again

    def mark_dead(self, reason: str) -> Failed:
        """Count the actor as dead, unless it may come back; return the exception for the current call."""
        return lost(f"{self.name} {reason}") if self._comes_back else super().mark_dead(reason)

    def perform(self, call: Call) -> Outcome:
        """Send the call to its route, or execute it here if it has none."""
        args, kwargs = opened(call)
        bytes_in = size_of((*args, *kwargs.values()))
        try:
            value = self._value(call.method, args, kwargs)
            values = [Value(each) for each in results(value, self.name, call.method, call.returns)]
        except Unreachable as error:
            return Outcome(self.mark_dead(f"at {self.node.url} was lost: {error}"))
        except InvalidAnswer as error:
            return Outcome(self.mark_dead(f"at {self.node.url} sent an invalid answer: {error}"))
        except Exception as error:  # any exception of the node or of the routed class is the result of the call
            if self._failure_is_loss:
                return Outcome(self.mark_dead(f"at {self.node.url} failed: {type(error).__name__}: {error}"))
            failure = raised(error) if call.method in self._routes else raised_by(error, self.name, call.method)
            return Outcome(failure)
        return Outcome(values, None, bytes_in, sum(value.nbytes for value in values))

    def _value(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if method == CONSTRUCT:
            self._target = self._type(*args, **kwargs)
            return None
        route = self._routes.get(method)
        if route is None:
            return getattr(self._target, method)(*args, **kwargs)
        body, content_type = request_body(route.encode(self._target, *args, **kwargs), self.node.takes_binary())
        answer = self.ask(route.verb, route.path, body, content_type, idempotent=route.idempotent)
        if answer.status >= 400:
            raise error_of(answer, f"{self.node.url}{route.path}")
        document = document_of(answer)
        try:
            return route.decode(self._target, document)
        except Exception as error:  # whatever the answer contains, only its sender may fail
            raise InvalidAnswer(
                f"{route.path} answered what cannot be used: {type(error).__name__}: {error}"
            ) from error

    def leave(self) -> None:
        """Release the object."""
        super().leave()
        self._target = None
