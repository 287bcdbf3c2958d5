"""Files of models of Hugging Face: a folder of this machine, or an id of the hub at a revision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.inference.models.table import file_stamp
from chimera.models.instantiation import first_line

FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.safetensors")
"""Patterns of the files that run no code."""
_COMPONENTS = {
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt", "vocab.json"),
    "image processor": ("preprocessor_config.json", "processor_config.json"),
}
"""Files of which a folder has at least one if it has the component."""


def located(model: str, revision: str | None, folder: Path, needs: Sequence[str] = ("config.json",)) -> str:
    """Return the absolute path of a model's folder, or the id unchanged.

    Parameters
    ----------
    model : a folder, or an id.
    revision : commit of an id.
    folder : folder at which a relative path starts.
    needs : names of files; the folder must contain one of them.

    Raises
    ------
    ConfigurationError : there is no such folder, it contains no model, or an id has no revision.
    """
    whole = folder / Path(model).expanduser()
    if whole.is_dir():
        if not any((whole / name).is_file() for name in needs):
            raise ConfigurationError(
                f"the folder {str(whole)!r} contains no model of transformers: it has no {' or '.join(needs)}"
            )
        return str(whole)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigurationError(f"there is no folder {str(whole)!r} with a model in it")
    if not revision:
        raise ConfigurationError(f'model = {model!r} is an id: set revision = "the commit" (there is no such folder)')
    return model


def check_components(folder: Path, needs: Sequence[str], reason: str) -> None:
    """Raise ConfigurationError if a folder lacks a component that its model needs.

    Parameters
    ----------
    needs : ``tokenizer`` or ``image processor``.
    reason : the part that needs it, for the message.
    """
    for component in needs:
        names = _COMPONENTS[component]
        if not any((folder / name).is_file() for name in names):
            raise ConfigurationError(
                f"{reason} needs {'an' if component[0] in 'aeiou' else 'a'} {component}, but the folder {str(folder)!r} has "
                f"none of {', '.join(names)}: write it with save_pretrained({str(folder)!r})"
            )


def stamp_of(*folders: str) -> str | None:
    """Return the stamp of all files of those folders that are absolute paths; None if there is none."""
    files = [file for one in folders if Path(one).is_absolute() for file in sorted(Path(one).iterdir())]
    files = [file for file in files if file.is_file()]
    return file_stamp(*files) if files else None


def downloaded(model: str, revision: str | None, patterns: Sequence[str] = FILES) -> str:
    """Return the folder of a model: itself, or the folder of an id in the cache; missing files are downloaded.

    Raises
    ------
    ConfigurationError : the files are neither on the hub nor in the cache.
    """
    if Path(model).is_absolute():
        return model
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(model, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the model {model!r}, revision {revision!r}, cannot be downloaded and is not in the cache: "
            f"{first_line(error)}"
        ) from error
