"""The rows of a node, from a table, arrays or a folder of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.dataset import Dataset, RowData
from chimera.data.image_folder import ImageFolder
from chimera.data.readers import table
from chimera.data.readers.arrays import as_inputs
from chimera.data.samples import SampleDataset
from chimera.data.scaling import Scaling
from chimera.models.model import Task
from chimera.training.nodes_data.description import Column, Statistics
from chimera.training.worker.driver_schema import DriverSchema, NodeRequest

Parts = tuple[RowData, RowData | None]
"""The training rows, and the test rows; None if there are none."""


@dataclass(frozen=True, eq=False)
class OwnData(ABC):
    """The rows of a node. Inputs are float32.

    Attributes
    ----------
    node : name of the node.
    targets : index of the class of each row, int64, shape (n,); or float32 values, shape (n,) or (n, k).
    classes : labels by index; None for a regression.
    declared : the labels that the owner declares, which drivers then see instead of those that rows have.
    test : which rows are test rows, shape (n,).
    """

    node: str
    targets: NDArray[Any]
    classes: tuple[str, ...] | None
    test: NDArray[np.bool_]
    declared: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.declared is not None:
            if self.classes is None:
                raise DataError(f"node {self.node!r} has values to predict, and no classes to declare")
            if unknown := [label for label in self.held or () if label not in self.declared]:
                raise DataError(
                    f"node {self.node!r} has rows of the class {unknown[0]!r}, which its owner does not declare"
                )
        if self.test.all():
            raise DataError(f"node {self.node!r} has no row to train on: add rows, or reduce test_fraction")

    @property
    def task(self) -> Task:
        """The task of the target."""
        return "regression" if self.classes is None else "classification"

    @property
    def outputs(self) -> int:
        """The number of target columns."""
        return 1 if self.targets.ndim == 1 else int(self.targets.shape[1])

    @property
    def shown(self) -> tuple[str, ...] | None:
        """The labels that drivers see: the declared ones, or those that rows have."""
        return self.held if self.declared is None else self.declared

    @property
    def held(self) -> tuple[str, ...] | None:
        """The labels that rows have, in the order of their indices; None for a regression."""
        return (
            None if self.classes is None else tuple(self.classes[index] for index in np.unique(self.targets).tolist())
        )

    @property
    def columns(self) -> tuple[Column, ...] | None:
        """The columns of the table; None for other data."""
        return None

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the columns of numbers over the training rows; None if there are no columns."""
        return None

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; empty for tables, whose inputs depend on the agreed categories."""

    @abstractmethod
    def parts(self, schema: DriverSchema, request: NodeRequest) -> Parts:
        """Return training and test rows in the form that the nodes agreed on.

        Raises
        ------
        DataError : the rows do not fit it. The message names the node and what differs.
        """

    def check(self, request: NodeRequest, classes: tuple[str, ...] | None) -> None:
        """Raise DataError if task, kind of data, shape or classes differ from those in the request of a driver."""
        differs = f"the data of node {self.node!r} differ from those of the run: "
        if (classes is None) != (self.classes is None) or request.task != self.task:
            raise DataError(f"{differs}their target is for {self.task}")
        if (request.columns is None) != (self.columns is None):
            raise DataError(f"{differs}they are {'no table' if self.columns is None else 'a table'}")
        columns = request.columns
        shape = self.input_shape if columns is None else (sum(len(column.features) for column in columns),)
        if shape != request.input_shape:
            raise DataError(f"{differs}their inputs have the shape {shape}, those of the run {request.input_shape}")
        outputs = self.outputs if classes is None else len(classes)
        if outputs != request.outputs:
            raise DataError(f"{differs}they need {outputs} outputs, the run has {request.outputs}")
        if unknown := [label for label in self.held or () if label not in (classes or ())]:
            raise DataError(f"{differs}they have the class {unknown[0]!r}, which the run has not")

    def targets_of(self, classes: tuple[str, ...] | None) -> NDArray[Any]:
        """Return the targets, with indices in these classes."""
        if self.classes is None or classes is None:
            return self.targets
        place = {label: index for index, label in enumerate(classes)}
        places = np.array([place.get(label, -1) for label in self.classes], np.int64)
        return places.take(self.targets)

    def _in_memory(
        self, inputs: NDArray[Any], schema: DriverSchema, scaling: Scaling | None, features: tuple[str, ...] | None
    ) -> Parts:
        whole = Dataset(inputs, self.targets_of(schema.classes), schema.classes, features, self.node)
        train, test = (whole.subset(np.flatnonzero(rows)) if rows.any() else None for rows in (~self.test, self.test))
        assert train is not None
        if scaling is None:
            return train, test
        return train.scaled("inputs", scaling), None if test is None else test.scaled("inputs", scaling)


@dataclass(frozen=True, eq=False)
class TableData(OwnData):
    """Rows of a table.

    Attributes
    ----------
    frame : the columns without the target, a pandas frame.
    own_columns : its columns.
    """

    frame: Any = None
    own_columns: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return self.own_columns

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Empty: the inputs depend on the agreed categories."""
        return ()

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the columns of numbers over the training rows."""
        names = [column.name for column in self.own_columns if column.categories is None]
        values = self.frame.loc[~self.test, names].to_numpy(np.float32).astype(np.float64)
        mean = values.mean(0)
        return Statistics(len(values), tuple(mean.tolist()), tuple(((values - mean) ** 2).sum(0).tolist()))

    def parts(self, schema: DriverSchema, request: NodeRequest) -> Parts:
        """See `OwnData.parts`."""
        wanted = request.columns or ()
        names = tuple(name for column in wanted for name in column.features)
        inputs, _ = table.features(self.frame[[column.name for column in wanted]], names)
        if not np.isfinite(inputs).all():
            raise DataError(f"node {self.node!r} has numbers beyond the range of float32")
        if request.scaled == "none":
            scaling = None
        elif request.scaled == "each":
            numbers = np.array([column.categories is None for column in wanted for _ in column.features])
            own = Scaling.of(inputs[~self.test])
            scaling = Scaling(np.where(numbers, own.mean, 0.0), np.where(numbers, own.deviation, 1.0))
        else:
            scaling = _given(request, len(names), self.node)
        return self._in_memory(inputs, schema, scaling, names)

    def check(self, request: NodeRequest, classes: tuple[str, ...] | None) -> None:
        """See `OwnData.check`; compare the columns, too."""
        super().check(request, classes)
        self._check_columns(request.columns or ())

    def _check_columns(self, wanted: tuple[Column, ...]) -> None:
        own = {column.name: column for column in self.own_columns}
        names = [column.name for column in wanted]
        if lacking := [name for name in names if name not in own]:
            raise DataError(f"node {self.node!r} lacks the column {lacking[0]!r} of the run")
        if more := [name for name in own if name not in names]:
            raise DataError(f"node {self.node!r} has the column {more[0]!r}, which the run has not")
        for column in wanted:
            if column.kind != own[column.name].kind:
                raise DataError(
                    f"node {self.node!r} has {own[column.name].kind} in the column {column.name!r}, the run has {column.kind}"
                )
            known, held = set(column.categories or ()), own[column.name].categories or ()
            if len(known) > max(table.MAX_CATEGORIES, 2 * len(held)):  # each is an input in memory
                raise DataError(
                    f"the run has {len(known)} texts of the column {column.name!r}, too many for node {self.node!r}"
                )
            if unknown := [text for text in held if text not in known]:
                raise DataError(
                    f"node {self.node!r} has {unknown[0]!r} in the column {column.name!r}, which the run has not"
                )


@dataclass(frozen=True, eq=False)
class ArrayData(OwnData):
    """Rows of an array, float32, shape (n, ...)."""

    inputs: Any = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def parts(self, schema: DriverSchema, request: NodeRequest) -> Parts:  # noqa: ARG002 - arrays are not scaled
        """See `OwnData.parts`."""
        return self._in_memory(as_inputs(self.inputs, keep_integers=False), schema, None, None)


@dataclass(frozen=True, eq=False)
class ImageData(OwnData):
    """Images in one folder per class, decoded when a batch needs them."""

    folder: ImageFolder | None = None
    shape: tuple[int, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one image: (3, height, width)."""
        return self.shape

    def parts(self, schema: DriverSchema, request: NodeRequest) -> Parts:  # noqa: ARG002 - images are not scaled
        """See `OwnData.parts`."""
        assert self.folder is not None
        source = self.folder.with_classes(schema.classes or ())
        train, test = (
            SampleDataset(source, rows=np.flatnonzero(rows), name=self.node) if rows.any() else None
            for rows in (~self.test, self.test)
        )
        assert train is not None
        return train, test


def _given(request: NodeRequest, inputs: int, node: str) -> Scaling:
    """Return the scaling that the driver sent.

    Raises
    ------
    DataError : it does not fit the inputs.
    """
    mean, deviation = (np.array(values or (), np.float64) for values in (request.mean, request.deviation))
    fits = mean.shape == deviation.shape == (inputs,) and np.isfinite(mean).all() and np.isfinite(deviation).all()
    if not fits or not (deviation > 0).all():
        raise DataError(f"the scaling that node {node!r} received does not fit its {inputs} inputs")
    return Scaling(mean, deviation)
