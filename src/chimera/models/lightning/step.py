"""A Lightning module as a step: its own training and validation steps, its log, and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chimera.core.batch import Batch, samples_in
from chimera.core.errors import ConfigurationError
from chimera.models.lightning import hooks
from chimera.models.lightning.attachment import TrainerView, attached
from chimera.models.lightning.configured import own_optimizer
from chimera.models.lightning.log import EvaluationLog, NoLog, reset_metrics
from chimera.models.own_optimizer import OwnOptimizer, Position, RunLength
from chimera.models.step import Outcome, found_in, outcome_of

if TYPE_CHECKING:
    from torch import nn

_STEPS = {"validation_step": "validating", "test_step": "testing", "training_step": "validating"}


class LightningStep:
    """The steps of a Lightning module. An evaluation calls ``validation_step``, else ``test_step``, else ``training_step``.

    Parameters
    ----------
    module : the module, which is not kept.

    Raises
    ------
    ConfigurationError : the module needs a step that only Lightning's Trainer takes, see
    `chimera.models.lightning.hooks`.
    """

    whole = True

    def __init__(self, module: nn.Module) -> None:
        hooks.check(module)
        if hooks.has_own(module, "configure_model"):
            module.configure_model()  # type: ignore[operator]
        self._position = Position()
        self._log: EvaluationLog | None = None  # the log of the evaluation in progress
        self._batches = 0  # batches of that evaluation
        self._evaluated = next(name for name in _STEPS if hooks.has_own(module, name))
        left_out = hooks.not_called(module)
        self.notice = f"{type(module).__name__}: not called in a run: {', '.join(left_out)}" if left_out else None

    def locate(self, position: Position) -> None:
        """Set the position of the next steps in the run."""
        self._position = position

    def __call__(self, module: nn.Module, batch: Batch) -> Outcome:
        """Return loss and outputs of a training step or, inside `evaluating`, of an evaluation step.

        Raises
        ------
        ConfigurationError : the step has no loss.
        """
        return self._training(module, batch) if self._log is None else self._evaluation(module, batch, self._log)

    @contextmanager
    def evaluating(self, module: nn.Module) -> Iterator[dict[str, float]]:
        """Collect the values logged inside the block in a dictionary, which is complete after the block."""
        reset_metrics(module)
        figures: dict[str, float] = {}
        self._log, self._batches = EvaluationLog(type(module).__name__), 0
        stage = "test" if self._evaluated == "test_step" else "validation"
        try:
            with attached(module, TrainerView.at(module, self._position, _STEPS[self._evaluated]), self._log):
                _call_hook(module, f"on_{stage}_epoch_start")
                yield figures
                self._log.begin(1)
                _call_hook(module, f"on_{stage}_epoch_end")
            figures.update(self._log.figures())
        finally:
            self._log = None
            reset_metrics(module)

    def predict(self, module: nn.Module, inputs: Any) -> Any:
        """Return the result of the module's own ``predict_step``; None if it has none, or it returns None."""
        if not hooks.has_own(module, "predict_step"):
            return None
        with attached(module, TrainerView.at(module, self._position, "predicting"), NoLog()):
            return hooks.call(module.predict_step, _transferred(module, inputs), 0)  # type: ignore[arg-type]

    def own_optimizer(self, module: nn.Module, length: RunLength) -> OwnOptimizer | None:
        """Return the optimizer of ``configure_optimizers``, which reads the length of the run from ``self.trainer``.

        Raises
        ------
        ConfigurationError : there are several optimizers; see also `chimera.models.lightning.configured`.
        """
        if not hooks.has_own(module, "configure_optimizers"):
            return None
        with attached(module, TrainerView.of_length(module, length), NoLog()):
            return own_optimizer(module.configure_optimizers(), module)  # type: ignore[operator]

    def _training(self, module: nn.Module, batch: Batch) -> Outcome:
        with attached(module, TrainerView.at(module, self._position, "training"), NoLog()):
            batch = _transferred(module, batch)
            result = hooks.call(module.training_step, batch, self._position.batch)  # type: ignore[arg-type]
        reset_metrics(module)  # otherwise they would accumulate without end, since a run does not read them
        return outcome_of(result, f"training_step of {type(module).__name__}")

    def _evaluation(self, module: nn.Module, batch: Batch, log: EvaluationLog) -> Outcome:
        import torch

        log.begin(samples_in(batch))
        batch = _transferred(module, batch)
        found = found_in(hooks.call(getattr(module, self._evaluated), batch, self._batches))
        self._batches += 1
        if found is not None and found.loss.numel() == 1:
            return found
        loss = log.loss()
        if loss is None:
            raise ConfigurationError(
                f"{self._evaluated} of {type(module).__name__} returned no loss, and logged none: return the loss, or call "
                "self.log('val_loss', loss)"
            )
        return Outcome(torch.as_tensor(loss), None if found is None else found.outputs)


def _transferred(module: Any, batch: Batch) -> Batch:
    """Return a batch after the hooks that Lightning calls around its transfer to the device."""
    for name in ("on_before_batch_transfer", "on_after_batch_transfer"):
        if hooks.has_own(module, name):
            batch = getattr(module, name)(batch, 0)
    return batch


def _call_hook(module: Any, name: str) -> None:
    if hooks.has_own(module, name):
        getattr(module, name)()
