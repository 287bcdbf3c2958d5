"""Differences between the weights in the files of a model and those that its module needs."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from chimera.core.errors import ConfigurationError

_REMEDY = "remove the options in the table 'config' that change it, or set from = \"config\" for new weights"


class OtherWeightsWarning(UserWarning):
    """Weights of a model that are new, or those in its files that are not used."""


def check_weights(path: str, module: Any, found: Mapping[str, Any], *, classes: bool) -> None:
    """Refuse weights that do not fit the layers of a module; warn of those that are new, and of those that are not used.

    Parameters
    ----------
    path : names the model in messages.
    found : what transformers reports of the weights that it has read (``output_loading_info``).
    classes : whether the task has classes, so that its head may be new. The names of its parameters are not those of the
        module's base.

    Raises
    ------
    ConfigurationError : weights have another shape, belong to a layer that the module lacks, or are missing in a layer.
    """
    base = f"{module.base_model_prefix}."
    _check_shapes(path, found, base if classes else "")
    known = {_in_any_layer(name, base) for name in module.state_dict()}
    for name in sorted(found["unexpected_keys"]):
        if _in_any_layer(name, base) in known:  # other layers have such a weight
            raise ConfigurationError(
                f"the model {path!r} holds {name!r}, but its configuration leaves out the layer: {_REMEDY}"
            )
    for name in sorted(found["missing_keys"]):
        if name.startswith(base) and name in _layers(found["missing_keys"]):
            raise ConfigurationError(
                f"the model {path!r} has no weights for {name!r}, which its configuration needs: {_REMEDY}"
            )
    if found["missing_keys"] and not classes:
        raise ConfigurationError(
            f"the model {path!r} has no weights for {min(found['missing_keys'])!r}: it was trained for another task, or an "
            "option in the table 'config' adds them"
        )
    new = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    unused = found["unexpected_keys"]
    parts = [
        *([f"the weights of {_modules(new)} are new, since its files have none that fit"] if new else []),
        *([f"the weights of {_modules(unused)} in its files are not used"] if unused else []),
    ]
    if parts:
        warnings.warn(f"model {path!r}: {'; '.join(parts)}", OtherWeightsWarning, stacklevel=2)


@contextmanager
def without_report() -> Iterator[None]:
    """Suppress the table of transformers that the warning of `check_weights` replaces."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_report)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def _check_shapes(path: str, found: Mapping[str, Any], base: str) -> None:
    """Refuse weights of other shapes whose name begins with ``base``."""
    other = [each for each in found["mismatched_keys"] if each[0].startswith(base)]
    if other:
        name, *shapes = min(other, key=lambda each: each[0])
        stored, made = (tuple(shape) for shape in shapes)
        raise ConfigurationError(
            f"the model {path!r} holds {name!r} of shape {stored}, but its configuration needs {made}: {_REMEDY}"
        )


def _layers(names: Collection[str]) -> set[str]:
    """Return those names that belong to a numbered layer."""
    return {name for name in names if re.search(r"\.\d+\.", name)}


def _in_any_layer(name: str, base: str) -> str:
    """Return a name without the numbers of its layers, and without the prefix ``base``, which files of a base alone lack."""
    return re.sub(r"(^|\.)\d+(?=\.)", r"\1*", name.removeprefix(base))


def _modules(names: Collection[str], shown: int = 3) -> str:
    """Return the names of the modules of parameters, at most ``shown`` of them."""
    modules = sorted({name.rpartition(".")[0] or name for name in names})
    heads = sorted({each for each in modules if not any(each.startswith(f"{other}.") for other in modules)})
    more = f" and {len(heads) - shown} more" if len(heads) > shown else ""
    return ", ".join(heads[:shown]) + more
