"""What a run tells those who monitor it: progress, events, and the hooks that receive them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from chimera.core.errors import RunError

if TYPE_CHECKING:
    from chimera.models.model import Model
    from chimera.training.artifacts.result import Run


class Progress(msgspec.Struct, frozen=True):
    """Where a run stands.

    Attributes
    ----------
    rounds, epochs, samples : how far it came; epochs are passes over the whole data, samples count all workers.
    seconds : since training began, in the engine's time.
    virtual_time : whether these seconds come from the model of the simulated engine.
    bytes_up, bytes_down : what the workers sent and received.
    loss : mean training loss since the last progress, if a step was taken.
    metrics : the last evaluation on the test set (``loss``, ``accuracy``, ...); empty before the first.
    fraction : how much of the budget is used, 0 to 1, if the run has one that ends.
    workers : the state of each worker by name: ``running`` or ``lost``.
    samples_by_worker : what each worker processed since this process began; what a way back made worthless counts too.
    fill : how full each queue before the workers is, 0 to 1, by name; empty where their data is in memory.
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


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a run besides rounds, such as the loss of a worker; a line of ``events.jsonl``."""

    event: str
    seconds: float
    round: int
    actor: str = ""
    detail: str = ""


class Callback:
    """Base of all callbacks; override what you need. Called by the trainer, in the driver, between rounds."""

    def on_wait(self, what: str) -> None:
        """Training has not begun: the run waits for ``what``, such as the data or the workers."""

    def on_start(self, progress: Progress) -> None:
        """Workers are up; training begins (or goes on from a checkpoint)."""

    def on_progress(self, progress: Progress) -> None:
        """Rounds were finished: at least at every ``log_every`` and every evaluation."""

    def on_model(self, model: Model, last: bool) -> None:
        """The global model was evaluated; ``model`` is the driver's copy, to be read only. After the ``last`` all is over."""

    def on_event(self, event: Event) -> None:
        """Something happened besides rounds."""

    def on_end(self, run: Run) -> None:
        """The run is over and its files are written."""


def tell(callbacks: Iterable[Callback], hook: str, *args: Any) -> None:
    """Call one hook of each callback. What it raises ends the run, with a note that names the callback and the hook.

    Raises
    ------
    RunError : a hook raised StopIteration, which a generator on the way would take for its own end.
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
