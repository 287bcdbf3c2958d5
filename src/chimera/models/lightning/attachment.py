"""The run as a Lightning module sees it, inside a block: ``self.trainer`` and ``self.log``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from chimera.core.errors import ConfigurationError
from chimera.models.lightning.hooks import is_lightning
from chimera.models.own_optimizer import Position, RunLength

if TYPE_CHECKING:
    from torch import nn


class Logs(Protocol):
    """An object that accepts the values that a module logs."""

    def log(self, name: str, value: Any, **options: Any) -> None:
        """Accept a value."""

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        """Accept several values."""


class TrainerView:
    """The attributes of Lightning's Trainer that a run has.

    Parameters
    ----------
    owner : name of the module, for errors.
    known : the attributes.
    """

    def __init__(self, owner: str, **known: Any) -> None:
        vars(self).update(known)
        self._owner, self._known = owner, tuple(known)

    @classmethod
    def at(cls, module: nn.Module, position: Position, stage: str) -> TrainerView:
        """Return the view in a step of ``training``, ``validating``, ``testing`` or ``predicting``."""
        stages = {each: each == stage for each in ("training", "validating", "testing", "predicting")}
        return cls(
            type(module).__name__,
            current_epoch=position.epoch,
            global_step=position.step,
            global_rank=position.rank,
            local_rank=position.rank,
            is_global_zero=position.rank == 0,
            sanity_checking=False,
            progress_bar_callback=None,
            logger=None,
            loggers=[],
            **stages,
        )

    @classmethod
    def of_length(cls, module: nn.Module, length: RunLength) -> TrainerView:
        """Return the view in ``configure_optimizers``: the length of the run."""
        known = {
            "max_epochs": None if length.epochs is None else max(round(length.epochs), 1),
            "max_steps": length.steps,
            "estimated_stepping_batches": length.steps,
        }
        return cls(type(module).__name__, **{name: value for name, value in known.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        """Refuse all other attributes of the Trainer."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise ConfigurationError(
            f"{self._owner} reads self.trainer.{name}: no Lightning Trainer runs here; known in this place: "
            f"{', '.join(self._known) or 'nothing, since the length of the run is not known: set epochs or rounds'}"
        )


@contextmanager
def attached(module: nn.Module, view: TrainerView, logs: Logs) -> Iterator[None]:
    """Set ``trainer``, ``log`` and ``log_dict`` of a module, and of the Lightning modules in it, inside the block.

    After the block the module has its former attributes, so that it can be pickled, copied, and used by the real
    Trainer.
    """
    parts: list[Any] = [part for part in module.modules() if is_lightning(part)]
    own = [{key: vars(part)[key] for key in _SET if key in vars(part)} for part in parts]
    trainers = [vars(part).get("_trainer") for part in parts]
    try:
        for part in parts:
            part.trainer = view
            vars(part).update(log=logs.log, log_dict=logs.log_dict)
        yield
    finally:
        for part, before, trainer in zip(parts, own, trainers, strict=True):
            part.trainer = trainer
            for key in _SET:
                vars(part).pop(key, None)
            vars(part).update(before)


_SET = "trainer", "log", "log_dict"  # in Lightning itself, ``trainer`` is a property of the class
