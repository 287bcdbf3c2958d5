"""The model that nodes make: a registered name with plain options, or the name of a folder at the node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chimera.core.errors import CodeRefusedError, ConfigurationError
from chimera.core.signatures import parameters_of
from chimera.models.model import MODELS
from chimera.training.plugin import label, named

FOLDER = "folder"
"""The model whose files the owner of a node has put on the node."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.+-]{0,99}")
_READS_FILES = ("path", "folder")


def model_table(model: Any) -> dict[str, Any]:
    """Return the table of a model that nodes can make, without what only the driver needs.

    Raises
    ------
    ConfigurationError : the model is an object, or its name or an option names code, a file or an address.
    """
    if not isinstance(model, str | Mapping):
        raise ConfigurationError(
            f"the model {label(model)!r} is a Python object: nodes make the model themselves, so give the name of a model that "
            "they have installed"
        )
    name, options = named(model)
    if name == FOLDER:
        options.pop("path", None)  # path of the driver's own copy
    check_model_table({"name": name, **options})
    return plain_table({"name": name, **options})


def plain_table(plugin: Any) -> dict[str, Any]:
    """Return the table of a plug-in as plain values with lists, as in a message; of an object, its name only."""
    if not isinstance(plugin, str | Mapping):
        return {"name": label(plugin)}
    name, options = named(plugin)
    return {"name": name, **{key: _plain(value) for key, value in options.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str | bool | int | float) else label(value)


def check_model_table(table: Mapping[str, Any]) -> None:
    """Refuse a table that names code, a file or an address anywhere.

    Raises
    ------
    CodeRefusedError : the table names one of these.
    """
    name, options = named(table)
    _check_words(name, "the model's name")
    if name == FOLDER:
        if set(options) != {FOLDER} or not isinstance(options[FOLDER], str):
            raise ConfigurationError('model "folder" has one option for nodes: folder = NAME')
    elif reading := [option for option in parameters_of(MODELS.find(name).factory) if option in _READS_FILES]:
        raise CodeRefusedError(
            f"the model {name!r} is refused: it reads files (option {reading[0]!r}); the owner of a node can put it into a "
            'folder of the table [models], for model = { name = "folder", folder = NAME }'
        )
    _check_words(options, f"model {name!r}")


def _check_words(value: Any, where: str) -> None:
    """Refuse strings that could be names by path, paths or URLs."""
    if isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise CodeRefusedError(f"{value[:80]!r} is refused: {where} must not name code, a file or an address")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _check_words(key, where)
            _check_words(part, f"{where}, option {key!r:.80}")
    elif isinstance(value, list | tuple):
        for part in value:
            _check_words(part, where)
    elif value is not None and not isinstance(value, bool | int | float):
        raise ConfigurationError(f"{where}: nodes accept plain values only, not {type(value).__name__}")
