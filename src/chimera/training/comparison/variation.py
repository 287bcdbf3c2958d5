"""The grammar of variations: a key and its values, as ``codec=identity,top-k:ratio=0.01``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chimera.core.errors import ConfigurationError
from chimera.training.experiment.experiment import PLUGINS, Experiment
from chimera.training.experiment.overrides import read_value
from chimera.training.plugin import label

Vary: TypeAlias = Mapping[str, Iterable[Any]] | Iterable[str]
"""Variations as a user writes them: values by key, or texts as on the command line."""

_OPENING, _CLOSING = "[{(", "]})"
_OPTION = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Choice:
    """One value of a varied key.

    Attributes
    ----------
    text : its label.
    value : the value of the key; for a plug-in by name with options, the name.
    options : options of that plug-in, dotted keys allowed; None if the value is not such a plug-in. Other options that the
        experiment sets for this plug-in are kept.
    """

    text: str
    value: Any
    options: Mapping[str, Any] | None = None

    def place(self, experiment: Experiment, path: tuple[str, ...], what: str) -> Experiment:
        """Return the experiment with this value at ``path``."""
        if not self.options:
            return experiment.with_value(path, self.value, what)
        if _at(experiment.tables, (*path, "name")) != self.value:
            table = self.value if len(path) == 1 else {"name": self.value}
            experiment = experiment.with_value(path, table, what)
        for option, value in self.options.items():
            experiment = experiment.with_value((*path, *option.split(".")), value, what)
        return experiment


@dataclass(frozen=True, eq=False)
class Variation:
    """A key of an experiment, as the parts of its path, and its values (at least one)."""

    path: tuple[str, ...]
    choices: tuple[Choice, ...]

    @property
    def key(self) -> str:
        """The key with dots."""
        return ".".join(self.path)


def read_variations(vary: Vary) -> list[Variation]:
    """Return the variations, validated as far as possible without an experiment.

    Raises
    ------
    ConfigurationError : a variation does not follow the grammar, or a key occurs twice.
    """
    given = vary.items() if isinstance(vary, Mapping) else [(text, None) for text in _sentences(vary)]
    variations = [_read(text) if values is None else _given(text, values) for text, values in given]
    seen: set[tuple[str, ...]] = set()
    for variation in variations:
        if variation.path in seen:
            raise ConfigurationError(
                f"--vary {variation.key!r} is given twice: list all its values in one, separated by commas"
            )
        seen.add(variation.path)
    return variations


def split(text: str, separator: str) -> list[str]:
    """Split at each ``separator`` outside brackets and quotes.

    Raises
    ------
    ConfigurationError : a bracket or quote is not closed, or not opened.
    """
    parts, begin, quote, depth, escaped = list[str](), 0, "", list[str](), False
    for i, character in enumerate(text):
        if quote:
            escaped, ends = quote == '"' and character == "\\" and not escaped, character == quote and not escaped
            quote = "" if ends else quote
        elif character in "\"'":
            quote = character
        elif character in _OPENING:
            depth.append(_CLOSING[_OPENING.index(character)])
        elif character in _CLOSING:
            if not depth or depth.pop() != character:
                raise ConfigurationError(f"{character!r} closes nothing in {text!r}")
        elif character == separator and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    if quote or depth:
        raise ConfigurationError(f"{quote or depth[-1]!r} is missing in {text!r}")
    return [*parts, text[begin:]]


def _sentences(vary: Iterable[str]) -> list[str]:
    sentences = [vary] if isinstance(vary, str) else list(vary)
    for sentence in sentences:
        if not isinstance(sentence, str):
            raise ConfigurationError(f"vary: {sentence!r} cannot be used: give a mapping of keys to lists of values")
    return sentences


def _read(text: str) -> Variation:
    key, equals, values = text.partition("=")
    path = _path(key)
    if not equals or not all(path) or not values.strip():
        raise ConfigurationError(f"--vary {text!r}: write KEY=VALUE,VALUE such as codec=identity,top-k:ratio=0.01")
    try:
        parts = [part.strip() for part in split(values, ",")]
        if not all(parts):
            raise ConfigurationError("a value is missing between two commas")
        return Variation(path, tuple(_choice(path, part) for part in parts))
    except ConfigurationError as error:
        raise ConfigurationError(f"--vary {text!r}: {error}") from None


def _given(key: str, values: Iterable[Any]) -> Variation:
    path = _path(key)
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ConfigurationError(f"vary {key!r}: {values!r} is not a list of values")
    choices = tuple(
        _choice(path, value) if isinstance(value, str) and path[0] in PLUGINS and len(path) == 1 else _made(value)
        for value in values
    )
    if not choices:
        raise ConfigurationError(f"vary {key!r}: the list of values is empty")
    return Variation(path, choices)


def _path(key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in key.split("."))


def _choice(path: tuple[str, ...], text: str) -> Choice:
    """Parse one value. Options may follow a name; for keys that are not tables, only a value with options is a name."""
    pieces = split(text, ":")
    named = next((i for i, piece in enumerate(pieces) if i and _OPTION.fullmatch(piece)), len(pieces))
    name, options = ":".join(pieces[:named]).strip(), {}
    is_table = len(path) == 1
    if not is_table and (named == len(pieces) or "//" in name):
        return Choice(text, read_value(text))
    for piece in pieces[named:]:
        option = _OPTION.fullmatch(piece)
        if option is None or not option[2].strip():
            raise ConfigurationError(f"{piece!r} is no option of {name!r}: write :OPTION=VALUE")
        if option[1] in options:
            raise ConfigurationError(f"the option {option[1]!r} of {name!r} is given twice")
        options[option[1]] = read_value(option[2].strip())
    value = read_value(name)
    if options and not (isinstance(value, str) and value):
        raise ConfigurationError(f"{name!r} is not the name of a plug-in, so it has no options")
    return Choice(text, value, options or None)


def _made(value: Any) -> Choice:
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        options = [f":{key}={part}" for key, part in value.items() if key != "name"]
        return Choice("".join([value["name"], *options]), value)
    plain = isinstance(value, str | bool | int | float | list | tuple | Mapping)
    return Choice(str(value) if plain else label(value), value)


def _at(tables: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at ``path``; None if there is none."""
    found: Any = tables
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
