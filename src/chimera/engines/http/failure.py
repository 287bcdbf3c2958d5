"""Failures of calls: errors that the driver raises, and exceptions of actors, sent by a node as plain values.

The driver recreates an exception only if it knows the class already: a class of Python, of Chimera, or of the module of the
actor's class. The constructor is not called, so a node determines only arguments and attributes, which are plain values. Any
other exception becomes an `ActorError` with its text.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from typing import Any

from chimera.core import errors
from chimera.core.errors import ActorError, ActorLost, ConfigurationError
from chimera.core.printable import printable_lines
from chimera.engines.failure import Failure
from chimera.engines.http import wire


class Failed:
    """A failure in the place of a value.

    Attributes
    ----------
    exception : returns the exception to raise.
    kind : name of the exception's type.
    """

    __slots__ = ("exception", "kind")

    def __init__(self, exception: Callable[[], BaseException], kind: str) -> None:
        self.exception, self.kind = exception, kind


MAX_KIND_CHARACTERS = 200
"""Maximum length of the name of a type that a node may report."""
_MAX_SUMMARY_CHARACTERS, _MAX_TRACEBACK_CHARACTERS = 4_000, 20_000
_CONTROL = frozenset((StopIteration, StopAsyncIteration, ActorLost))
"""Exceptions with a meaning for the driver. A node cannot make the driver raise them."""


def plain_text(text: str, most: int = _MAX_SUMMARY_CHARACTERS) -> str:
    """Return a text of a node for messages: truncated, with control characters escaped, so that no terminal executes them."""
    return printable_lines(text[:most] + ("..." if len(text) > most else ""))


def lost(text: str) -> Failed:
    """Return the failure of a call whose actor is dead."""
    return Failed(lambda: ActorLost(text), ActorLost.__name__)


def raised(error: BaseException) -> Failed:
    """Return a failure that raises this exception."""
    return Failed(lambda: error, type(error).__name__)


def raised_by(error: BaseException, actor: str, call: str) -> Failed:
    """Return the failure of a call in the driver's process."""
    failure = Failure(error, actor, call)
    return Failed(failure.exception, failure.kind)


def described(error: BaseException, call: str) -> dict[str, Any]:
    """Return an actor's exception as plain values, on the node."""
    failure = Failure(error, "", call)
    content: dict[str, Any] | None = {"args": list(error.args), "state": dict(vars(error))}
    try:
        wire.pack(content)
    except ConfigurationError:
        content = None
    return {
        "kind": failure.kind,
        "module": type(error).__module__,
        "summary": failure.summary,
        "traceback": failure.traceback,
        "content": content,
    }


def revived(document: Mapping[str, Any], actor: str, call: str, module: str) -> Failed:
    """Return the failure that `described` describes.

    Parameters
    ----------
    module : name of the module of the actor's class.
    """
    kind, summary = plain_text(document["kind"], MAX_KIND_CHARACTERS), plain_text(document["summary"])
    text = (
        f"{actor}, call {call!r}: {kind}: {summary}\n\n{plain_text(document['traceback'], _MAX_TRACEBACK_CHARACTERS)}"
    )
    known = _known_type(kind, document["module"], module)
    content = _printable(document["content"])

    def make() -> BaseException:
        remote = ActorError(text)
        if known is None or not isinstance(content, dict):
            return remote
        try:
            error = known.__new__(known, *content.get("args", ()))
            vars(error).update({k: v for k, v in content.get("state", {}).items() if not k.startswith("__")})
            str(error)
        except Exception:  # its arguments do not fit, or it cannot format them
            return remote
        error.__cause__ = remote
        return error

    return Failed(make, kind)


class Refusal(ActorError):  # noqa: N818 - named like `ActorLost`
    """An answer of a node with a status of 400 or more.

    Attributes
    ----------
    status, name : the status, and the name of the exception in the node.
    """

    def __init__(self, text: str, status: int = 500, name: str = "") -> None:
        super().__init__(text)
        self.status, self.name = status, name


def _known_type(kind: str, its_module: str, actors_module: str) -> type[Exception] | None:
    places = {"builtins": builtins, "": errors, errors.__name__: errors}
    if its_module == actors_module and its_module:
        places[its_module] = sys.modules.get(its_module) or builtins
    found = getattr(places.get(its_module), kind, None) if kind.isidentifier() else None
    able = isinstance(found, type) and issubclass(found, Exception) and found not in _CONTROL
    return found if able else None


def _printable(content: Any) -> Any:
    """Return the parts of an exception, with their texts escaped by `plain_text`."""
    if isinstance(content, str):
        return plain_text(content)
    if isinstance(content, list | tuple):
        return type(content)(_printable(part) for part in content)
    if isinstance(content, dict):
        return {key: _printable(part) for key, part in content.items()}
    return content
