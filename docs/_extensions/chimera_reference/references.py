"""Handlers of Sphinx for docstrings, and for references to types that have no page."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import sys
import typing
from typing import Any

from sphinx.util.typing import stringify_annotation

from chimera.core.signatures import hints_of
from chimera_reference.api import as_restructured_text
from chimera_reference.api_names import documented
from chimera_reference.names import full_name, imported, resolve

_SHORT = {"nn": "torch.nn", "np": "numpy", "pd": "pandas", "ProcessGroup": "torch.distributed.ProcessGroup"}
"""Names that modules import inside functions, or for type checkers only."""


def process_docstring(_app: Any, what: str, _name: str, thing: Any, _options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring by the same text as reStructuredText."""
    if what == "module" or not lines:
        return
    owner = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
    text = "\n".join(lines)
    lines[:] = as_restructured_text(text.rstrip(), owner, _types(owner)).split("\n")


def _types(owner: Any) -> dict[str, str]:
    """Return the types of a class's parameters and fields as text; Sphinx itself finds those of functions only."""
    if not inspect.isclass(owner):
        return {}
    hints = dict(hints_of(typing.cast(Any, owner)))
    with contextlib.suppress(NameError, TypeError):  # annotations that only a type checker can see
        hints = {**typing.get_type_hints(owner), **hints}
    return {name: stringify_annotation(hint, "smart") for name, hint in hints.items()}


def resolve_type(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Return a reference to a type of an annotation: a link if the type is documented under another name, else its name.

    A name that means nothing stays unresolved, which is a warning.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    owner = ".".join(part for part in (node.get("py:module"), node.get("py:class")) if part)
    try:
        thing = _meaning(target, owner)
    except LookupError:
        return contnode if _is_an_alias(target) else None
    known = documented().get(full_name(thing) if callable(thing) else target)
    if known and known != target:
        found = env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", known, node, contnode)
        return found or contnode
    return contnode


def _meaning(target: str, owner: str) -> Any:
    """Return the object that the name of a type means: a built-in one, one of a module, or one of the project."""
    if hasattr(builtins, target):
        return getattr(builtins, target)
    first, _, rest = target.partition(".")
    try:
        return imported(f"{_SHORT.get(first, first)}.{rest}".rstrip("."))
    except LookupError:
        return resolve(target, imported(owner) if owner else builtins)


def _is_an_alias(name: str) -> bool:
    """Return whether a module of the project defines or imports this name, such as a type alias."""
    return any(name in vars(module) for key, module in list(sys.modules.items()) if key.startswith("chimera."))
