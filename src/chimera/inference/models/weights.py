"""A check that the files of a model of transformers hold all of its weights."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from chimera.core.errors import ConfigurationError

_SEED = 0
"""Seed of the weights that are drawn at random, the same on all workers."""
_MAX_NAMES = 6  # names in an error message
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def all_from_files(model: str, allowed: Sequence[str] | None = None) -> Iterator[None]:
    """Load a model of transformers in the context, and check that its files hold all of its weights.

    transformers draws missing weights, and weights of another shape, at random. Each worker would draw other ones.

    Parameters
    ----------
    model : name of the model for messages.
    allowed : names of weights that may be missing, or patterns such as ``classifier.*``; they are the same on all workers.
        None: no weights may be missing, and the table of the model has no key that permits it.

    Raises
    ------
    ConfigurationError : at the end of the context, if other weights are missing or have another shape.
    """
    import torch

    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]), _reports() as reports:
        torch.default_generator.manual_seed(_SEED)
        yield
    names = [name for report in reports for name in _incomplete(report, allowed or ())]
    if names:
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        advice = ", or name the weights in allow_missing to draw them at random" if allowed is not None else ""
        raise ConfigurationError(
            f"the files of the model {model!r} do not hold the weights {', '.join(names[:_MAX_NAMES])}{more}: "
            f"use a model that was trained for this task{advice}"
        )


@contextlib.contextmanager
def _reports() -> Iterator[list[Mapping[str, Any]]]:
    """Collect the loading reports of all models that transformers loads in the context.

    A pipeline loads its model itself and does not return the report, which `from_pretrained` returns on request only.
    """
    from transformers import PreTrainedModel

    original = PreTrainedModel.__dict__["from_pretrained"]
    reports: list[Mapping[str, Any]] = []

    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        with_report = kwargs.pop("output_loading_info", False)
        # Without it, a weight of another shape is an exception that does not name the weight.
        kwargs["ignore_mismatched_sizes"] = True
        module, report = original.__func__(cls, *args, output_loading_info=True, **kwargs)
        reports.append(report)
        return (module, report) if with_report else module

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)
    try:
        yield reports
    finally:
        PreTrainedModel.from_pretrained = original


def _incomplete(report: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    """Return the names of weights that are missing or have another shape, with these shapes, except the allowed ones."""
    shapes = {
        name: f" (shape {tuple(found)}, not {tuple(needed)})" for name, found, needed in report["mismatched_keys"]
    }
    names = sorted({*report["missing_keys"], *shapes})
    return [
        f"{name}{shapes.get(name, '')}" for name in names if not any(fnmatchcase(name, pattern) for pattern in allowed)
    ]
