"""Training from a script or a notebook: `chimera.train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec

from chimera.cli.display import Display
from chimera.cli.notebook_display import NotebookDisplay, in_notebook
from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.training.artifacts.result import Run
from chimera.training.trainer import Trainer

P = ParamSpec("P")

_OF_MODEL = ("loss", "metrics", "step")
_OF_OPTIMIZER = ("lr", "momentum", "weight_decay", "schedule")
_DOC = """Train ``model`` on ``data``, show the progress, and return the result.

The arguments are those of `Trainer`. On a terminal the progress is a live view, in a notebook a line that is updated. In a
pipe, or with ``progress=False``, there is none.

"""


def _trains(trainer_of: Callable[P, Trainer]) -> Callable[P, Run]:
    """Return a function that trains with a new trainer; it has the signature and the documented parameters of the trainer."""
    signature = inspect.signature(trainer_of)

    def train(*args: P.args, **options: P.kwargs) -> Run:
        _check_names(options, signature.parameters)
        trainer = trainer_of(*args, **options)
        display = _display(trainer.title) if trainer.progress else Display()
        trainer.callbacks.append(display)
        with display:
            run = trainer.fit()
        display.finish(run.summary(), run.report)
        return run

    train.__signature__ = signature.replace(return_annotation="Run")  # type: ignore[attr-defined]
    train.__doc__ = _DOC + (inspect.getdoc(trainer_of) or "").partition("\n\n")[2].partition("\n\nAttributes\n")[0]
    train.__qualname__ = train.__name__
    return train


def _check_names(options: Iterable[str], known: Collection[str]) -> None:
    for name in options:
        if name in known:
            continue
        if name in _OF_MODEL:
            raise ConfigurationError(
                f"{name!r} is an option of the model: chimera.TorchModel(module, {name}=...) for a module, "
                f'{{"name": ..., "{name}": ...}} for a named model'
            )
        if name in _OF_OPTIMIZER:
            raise ConfigurationError(
                f'{name!r} is an option of the optimizer: optimizer={{"name": ..., "{name}": ...}}'
            )
        raise ConfigurationError(
            f"chimera.train has no option {name!r}{did_you_mean(name, known)} known: {', '.join(known)}"
        )


def _display(title: str) -> Display:
    return NotebookDisplay(title) if in_notebook() else Display.on_terminal(title)


train = _trains(Trainer)
