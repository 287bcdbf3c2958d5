"""Bounds on one option of a strategy or model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chimera.core.errors import ConfigurationError

_KEYS = ("least", "most", "one_of")
_FORMS = '{ least = 1, most = 20 }, { one_of = ["a", "b"] }, "any", or the only allowed value'


@dataclass(frozen=True)
class Bound:
    """The allowed values of an option.

    Attributes
    ----------
    least, most : bounds of a number.
    one_of : the allowed values; None: all values within the bounds.
    anything : whether all values are allowed, of any type.
    """

    least: float = -math.inf
    most: float = math.inf
    one_of: tuple[Any, ...] | None = None
    anything: bool = False

    @classmethod
    def of(cls, given: Any, where: str) -> Bound:
        """Return the bound that an administrator wrote; ``where`` names its place for errors.

        Raises
        ------
        ConfigurationError : it has another form, or allows nothing.
        """
        if given == "any":
            return cls(anything=True)
        if not isinstance(given, Mapping):
            return cls(one_of=(given,))
        if not given or any(key not in _KEYS for key in given):
            raise ConfigurationError(f"{where} is a bound such as {_FORMS}")
        if "one_of" in given:
            values = given["one_of"]
            if len(given) > 1 or not isinstance(values, list) or not values:
                raise ConfigurationError(f"{where}: one_of is a list of allowed values, and has no other key beside it")
            return cls(one_of=tuple(values))
        numbers = {key: given.get(key, -math.inf if key == "least" else math.inf) for key in ("least", "most")}
        if not all(_is_number(value) for value in numbers.values()) or numbers["least"] > numbers["most"]:
            raise ConfigurationError(f"{where}: least and most are numbers, and least is at most most")
        return cls(**numbers)

    def allows(self, value: Any) -> bool:
        """Return whether an option may have this value."""
        if self.anything:
            return True
        if self.one_of is not None:
            return any(_same(value, allowed) for allowed in self.one_of)
        return _is_number(value) and self.least <= value <= self.most

    def __str__(self) -> str:
        if self.anything:
            return "any value"
        if self.one_of is not None:
            return " or ".join(map(repr, self.one_of))
        ends = [f"at least {self.least:g}"] * (self.least > -math.inf) + [f"at most {self.most:g}"] * (
            self.most < math.inf
        )
        return " and ".join(ends)


def _is_number(value: Any) -> bool:
    return (type(value) is int) or (isinstance(value, float) and not math.isnan(value))


def _same(value: Any, allowed: Any) -> bool:
    """Return whether two plain values are equal. True is not 1, and a list may arrive as a tuple."""
    if isinstance(value, tuple | list) and isinstance(allowed, tuple | list):
        return len(value) == len(allowed) and all(map(_same, value, allowed))
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
