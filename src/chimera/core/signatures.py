"""The parameters of the factories of plug-ins, with their types."""

from __future__ import annotations

import contextlib
import inspect
import keyword
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any


def parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a factory by the name of their option, with those of base classes that get its ``**options``.

    The option of a parameter ``from_`` is ``from``: a keyword of Python cannot name a parameter.
    """
    return dict(_parameters_of(factory))


@lru_cache(maxsize=256)  # each of many workers creates a codec
def _parameters_of(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for signed in _signatures(factory):
        own = dict(inspect.signature(signed).parameters)
        if inspect.isclass(factory) and own and signed is not factory:
            del own[next(iter(own))]  # self, which may have another name
        found = {k: p for k, p in found.items() if p.kind is not p.VAR_KEYWORD}
        options = {_option_of(name): parameter for name, parameter in own.items()}
        found |= {option: parameter for option, parameter in options.items() if option not in found}
    return found


def _option_of(parameter: str) -> str:
    word = parameter.removesuffix("_")
    return word if keyword.iskeyword(word) else parameter


def _signatures(factory: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return the callables whose parameters count: the factory, or a class's constructor and those it passes options to."""
    if not inspect.isclass(factory):
        return [factory]
    signed = []
    for kind in factory.__mro__[:-1]:
        if "__init__" in vars(kind):
            signed.append(kind.__init__)  # type: ignore[misc]
            if all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(kind.__init__).parameters.values()):  # type: ignore[misc]
                break
    return signed or [factory]


@lru_cache(maxsize=256)
def hints_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of parameters, by name."""
    hints: dict[str, Any] = {}
    for signed in reversed(_signatures(factory)):
        with contextlib.suppress(NameError, TypeError):  # annotations that only a type checker can see
            hints |= typing.get_type_hints(signed)
    return hints
