"""The model ``folder``: described by a file ``model.toml`` that the owner of a machine has put into a folder there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import safe_path
from chimera.core.toml import read_toml
from chimera.models.conversion import build_model
from chimera.models.model import MODELS, Model, Task

FILE = "model.toml"
_IN_A_FILE = re.compile(r"([^:]*\.py):([\w.]+)")


@MODELS.register("folder")
def folder(
    *,
    folder: str,
    path: str | None = None,
    input_shape: tuple[int, ...],
    count_outputs: Callable[[], int],
    task: Task,
    seed: int = 0,
) -> Model:
    """A model from a folder that the owner of this machine provides (docs/how-to/federation-data.md).

    Parameters
    ----------
    folder : the name under which nodes have the folder, in the table ``[models]`` of each.
    path : the folder on this machine. Its file ``model.toml`` has the keys of the table ``[model]`` of an experiment; names of
        Python files and paths in it start at the folder.
    input_shape, count_outputs, task, seed : of the data and the run.
    """
    if path is None:
        raise ConfigurationError(f"model 'folder': set path, the folder of {folder!r} on this machine")
    place = Path(path).expanduser()
    if not place.is_dir():
        raise ConfigurationError(f"model 'folder': there is no folder {path!r}")
    file = safe_path(place, FILE)
    try:
        table = read_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    name = table.pop("name", None)
    if not isinstance(name, str) or name == "folder":
        raise ConfigurationError(f'{file} needs name = "...", the name of a model')
    options = {key: _anchored(key, value, place) for key, value in table.items()}
    return build_model(
        _anchored("name", name, place), options, input_shape=input_shape, outputs=count_outputs, task=task, seed=seed
    )


def _anchored(key: str, value: Any, place: Path) -> Any:
    if not isinstance(value, str):
        return value
    if in_a_file := _IN_A_FILE.fullmatch(value):
        return f"{safe_path(place, in_a_file[1])}:{in_a_file[2]}"
    return str(safe_path(place, value)) if key == "path" else value
