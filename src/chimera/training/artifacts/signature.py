"""The signature of a trained model: its inputs, outputs and scaling, enough to use the model without its training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import MAX_DOCUMENT_BYTES, read_regular, safe_path
from chimera.data.iterable import IterableSamples
from chimera.data.samples import SampleDataset
from chimera.data.scaling import Scaling
from chimera.data.split import Split
from chimera.models.model import Task
from chimera.training.progress.history import write_atomically

FILE = "signature.json"


class Signature(msgspec.Struct, frozen=True):
    """Shapes, names and scaling of a model's inputs and outputs.

    Attributes
    ----------
    task : classification or regression.
    input_shape : shape of one input.
    input_type : ``int64`` for indices, else ``float32``.
    outputs : number of classes, or of target columns.
    classes : label of each class index.
    features : name of each input column.
    input_scaling, target_scaling : mean and standard deviation of each feature, as nested lists; None if not standardized.
    nested : whether the inputs are a nesting of arrays, such as a mapping. ``input_shape`` is then the shape of the first
        array.
    label_values : see `Dataset`.
    """

    task: Task
    input_shape: tuple[int, ...]
    input_type: Literal["float32", "int64"]
    outputs: int
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None
    input_scaling: tuple[Any, Any] | None
    target_scaling: tuple[Any, Any] | None
    nested: bool = False
    label_values: tuple[bool | int | str, ...] | None = None

    def __post_init__(self) -> None:
        if self.outputs < 1 or any(length < 1 for length in self.input_shape):
            raise ValueError(f"{self.outputs} outputs or inputs of shape {self.input_shape} are invalid")
        if self.label_values is not None and len(self.label_values) != self.outputs:
            raise ValueError(f"{len(self.label_values)} labels for {self.outputs} outputs are invalid")
        _scaling(self.input_scaling), _scaling(self.target_scaling)  # raises ValueError if they are not numbers

    @classmethod
    def of(cls, split: Split) -> Signature | None:
        """Return the signature for the data of a run; None if the number of classes is not known."""
        data = split.train
        nested = False
        if isinstance(data, SampleDataset | IterableSamples):
            if not data.outputs_are_known:
                return None
            nested = data.nested
        return cls(
            task=data.task,
            input_shape=data.input_shape,
            input_type=split.test.input_type,
            outputs=data.outputs,
            classes=data.classes,
            features=data.features,
            input_scaling=_lists(data.input_scaling),
            target_scaling=_lists(data.target_scaling),
            nested=nested,
            label_values=getattr(data, "label_values", None),
        )

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read the signature of a run.

        Raises
        ------
        ConfigurationError : the file does not exist or cannot be read.
        """
        path = safe_path(folder, FILE)
        try:
            return msgspec.json.decode(read_regular(path, MAX_DOCUMENT_BYTES), type=cls)
        except FileNotFoundError:
            raise ConfigurationError(
                f"{folder} has no {FILE}: it is not a run, was written by an older version of Chimera, or its data is read "
                "sample by sample and has no attribute 'classes' or 'targets'"
            ) from None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error

    def write(self, folder: Path) -> None:
        """Write the signature to a run's folder."""
        write_atomically(folder / FILE, msgspec.json.encode(self) + b"\n")

    @property
    def inputs(self) -> Scaling | None:
        """The scaling of inputs."""
        return _scaling(self.input_scaling)

    @property
    def targets(self) -> Scaling | None:
        """The scaling of targets."""
        return _scaling(self.target_scaling)


def _lists(scaling: Scaling | None) -> tuple[Any, Any] | None:
    return None if scaling is None else (scaling.mean.tolist(), scaling.deviation.tolist())


def _scaling(lists: tuple[Any, Any] | None) -> Scaling | None:
    return None if lists is None else Scaling(np.asarray(lists[0], np.float64), np.asarray(lists[1], np.float64))
