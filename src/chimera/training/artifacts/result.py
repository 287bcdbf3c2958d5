"""The result of a run: the trained model, its metrics and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.scaling import Scaling
from chimera.models.model import Model
from chimera.report.units import format_duration, number
from chimera.training.artifacts.cost import Cost
from chimera.training.artifacts.download import REPORTED, local_copy
from chimera.training.artifacts.frozen_part import check_frozen_part, frozen_part
from chimera.training.artifacts.location import folder_of, path_in_run
from chimera.training.progress.callback import Event

if TYPE_CHECKING:
    import pandas as pd


_TRUTH = ("bits_per_element_up", "bits_per_element_down", "compression_ratio")

_OTHER_FORMATS = (".pt", ".pth", ".bin", ".ckpt", ".onnx", ".npz", ".h5", ".pkl")


@dataclass(frozen=True, repr=False)
class Run:
    """The result of a completed run.

    Attributes
    ----------
    location : the run's folder, or the URL of its files in an object store.
    model : the trained module or estimator, of the type that the user gave.
    trained : the same model as a `Model`, with flat parameters, `predict` and `evaluate`.
    cost : cost of the run.
    metrics : loss and metrics of the model on the test set.
    stopped_by : the limit that ended the run: ``epochs``, ``rounds``, ``max_seconds``, ``max_bytes``, ``target``, ``patience``,
        or ``stop``, see `Trainer.stop`.
    events : events of the run.
    staleness : number of applied gradients by their staleness in updates; empty if the strategy does not report it.
    figures : further figures of the strategy.
    input_scaling, target_scaling : the scaling of the training data; None if it was not standardized. ``model`` takes
        ``input_scaling.apply(rows)``, and ``target_scaling.undo`` returns predicted values in the units of the targets.
    """

    location: Path | str
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
    input_scaling: Scaling | None = None
    target_scaling: Scaling | None = None

    def __repr__(self) -> str:
        """Return folder, strategy, cost and metrics in one line."""
        names, cost = self.names, self.cost
        metrics = [f"{name.replace('_', ' ')} {number(value)}" for name, value in self.metrics.items()]
        took = [counted(cost.rounds, "round"), format_duration(cost.seconds, virtual=cost.virtual_time)]
        what = f"{names['strategy']}, {counted(names['workers'], 'worker')} on {names['engine']}"
        return f"<Run {self.location}: {'; '.join([what, *took, *metrics, f'stopped by {self.stopped_by}'])}>"

    def _repr_html_(self) -> str:
        """Return the figures and learning curves for a notebook."""
        from chimera.report.run_card import run_card

        try:
            return run_card(self.run_dir)
        except ConfigurationError:  # the folder was removed
            return f"<code>{escape(repr(self))}</code>"

    @property
    def run_dir(self) -> Path:
        """The run's folder.

        Raises
        ------
        ConfigurationError : the files are in an object store.
        """
        folder = folder_of(self.location)
        if folder is None:
            raise ConfigurationError(
                f"the files of this run are in {self.location}: give a path, or download them first"
            )
        return folder

    @property
    def report(self) -> Path | str:
        """The path or URL of the run's report."""
        return path_in_run(self.location, "report.html")

    @property
    def lost_workers(self) -> int:
        """Number of workers lost during the run."""
        return sum(event.event == "worker lost" for event in self.events)

    @property
    def history(self) -> pd.DataFrame:
        """The rows of ``metrics.jsonl`` as a data frame."""
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
            **cost.of_tokens(),
            "bytes_up": cost.bytes_up,
            "bytes_down": cost.bytes_down,
            **{key: getattr(cost, key) for key in _TRUTH if getattr(cost, key) is not None},
            "metrics": self.metrics,
            "lost_workers": self.lost_workers,
            "lost_rounds": cost.lost_rounds,
            "stopped_by": self.stopped_by,
            **self.figures,
            **({"staleness": {str(updates): n for updates, n in self.staleness.items()}} if self.staleness else {}),
            "run_dir": str(self.location),
        }

    def save(self, path: str | Path | None = None) -> Path:
        """Write the trained model, by default to ``weights.safetensors`` in the run's folder; return the path.

        Parameters
        ----------
        path : a file of safetensors. For a torch module, the file holds all tensors of its ``state_dict``, tied ones too, so
            that ``load_state_dict`` accepts it. Extra state of a module (``get_extra_state``) is left out, unless it is a
            tensor; ``load_state_dict`` then needs ``strict=False``, and `chimera.load` refuses the file. For adapters of
            ``huggingface``, the file holds only the trained tensors, if the rest is in files. A model with a method
            ``save_pretrained``, such as those of Hugging Face, writes a folder for ``from_pretrained`` if ``path`` is a folder
            or has no suffix.

        Raises
        ------
        ConfigurationError : ``path`` is a folder, and the model has no ``save_pretrained``; or it has the suffix of another
            format.
        RunError : the file cannot be written.
        """
        if path is not None and (Path(path).is_dir() or not Path(path).suffix):
            for saved in (self.trained, self.model):
                if hasattr(saved, "save_pretrained"):
                    saved.save_pretrained(path)
                    return Path(path)
            if Path(path).is_dir():
                raise ConfigurationError(
                    f"{path} is a folder: give the path of a file, such as {path}/model.safetensors"
                )
        if path is not None and Path(path).suffix in _OTHER_FORMATS:
            raise ConfigurationError(
                f"'save' writes safetensors, which readers of {Path(path).suffix} files refuse: name the file "
                f"{Path(path).with_suffix('.safetensors')}, or call torch.save(run.model.state_dict(), {str(path)!r})"
            )
        from chimera.training.artifacts.tensor_file import write_tensors
        from chimera.training.progress.history import atomically

        target = self.run_dir / "weights.safetensors" if path is None else Path(path)
        with atomically(target) as file:
            write_tensors(file, self._tensors(), frozen_part(self.trained))
        return target

    def _tensors(self) -> dict[str, NDArray[Any]]:
        if hasattr(self.model, "state_dict"):
            kept = getattr(self.trained, "kept_tensors", None)
            tensors = self.model.state_dict().items()
            wanted = ((name, value) for name, value in tensors if kept is None or name in kept)
            return {name: _as_array(value) for name, value in wanted if hasattr(value, "detach")}
        return self.trained.layout.split(self.trained.parameters())

    def plot(self, path: str | Path | None = None) -> Path:
        """Plot losses, metrics and the timeline, by default to ``plot.png`` in the run's folder; return the path.

        The suffix of the path selects the format, such as ``.png``, ``.pdf`` or ``.svg``.

        Raises
        ------
        ConfigurationError : the suffix names no known format, or the file cannot be written.
        """
        from chimera.report.plots import save_plot

        target = self.run_dir / "plot.png" if path is None else Path(path)
        with local_copy(self.location, REPORTED) as folder:
            save_plot(folder, target)
        return target


def _as_array(tensor: Any) -> NDArray[Any]:
    """Return a copy of a tensor; bfloat16, which NumPy lacks, becomes float32 and loses nothing."""
    held = tensor.detach().cpu()
    array: NDArray[Any] = (held.float() if str(held.dtype) == "torch.bfloat16" else held).numpy().copy()
    return array


def load_weights(model: Model, path: str | Path) -> None:
    """Load the tensors that `Run.save` wrote into a model of the same architecture.

    Raises
    ------
    ConfigurationError : the file cannot be read, or its tensors do not fit the model.
    """
    from chimera.training.artifacts.tensor_file import read_about, read_tensors

    try:
        tensors = read_tensors(path)
        module: Any = getattr(model, "module", model)
        if hasattr(module, "load_state_dict"):
            import torch

            kept = getattr(model, "kept_tensors", None)
            if kept is not None:
                check_frozen_part(read_about(path), model, str(path))
                if tensors.keys() != set(kept):
                    raise DataError(f"it holds {', '.join(sorted(tensors))}")
            module.load_state_dict(
                {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, strict=kept is None
            )
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
