"""Resolution of names in docstrings, in the context of the object that has the docstring."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any


def full_name(thing: Any) -> str:
    """Return the module and the qualified name of a class or function; empty if it has none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""


def imported(path: str) -> Any:
    """Return the object at ``package.module.Class.attribute``.

    Raises
    ------
    LookupError : there is none.
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return attribute(found, parts[length:])
    raise LookupError(path)


def attribute(thing: Any, names: list[str]) -> Any:
    """Return an attribute of an attribute, and so on. A field that only an annotation declares counts as an attribute.

    Raises
    ------
    LookupError : there is none.
    """
    for place, name in enumerate(names):
        if inspect.isclass(thing) and place == len(names) - 1 and _declared(thing, name):
            return thing.__mro__  # no object of its own: any value that is not None
        try:
            thing = inspect.getattr_static(thing, name) if inspect.isclass(thing) else getattr(thing, name)
        except AttributeError:
            raise LookupError(name) from None
    return thing


def _declared(kind: type, name: str) -> bool:
    return any(name in inspect.get_annotations(each) for each in kind.__mro__)


def resolve(name: str, owner: Any) -> Any:
    """Return the object that a name in the docstring of ``owner`` means.

    The name is looked up in the class, in its module, among public names of `chimera`, as a full path, and last among all
    classes and functions of the project, where it must be unique.

    Raises
    ------
    LookupError : there is none, or several.
    """
    for scope in _scopes(owner):
        try:
            return attribute(scope, name.split("."))
        except LookupError:
            continue
    try:
        return imported(name)
    except LookupError:
        pass
    head, *rest = name.split(".")
    found = {id(thing): thing for thing in _everywhere(len(sys.modules)).get(head, ())}
    if len(found) != 1:
        raise LookupError(name)
    return attribute(next(iter(found.values())), rest)


def _scopes(owner: Any) -> Iterator[Any]:
    if inspect.isclass(owner):
        yield owner
    module: ModuleType | None = owner if inspect.ismodule(owner) else sys.modules.get(getattr(owner, "__module__", ""))
    if module is None:
        return
    path = getattr(owner, "__qualname__", "").split(".")[:-1]
    if path and "<locals>" not in path:  # a method: names of its class come first
        yield attribute(module, path)
    yield module
    yield importlib.import_module("chimera")


@lru_cache(maxsize=1)
def _everywhere(_imported: int) -> dict[str, list[Any]]:
    """Return the classes and functions of all imported modules of the project, by name; the argument is their number."""
    found: dict[str, list[Any]] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("chimera.") and module is not None:
            for name, thing in vars(module).items():
                if getattr(thing, "__module__", None) == module_name and callable(thing):
                    found.setdefault(name, []).append(thing)
    return found
