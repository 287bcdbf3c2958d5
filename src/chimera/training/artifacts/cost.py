"""The cost of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chimera.training.progress.peak import utilisation


@dataclass(frozen=True)
class Cost:
    """The cost of a run.

    Attributes
    ----------
    seconds : seconds of training, on the engine's clock.
    virtual_time : whether these seconds are virtual (engine ``simulated``).
    bytes_up, bytes_down : array bytes that the workers sent and received.
    rounds : updates of the global model.
    lost_rounds : rounds that a loss undid or interrupted, in addition to ``rounds``.
    samples : samples processed by all workers.
    elements_up, packed_up : elements of the vectors (gradients, changes of weights) that workers sent, and bytes of their
        messages, overhead of codecs included. For collectives: elements of the reduced vectors, and bytes of the arrays
        passed to collectives, repeated steps included.
    elements_down, packed_down : the same for messages that workers received; 0 for collectives.
    epochs : samples divided by the size of the training set.
    tokens : tokens of the batches of all workers, without padding, and with lost rounds; 0 if the model does not report them.
    flops : floating-point operations of these batches by the model's formula, see `work_on_tokens`.
    peak_flops : peak of all workers together, in FLOPs per second; None if it is not known.
    """

    seconds: float
    bytes_up: int
    bytes_down: int
    rounds: int
    samples: int
    lost_rounds: int
    elements_up: int
    packed_up: int
    elements_down: int
    packed_down: int
    epochs: float
    virtual_time: bool
    tokens: int = 0
    flops: float = 0.0
    peak_flops: float | None = None

    @property
    def mfu(self) -> float | None:
        """The model FLOP utilisation, 1 at the peak; None if the peak or the FLOPs are not known."""
        return utilisation(self.flops, self.seconds, self.peak_flops)

    @property
    def goodput(self) -> float:
        """The fraction of rounds that were not lost, 0 to 1."""
        return self.rounds / (self.rounds + self.lost_rounds) if self.rounds else 0.0

    @property
    def bits_per_element_up(self) -> float | None:
        """Mean bits per element that workers sent, as measured; None if they sent nothing."""
        return 8 * self.packed_up / self.elements_up if self.elements_up else None

    @property
    def bits_per_element_down(self) -> float | None:
        """Mean bits per element that workers received, as measured; None if they received nothing."""
        return 8 * self.packed_down / self.elements_down if self.elements_down else None

    @property
    def compression_ratio(self) -> float | None:
        """Size of the sent vectors as float32, divided by the bytes that workers sent; None if they sent nothing."""
        return 4 * self.elements_up / self.packed_up if self.packed_up else None

    def of_tokens(self) -> dict[str, Any]:
        """Return the figures of models that report the tokens and FLOPs of a batch; empty for others."""
        if not self.tokens:
            return {}
        rate = self.tokens / self.seconds if self.seconds else 0.0
        figures = {"tokens": self.tokens, "tokens_per_second": rate, "flops": self.flops}
        return figures if self.mfu is None else {**figures, "peak_flops": self.peak_flops, "mfu": self.mfu}
