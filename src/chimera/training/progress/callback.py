"""Callbacks: hooks that receive the progress and the events of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from chimera.core.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from chimera.models.model import Model
    from chimera.training.artifacts.result import Run


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run.

    Attributes
    ----------
    rounds, epochs, samples : numbers of completed rounds, epochs and samples. Epochs are passes over the whole data; samples
        are those of all workers.
    seconds : seconds since training started, on the engine's clock.
    virtual_time : whether these seconds are virtual (engine ``simulated``).
    bytes_up, bytes_down : bytes that the workers sent and received.
    loss : mean training loss since the last progress; None if no step was taken.
    metrics : metrics of the last evaluation on the test set (``loss``, ``accuracy``, ...); empty before the first one.
    fraction : used fraction of the budget, 0 to 1; None if it is not known.
    workers : state of each worker by name: ``running`` or ``lost``.
    samples_by_worker : samples that each worker processed since this process started, lost rounds included.
    tokens, flops : tokens of all workers, and floating-point operations by the model's formula, lost rounds included, as last
        reported; 0 if the model does not report them.
    peak_flops : peak of all workers together in FLOPs per second; None if it is not known.
    fill : fill of each worker's input queue, 0 to 1, by name; empty where the data is in memory.
    """

    rounds: int
    epochs: float
    samples: int
    seconds: float
    bytes_up: int
    bytes_down: int
    loss: float | None
    metrics: dict[str, float]
    fraction: float | None
    workers: dict[str, str]
    samples_by_worker: dict[str, int] = {}
    fill: dict[str, float] = {}
    virtual_time: bool = False
    tokens: int = 0
    flops: float = 0.0
    peak_flops: float | None = None


class Event(msgspec.Struct, frozen=True):
    """An event of a run, such as the loss of a worker; one line of ``events.jsonl``."""

    event: str
    seconds: float
    round: int
    actor: str = ""
    detail: str = ""


class Callback:
    """Base class of callbacks. Override the hooks that you need. The trainer calls them in the driver, between rounds."""

    def on_wait(self, what: str) -> None:
        """Called before training starts, when the run waits for ``what``, such as the data or the workers."""

    def on_data(self, description: str) -> None:
        """Called before training starts, when the data was read, with one line that describes it."""

    def on_notice(self, notice: str) -> None:
        """Called before training starts with a line about the run, such as which optimizer steps where."""

    def on_start(self, progress: Progress) -> None:
        """Called when the workers are up and training starts, or resumes from a checkpoint."""

    def on_progress(self, progress: Progress) -> None:
        """Called after rounds are completed: at least every ``log_every`` rounds and at each evaluation."""

    def on_model(self, model: Model, last: bool) -> None:
        """Called after each evaluation with the driver's copy of the model. Do not change it.

        ``last``: the run is over, and the model is the one that the run returns.
        """

    def on_event(self, event: Event) -> None:
        """Called for each event."""

    def on_end(self, run: Run) -> None:
        """Called when the run is over and its files are written."""


def checked_callbacks(given: Any) -> list[Callback]:
    """Return the callbacks of a user's list.

    Raises
    ------
    ConfigurationError : it is not a list, or an element of it lacks hooks.
    """
    if isinstance(given, str | Mapping | type) or not isinstance(given, Iterable):
        raise ConfigurationError(f"callbacks is a list: write callbacks=[...] with objects, not {given!r}")
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    callbacks = list(given)
    for each in callbacks:
        if isinstance(each, type) or not all(callable(getattr(each, hook, None)) for hook in hooks):
            raise ConfigurationError(
                f"{each!r} is not a callback: give an object of a class derived from chimera.Callback"
            )
    return callbacks


def notify(callbacks: Iterable[Callback], hook: str, *args: Any) -> None:
    """Call a hook of each callback. An exception ends the run; a note on it names the callback and the hook.

    Raises
    ------
    RunError : a hook raised StopIteration, which would end a generator that called it.
    """
    for callback in callbacks:
        where = f"the callback {type(callback).__name__} in {hook}"
        try:
            getattr(callback, hook)(*args)
        except StopIteration as error:
            raise RunError(f"{where} raised StopIteration: use next(iterator, default), or catch it there") from error
        except Exception as error:
            error.add_note(f"raised by {where}")
            raise
