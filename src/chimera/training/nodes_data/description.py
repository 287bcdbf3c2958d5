"""The description of a node's data before a run: columns, classes, and figures that its owner permits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from chimera.core.engine import Engine
from chimera.core.errors import DataError
from chimera.models.model import Task

GivenMetrics: TypeAlias = Literal["none", "merged", "own"]
"""The metrics that a node gives: none, sums for the merged metrics only, or also its own figures."""
MAX_ROWS = 1 << 53


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    name : its name.
    categories : the different texts of a column of texts; None for numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def kind(self) -> str:
        """The type of its values in messages."""
        return "numbers" if self.categories is None else "texts"

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs: the column, or one for each category."""
        return (self.name,) if self.categories is None else tuple(f"{self.name}={text}" for text in self.categories)


@dataclass(frozen=True)
class Statistics:
    """Statistics of the columns of numbers, in their order, over the training rows of a node.

    Attributes
    ----------
    rows : number of rows.
    mean, spread : mean of each column, and the sum of the squared differences from it.
    """

    rows: int
    mean: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class DataDescription:
    """The description of a node's data.

    Attributes
    ----------
    node : name of the node.
    task : task of its target.
    columns : columns of its table without the target; None for other data, such as images.
    input_shape, input_type : shape and type of one input, if it is not a row of a table.
    outputs : number of target columns of a regression.
    classes : labels of its rows; None for a regression.
    rows : number of its training rows; None if the node does not report it.
    statistics : statistics of its training rows; None if the node does not report them.
    metrics : whether the node gives metrics, and of which kind.
    """

    node: str
    task: Task
    columns: tuple[Column, ...] | None = None
    input_shape: tuple[int, ...] = ()
    input_type: Literal["float32", "int64"] = "float32"
    outputs: int = 1
    classes: tuple[str, ...] | None = None
    rows: int | None = None
    statistics: Statistics | None = None
    metrics: GivenMetrics = "none"

    def check(self) -> None:
        """Raise DataError if a valid node cannot have sent this description."""
        names = [column.name for column in self.columns or ()]
        sound = bool(
            0 < len(self.node) <= 200
            and len(set(names)) == len(names)
            and (self.columns is None or names)
            and all(0 < length < MAX_ROWS for length in self.input_shape)
            and (self.columns is not None) == (not self.input_shape)
            and 0 < self.outputs < 1 << 31
            and (self.classes is None) == (self.task == "regression")
            and len(set(self.classes or ())) == len(self.classes or ())
            and (self.rows is None or 0 <= self.rows < MAX_ROWS)
        )
        numbers = sum(column.categories is None for column in self.columns or ())
        given = self.statistics
        if given is not None:
            fits = len(given.mean) == len(given.spread) == numbers and 0 < given.rows < MAX_ROWS
            sound = sound and fits and all(spread >= 0 for spread in given.spread)
            sound = sound and all(abs(value) < 1e300 for value in (*given.mean, *given.spread))
        if not sound:
            raise DataError(f"node {self.node!r:.80} sent an invalid description of its data")


class DataDescriber:
    """Describes the data of a node. A node that has data and no model creates it from its own class."""

    hosted = True  # engine http: this actor runs in a node, and not in the driver
    one_per_node = True

    def describe(self) -> DataDescription:
        """Return the description."""
        raise NotImplementedError


def described(engine: Engine, ranks: Sequence[int]) -> list[DataDescription]:
    """Return the descriptions of the nodes of the workers with these ranks.

    Raises
    ------
    RunError : there are fewer nodes, or one does not answer.
    DataError : a node cannot read its data, or its description is invalid.
    """
    # The names are those of the workers, so that an engine starts the worker of a rank on the node of its describer.
    describers = [engine.spawn(DataDescriber, name=f"worker {rank}") for rank in ranks]
    try:
        found: Sequence[DataDescription] = engine.get([each.describe() for each in describers])
    finally:
        for each in describers:
            engine.kill(each)
    for one in found:
        if not isinstance(one, DataDescription):
            raise DataError(f"a node sent {type(one).__name__} and no description of its data")
        one.check()
    names = [one.node for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"two nodes have the name {twice[0]!r}: give each a name of its own")
    return list(found)
