"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.model import Model
from chimera.report.units import lasted, number
from chimera.training.progress.callback import Event

if TYPE_CHECKING:
    import pandas as pd


_TRUTH = ("bits_per_element_up", "bits_per_element_down", "compression_ratio")


@dataclass(frozen=True)
class Cost:
    """What a run took.

    Attributes
    ----------
    seconds : of training, in the engine's time.
    virtual_time : whether these seconds come from the model of the simulated engine.
    bytes_up, bytes_down : array bytes that the workers sent and received.
    rounds : updates of the global model.
    lost_rounds : rounds whose work a death has undone or cut short, over and above ``rounds``.
    samples : samples processed, over all workers.
    elements_up, packed_up : elements of the vectors (gradients, changes of weights) that workers sent as messages,
        and the bytes of these messages, whatever a codec added included; or of those that they reduced in groups, and the
        bytes of the arrays that they gave to the collectives, what a step had to repeat included.
    elements_down, packed_down : those that they got as messages, weights or their neighbours'; none where they meet in groups.
    epochs : samples divided by the size of the training set.
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

    @property
    def goodput(self) -> float:
        """The share of rounds that were not lost, 0 to 1."""
        return self.rounds / (self.rounds + self.lost_rounds) if self.rounds else 0.0

    @property
    def bits_per_element_up(self) -> float | None:
        """How many bits an element of what workers sent took on average, measured; None if they sent nothing."""
        return 8 * self.packed_up / self.elements_up if self.elements_up else None

    @property
    def bits_per_element_down(self) -> float | None:
        """The same for what they got."""
        return 8 * self.packed_down / self.elements_down if self.elements_down else None

    @property
    def compression_ratio(self) -> float | None:
        """How many times less it weighs what workers sent, or gave to collectives, than the same vectors as float32."""
        return 4 * self.elements_up / self.packed_up if self.packed_up else None


@dataclass(frozen=True, repr=False)
class Run:
    """A run that is over.

    Attributes
    ----------
    run_dir : its folder.
    model : the trained module or estimator; what it was made from decides which.
    trained : the same as a `Model`: flat parameters, `predict`, `evaluate`.
    cost : what it took.
    metrics : loss and metrics on the test set, of the final model.
    stopped_by : the budget or target that ended it: ``epochs``, ``rounds``, ``max_seconds``, ``max_bytes`` or ``target``.
    events : what happened besides rounds.
    staleness : how many of the applied gradients were how many updates old, where the strategy tells.
    figures : what the strategy says of the run besides.
    """

    run_dir: Path
    model: Any
    trained: Model
    cost: Cost
    metrics: dict[str, float]
    stopped_by: str
    names: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return where the run is, what it was, what it took and how good the model is, in one line."""
        names, cost = self.names, self.cost
        metrics = [f"{name.replace('_', ' ')} {number(value)}" for name, value in self.metrics.items()]
        took = [f"{cost.rounds:,} rounds", lasted(cost.seconds, virtual=cost.virtual_time)]
        what = f"{names['strategy']}, {names['workers']} workers on {names['engine']}"
        return f"<Run {self.run_dir}: {'; '.join([what, *took, *metrics, f'stopped by {self.stopped_by}'])}>"

    @property
    def lost_workers(self) -> int:
        """How many workers died on the way."""
        return sum(event.event == "worker lost" for event in self.events)

    @property
    def history(self) -> pd.DataFrame:
        """The rows of ``metrics.jsonl`` as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def summary(self) -> dict[str, Any]:
        """Return the figures of the run as plain values, as ``--json`` prints them."""
        cost = self.cost
        return {
            **self.names,
            "rounds": cost.rounds,
            "epochs": cost.epochs,
            "samples": cost.samples,
            "seconds": cost.seconds,
            "virtual_time": cost.virtual_time,
            "samples_per_second": cost.samples / cost.seconds if cost.seconds else 0.0,
            "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down,
            **{key: getattr(cost, key) for key in _TRUTH if getattr(cost, key) is not None},
            "metrics": self.metrics,
            "lost_workers": self.lost_workers,
            "lost_rounds": cost.lost_rounds,
            "stopped_by": self.stopped_by,
            **self.figures,
            **({"staleness": {str(updates): n for updates, n in self.staleness.items()}} if self.staleness else {}),
            "run_dir": str(self.run_dir),
        }

    def save(self, path: str | Path | None = None) -> Path:
        """Write the trained model's tensors as safetensors, by default to the run's folder.

        A torch module's are those of its ``state_dict``, which takes them back.
        """
        from chimera.training.artifacts.tensor_file import write_tensors
        from chimera.training.progress.history import atomically

        target = self.run_dir / "weights.safetensors" if path is None else Path(path)
        with atomically(target) as file:
            write_tensors(file, self._tensors())
        return target

    def _tensors(self) -> dict[str, NDArray[Any]]:
        if hasattr(self.model, "state_dict"):
            return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.model.state_dict().items()}
        return self.trained.layout.split(self.trained.parameters())

    def plot(self, path: str | Path | None = None) -> Path:
        """Draw losses, metrics and the timeline, by default as ``plot.png`` in the run's folder; return where it is.

        The path's ending says the format, such as ``.png``, ``.pdf`` or ``.svg``.

        Raises
        ------
        ConfigurationError : the ending is none of a known format, or the file cannot be written.
        """
        from chimera.report.plots import save_plot

        target = self.run_dir / "plot.png" if path is None else Path(path)
        save_plot(self.run_dir, target)
        return target


def load_weights(model: Model, path: str | Path) -> None:
    """Give a model, made like the trained one, the tensors that `Run.save` wrote.

    Raises
    ------
    ConfigurationError : the file cannot be read, or its tensors are not those of the model.
    """
    from chimera.training.artifacts.tensor_file import read_tensors

    try:
        tensors = read_tensors(path)
        module: Any = getattr(model, "module", model)
        if hasattr(module, "load_state_dict"):
            import torch

            module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
            return
        layout = model.layout
        if {name: tensor.shape for name, tensor in tensors.items()} != dict(
            zip(layout.names, layout.shapes, strict=True)
        ):
            raise ConfigurationError(f"{path} holds {', '.join(tensors)}; the model has {', '.join(layout.names)}")
        model.load(np.concatenate([tensors[name].ravel() for name in layout.names]))
    except (OSError, DataError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"{path} does not hold the weights of this model: {reason[:300]}") from error
