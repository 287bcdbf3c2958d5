"""Paths and modules that an experiment file names, which start at its folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chimera.core.named_places import is_named_place
from chimera.core.user_code import make_importable

_IN_A_PY_FILE = re.compile(r"([^:]*\.py):([\w.]+)")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_PLUGINS = ("huggingface", "instructions")  # plug-ins that accept names of the hub as paths
_IN_A_MODULE = re.compile(r"([A-Za-z_][\w.]*):[\w.]+")


def is_path(key: str, value: str) -> bool:
    """Return whether an option's value is a local path, judging by the option's name. URLs and named places are not."""
    return (
        (key in ("path", "tokenizer", "identity") or key.endswith("_path"))
        and "://" not in value
        and not is_named_place(value)
    )


def anchored(tables: Mapping[str, Any], folder: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the tables with absolute paths, so that they do not depend on the working folder; make its modules importable.

    Tables whose name is not in ``names`` are unchanged. Names of the hub are unchanged, too: paths without a file, in options
    of plug-ins that accept such names.
    """

    def walk(key: str, value: Any, plugin: Any = None) -> Any:
        if isinstance(value, Mapping):
            return {k: walk(k, v, value.get("name")) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(key, each, plugin) for each in value]
        if not isinstance(value, str) or is_named_place(value):
            return value
        if in_a_file := _IN_A_PY_FILE.fullmatch(value):  # a plug-in, in any option
            return f"{folder / Path(in_a_file[1]).expanduser()}:{in_a_file[2]}"
        if in_a_module := _IN_A_MODULE.fullmatch(value):
            make_importable(in_a_module[1], folder)
        if not is_path(key, value):
            return value
        place = folder / Path(value).expanduser()
        named = plugin in _HUB_PLUGINS and _HUB_NAME.fullmatch(value) and not place.exists()
        return value if named else str(place)

    return {name: walk(name, table) if name in names else table for name, table in tables.items()}
