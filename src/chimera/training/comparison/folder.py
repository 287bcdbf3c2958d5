"""The folder of a comparison, and the settings of its cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import make_folder
from chimera.core.safe_path import MAX_DOCUMENT_BYTES, read_regular, safe_path
from chimera.training.artifacts.location import folder_of
from chimera.training.comparison.grid import Cell
from chimera.training.comparison.stored_grid import GRID, StoredGrid
from chimera.training.experiment.experiment import Experiment
from chimera.training.progress.history import write_atomically


def choose_folder(out: str | Path | None, experiment: Experiment, *, resume: bool) -> Path | StoredGrid:
    """Return the folder of a comparison: ``out``, by default a new one below ``runs/``; with ``resume`` the last one there.

    With the URL of an object store, return the comparison there.

    Raises
    ------
    ConfigurationError : ``out`` is not empty, holds no comparison to resume, or is a URL that cannot be used.
    StoreError : the object store cannot be read.
    """
    if out is not None:
        path = folder_of(out)
        if path is None:
            stored = StoredGrid(str(out))
            stored.begin(resume=resume)
            return stored
        if path.is_dir() and any(path.iterdir()) and not (resume and (path / GRID).exists()):
            reason = (
                "holds no comparison to resume: choose" if resume else "is not empty: resume its comparison, or choose"
            )
            raise ConfigurationError(f"{path} {reason} another folder")
        return path
    named = experiment.tables["train"].get("name") or Path(experiment.source).stem
    name = "compare-" + (re.sub(r"[^\w.-]+", "-", named).strip("-.") or "run")
    taken = {int(match[1] or 1) for path in Path("runs").glob(f"{name}*") if (match := _numbered(name, path.name))}
    number = max(taken, default=1) if resume else max(taken, default=0) + 1
    return Path("runs") / (name if number == 1 else f"{name}-{number}")


def _numbered(name: str, found: str) -> re.Match[str] | None:
    return re.fullmatch(rf"{re.escape(name)}(?:-(\d+))?", found)


def begin_folder(folder: Path, cells: Sequence[Cell]) -> None:
    """Create the folder and write the settings of each cell; reject existing cells with other settings, or that are links."""
    wanted = {cell.name: cell.experiment.to_toml() for cell in cells}
    path = safe_path(folder, GRID)  # written before any run starts
    for name in wanted:
        safe_path(folder, name)  # the folder may be another user's, and a run writes into the folder of its cell
    known: Mapping[str, str] = {}
    if path.exists():
        try:
            known = msgspec.json.decode(read_regular(path, MAX_DOCUMENT_BYTES), type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}; choose another folder") from error
    for name, text in wanted.items():
        if name in known and known[name] != text:
            line = next((line for line in text.splitlines() if line not in known[name].splitlines()), "less")
            raise ConfigurationError(
                f"{folder / name} has a run with other settings (now {line}): use the same settings, or choose another folder"
            )
    try:
        make_folder(folder)
    except OSError as error:
        raise RunError(f"the folder {folder} cannot be created: {error.strerror}") from error
    write_atomically(path, msgspec.json.format(msgspec.json.encode({**known, **wanted})))
