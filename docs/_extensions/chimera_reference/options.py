"""Options of plug-ins and of settings: name, type, default and effect, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chimera.core.signatures import hints_of, parameters_of
from chimera.training.experiment.toml import literal
from chimera_reference.docstrings import REFERENCE, Item, docstring_of
from chimera_reference.markup import Link, cell, table
from chimera_reference.names import resolve

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", Path: "path", Any: "any"}
_FUNCTION = "function, from Python only"
_WORDS = ("required", "not set", "that of ")
_HEADER = ("option", "type", "default", "effect")


@dataclass(frozen=True)
class Option:
    """One option of an experiment file.

    Attributes
    ----------
    name : the key.
    type : its type, in the words of TOML.
    default : the value without it, as a literal of TOML; ``required`` or ``not set``.
    effect : the text of the docstring.
    owner : the class or function whose docstring has the text, which gives meaning to names in it.
    """

    name: str
    type: str
    default: str
    effect: str
    owner: Any


def options_of_plugin(factory: Callable[..., Any], names: Collection[str]) -> list[Option]:
    """Return the options ``names`` of the factory of a plug-in."""
    parameters, hints = parameters_of(factory), hints_of(factory)
    return [
        _option(name, factory, parameters[name].name, hints.get(parameters[name].name, Any), parameters[name].default)
        for name in names
    ]


def options_of_settings(kind: type, names: Collection[str] | None = None) -> list[Option]:
    """Return the fields of a dataclass that a table sets: those ``names``, or all."""
    hints = typing.get_type_hints(kind)
    found = []
    for each in dataclasses.fields(kind):
        if names is None or each.name in names:
            made = each.default_factory
            default = each.default if made is dataclasses.MISSING else made()
            missing = default is dataclasses.MISSING
            found.append(
                _option(each.name, kind, each.name, hints[each.name], inspect.Parameter.empty if missing else default)
            )
    return found


def _option(name: str, factory: Any, parameter: str, hint: Any, default: Any) -> Option:
    effect, owner = _effect(factory, {name, parameter})
    return Option(name, type_text(hint), default_text(default), effect, owner)


def default_text(default: Any) -> str:
    """Return a default as TOML writes it; ``not set`` for None, ``required`` where there is none."""
    if default is inspect.Parameter.empty:
        return "required"
    if default is None:
        return "not set"
    try:
        return literal(default)
    except TypeError:
        return getattr(default, "__name__", None) or repr(default)


def type_text(hint: Any) -> str:
    """Return the type of an option in the words of TOML. A type that only Python code can give has its own name."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(literal(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        known = [type_text(each) for each in arguments if each is not type(None)]
        in_files = [each for each in known if not each[:1].isupper()]  # classes are for Python only
        return " or ".join(dict.fromkeys(in_files or known))
    if origin is typing.Annotated:
        return type_text(arguments[0])
    kind = origin or hint
    if inspect.isclass(kind) and issubclass(kind, Mapping):
        return _holding("table", arguments[1:])
    if inspect.isclass(kind) and issubclass(kind, Sequence | set | frozenset):
        return _holding("array", tuple(each for each in arguments[:1] if each is not Ellipsis))
    if kind is Callable:
        return _FUNCTION
    return getattr(kind, "__name__", str(kind))


def _holding(container: str, inner: tuple[Any, ...]) -> str:
    plain = [type_text(each) for each in inner if each is not Any]
    many = {"string": "strings", "integer": "integers", "number": "numbers", "boolean": "booleans", "path": "paths"}
    return f"{container} of {many[plain[0]]}" if plain and plain[0] in many else container


def _effect(factory: Any, names: Collection[str]) -> tuple[str, Any]:
    """Return the text that describes an option, and the object whose docstring has it; empty if there is none.

    It is in the docstring of the factory, of a base class, or of an object that one of these names.
    """
    for owner in _documented(factory):
        described = docstring_of(owner).described()
        for name in names:
            if name in described:
                return _joined(described[name], name, owner)
    return "", factory


def _documented(factory: Any) -> Iterator[Any]:
    own = [kind for kind in factory.__mro__ if kind is not object] if inspect.isclass(factory) else [factory]
    yield from own
    for owner in own:
        yield from _named(docstring_of(owner).text, owner)
        for title in ("Parameters", "Attributes"):
            for item in docstring_of(owner).items.get(title, ()):
                yield from _named(item.text, owner)
        yield from _named(docstring_of(owner).summary, owner)


def _named(text: str, owner: Any) -> Iterator[Any]:
    for name in REFERENCE.findall(text):
        try:
            found = resolve(name, owner)
        except LookupError:
            continue
        found = getattr(found, "__func__", found)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield found


def _joined(item: Item, name: str, owner: Any) -> tuple[str, Any]:
    """Return the text of an item. If it describes several names, that of the object that it names comes first."""
    if len(item.names) > 1:
        for other in _named(item.text, owner):
            inner = docstring_of(other).described().get(name)
            if inner is not None:
                text, described_by = _joined(inner, name, other)
                rest = re.sub(r"^[^.]*\bsee `[\w.]+`\.?\s*", "", item.text) if name == item.names[0] else ""
                return " ".join(part for part in (text, rest) if part), described_by
    return item.text, owner


def option_table(options: Sequence[Option], link: Callable[[Any], Link], *, first: str = "option") -> str:
    """Return the table of options as Markdown; ``link`` returns the links for an owner of a text."""
    rows = [
        (
            f"`{option.name}`",
            cell(re.sub(r'"[^"]*"', r"``\g<0>``", option.type)),
            option.default if option.default.startswith(_WORDS) else cell(f"``{option.default}``"),
            _sentence(cell(option.effect, link(option.owner))),
        )
        for option in options
    ]
    return table((first, *_HEADER[1:]), rows)


def _sentence(text: str) -> str:
    return text if not text or text.endswith((".", ":", "?")) else f"{text}."
