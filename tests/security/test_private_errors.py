"""Errors and rejections of private workers: they reveal their class, and nothing of the rows that caused them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chimera.core.call import take_work
from chimera.core.errors import ConfigurationError, PrivacyError, TimeLimitError
from chimera.core.message import Encoded
from chimera.data.order import ShardOrder
from chimera.engines.failure import Failure
from chimera.engines.http import wire
from chimera.engines.http.failure import described
from chimera.federation.policy.answers import read_answer
from chimera.models.torch_model import TorchModel
from chimera.testing.poison import MARK, NanOnPoison, digits
from chimera.training.messages.rejection import Rejected
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import NOT_FINITE, PrivateWorker
from chimera.training.worker.learner import Learner

ROW = "row 17: patient Smith"
ESCAPE = "\x1b]0;title\x07"
STEPS, BATCH, FIRST = 4, 8, 40


class Quoting(Learner):
    """A learner whose errors quote a row of its data: in a cause, a note, or a context."""

    def step(self) -> int:
        """Raise an error of the settings that another error has caused."""
        try:
            raise ValueError(ROW)
        except ValueError as cause:
            error = ConfigurationError("the labels do not fit the option classes")
            error.add_note(ROW)
            raise error from cause

    def samples(self) -> int:
        """Raise an error of a limit while another one is handled."""
        try:
            raise ValueError(ROW)
        finally:
            raise TimeLimitError("the call took longer than 3 s")


def worker(learner: type[Learner] = Learner, poisoned: int | None = None) -> PrivateWorker:
    """Return a private worker; the batch of one local step is poisonous."""
    data, order = digits({}).train, ShardOrder(np.arange(64), batch_size=BATCH, seed=0, rank=0)
    if poisoned is not None:
        inputs = data.inputs.copy()
        inputs[order.batch(FIRST + poisoned), 0] = MARK
        data = replace(data, inputs=inputs)
    options = {"optimizer": OptimizerSettings("sgd", {"lr": 0.1}), "privacy": Privacy(clip=0.1, noise=2.0)}
    return PrivateWorker(0, TorchModel(NanOnPoison, seed=0), data, order, learner=learner, **options)


@pytest.mark.parametrize("call", ["step", "samples"])
def test_an_error_leaves_a_private_worker_without_causes_and_notes(call: str) -> None:
    """Engines send the traceback of an error, which holds the texts of its causes."""
    with pytest.raises((ConfigurationError, TimeLimitError)) as caught:
        getattr(worker(Quoting), call)()
    failure = Failure(caught.value, "worker 0", call)
    raised = failure.exception()
    assert failure.summary in ("the labels do not fit the option classes", "the call took longer than 3 s")
    assert ROW not in f"{failure.traceback} {raised} {raised.__cause__} {vars(raised)}"


class Naming(Learner):
    """A learner whose error quotes a text of the driver, such as an unknown device."""

    def step(self) -> int:
        """Raise an error with the text."""
        raise ValueError(ESCAPE)


@pytest.mark.parametrize("at_gate", [False, True])
def test_no_text_of_a_driver_reaches_the_terminal_of_a_node_as_control_characters(
    at_gate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if at_gate:
        failure = described(ValueError(ESCAPE), "delta") | {"traceback": f"Traceback\n  {ESCAPE}"}
        read_answer("delta", wire.pack({"cost": {}, "failure": failure}))
    else:
        with pytest.raises(PrivacyError):
            worker(Naming).step()
    assert ESCAPE not in caplog.text
    assert r"\x1b]0;" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("poisoned", range(STEPS))
def test_a_rejection_does_not_reveal_the_step_whose_batch_is_at_fault(poisoned: int) -> None:
    made = worker(poisoned=poisoned)
    made.take_part(1)
    weights = made._learner._model.parameters().copy()
    take_work()
    answer = made.delta(Encoded("identity", len(weights), (weights,)), steps=STEPS, first=FIRST)
    assert answer == [Rejected(0, FIRST, NOT_FINITE)]
    assert take_work().samples == STEPS * BATCH  # nodes send this number to the driver
