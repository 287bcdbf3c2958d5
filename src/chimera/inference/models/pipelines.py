"""The tasks of the pipelines of transformers, and their options, read from its source.

Reading the source takes 20 ms and loads nothing. An import takes seconds, which a coordinator must not spend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, UnknownNameError, did_you_mean

_TOKENIZER_OPTIONS = frozenset(
    {
        *("add_special_tokens", "max_length", "padding", "padding_side", "pad_to_multiple_of"),
        *("return_token_type_ids", "stride", "truncation"),
    }
)
"""Options of a tokenizer's call, for pipelines that pass their other options to it."""


@dataclass(frozen=True)
class PipelineTask:
    """A task of the pipelines of transformers.

    Attributes
    ----------
    name : its name, also if the user wrote an alias.
    options : names of its options; None if it passes unknown ones on, such as those of ``generate``.
    needs : what must be in the folder of a model, ``tokenizer`` or ``image processor``.
    """

    name: str
    options: frozenset[str] | None
    needs: tuple[str, ...]

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise ConfigurationError if the task lacks one of the given options."""
        for option in sorted(given):
            if self.options is not None and option not in self.options:
                known = ", ".join(sorted(self.options)) or "none"
                raise ConfigurationError(
                    f"kind 'transformers': options.{option} is not an option of the task {self.name!r}"
                    f"{did_you_mean(option, self.options)} known: {known}"
                )


@lru_cache(maxsize=100)  # names come from clients
def task_of(name: str) -> PipelineTask | None:
    """Return a task by its name or alias; None if the source of transformers cannot be understood.

    Raises
    ------
    UnknownNameError : transformers has no such task.
    """
    tables = _tables()
    classes = _classes(tables.get("SUPPORTED_TASKS"))
    if not classes:
        return None
    alias = _literal(tables.get("TASK_ALIASES"), {}).get(name, name)
    if alias not in classes:
        removed = _literal(tables.get("REMOVED_TASKS"), {}).get(name)
        if removed:
            raise ConfigurationError(f"transformers has the task {name!r} no longer: {removed}")
        raise UnknownNameError("task of transformers", name, classes)
    module, _, class_name = classes[alias].rpartition(".")
    found = _class(module.rpartition(".")[2], class_name)
    return None if found is None else PipelineTask(alias, _options(found), tuple(_needs(found)))


@cache
def _source() -> ast.Module:
    return _parsed("__init__")


def _parsed(module: str) -> ast.Module:
    """Return the syntax tree of a module of ``transformers.pipelines``; an empty one if there is no such module."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return ast.Module([], [])
    file = Path(spec.origin).parent / "pipelines" / f"{module}.py"
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ast.Module([], [])


def _tables() -> dict[str, ast.expr]:
    """Return the values of the variables of ``transformers.pipelines``."""
    assigned = (node for node in _source().body if isinstance(node, ast.Assign))
    return {name.id: node.value for node in assigned for name in node.targets if isinstance(name, ast.Name)}


def _literal(value: ast.expr | None, default: Any) -> Any:
    try:
        return default if value is None else ast.literal_eval(value)
    except ValueError:
        return default


def _classes(table: ast.expr | None) -> dict[str, str]:
    """Return the class of each task, as ``module.name``."""
    imports = {
        alias.name: f"{node.module}.{alias.name}"
        for node in _source().body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {}
    for task, entry in _items(table):
        made_by = dict(_items(entry)).get("impl")
        if isinstance(made_by, ast.Name):  # earlier versions name the class itself
            found[task] = imports.get(made_by.id, "")
        else:
            found[task] = str(_literal(made_by, ""))
    return found


def _items(table: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value


def _class(module: str, name: str) -> ast.ClassDef | None:
    return next((node for node in _parsed(module).body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _needs(made_by: ast.ClassDef) -> Iterator[str]:
    for node in made_by.body:
        if isinstance(node, ast.Assign) and _literal(node.value, None) is True:
            names = [name.id for name in node.targets if isinstance(name, ast.Name)]
            if "_load_tokenizer" in names:
                yield "tokenizer"
            if "_load_image_processor" in names:
                yield "image processor"


def _options(made_by: ast.ClassDef) -> frozenset[str] | None:
    """Return the options that the class accepts; None if it accepts any."""
    methods = (node for node in made_by.body if isinstance(node, ast.FunctionDef))
    method = next((node for node in methods if node.name == "_sanitize_parameters"), None)
    if method is None:
        return None
    named = {argument.arg for argument in (*method.args.args[1:], *method.args.kwonlyargs)}
    others = method.args.kwarg
    if others is None:
        return frozenset(named)
    if "tokenize" in others.arg:
        return frozenset(named) | _TOKENIZER_OPTIONS
    read = [_key_read(node, others.arg) for node in ast.walk(method)]
    uses = sum(isinstance(node, ast.Name) and node.id == others.arg for node in ast.walk(method))
    keys = [key for key in read if key is not None]
    return frozenset({*named, *keys}) if len(keys) == uses else None  # else it passes them on as a whole


def _key_read(node: ast.AST, table: str) -> str | None:
    """Return ``key`` if a node is ``table["key"]``, ``"key" in table`` or ``table.get("key")``."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript) and _is_name(node.value, table):
        key = node.slice
    elif isinstance(node, ast.Compare) and _is_name(node.comparators[0], table):
        key = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_name(node.func.value, table):
        key = node.args[0] if node.args else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
