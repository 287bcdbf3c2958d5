"""The schema on which nodes agree before a run. Errors name a node that differs, and the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.nodes import NodesData
from chimera.data.scaling import Scaling
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.description import Column, DataDescription
from chimera.training.worker.driver_schema import Scaled

_MAX_NAMES = 5
Descriptions: TypeAlias = Sequence[DataDescription]


def agree(declared: NodesData, descriptions: Descriptions, model: dict[str, Any]) -> AgreedData:
    """Return the data on which these nodes agree. Columns may have any order at a node.

    Raises
    ------
    ConfigurationError : nodes differ, and no option of the data set ``nodes`` decides; or an option names something that no
        node has.
    """
    first = descriptions[0]
    _same(descriptions, lambda one: one.task, lambda one: f"has a target for {one.task}")
    _same(
        descriptions,
        lambda one: one.columns is None,
        lambda one: f"has {'no table' if one.columns is None else 'a table'}",
    )
    _same(descriptions, lambda one: one.input_shape, lambda one: f"has inputs of shape {one.input_shape}")
    _same(descriptions, lambda one: one.input_type, lambda one: f"has inputs of type {one.input_type}")
    _same(descriptions, lambda one: one.outputs, lambda one: f"has {one.outputs} target columns")
    columns = None if first.columns is None else _columns(declared, descriptions)
    classes = _classes(declared, descriptions)
    if declared.classes is not None and classes is None:
        raise ConfigurationError("data 'nodes', option 'classes': the nodes have values to predict, and no classes")
    _check_rows(declared, descriptions)
    scaled, scaling = _scaling(declared, descriptions, columns)
    width = 0 if columns is None else sum(len(column.features) for column in columns)
    return AgreedData(
        tuple(descriptions),
        tuple(range(len(descriptions))),
        columns,
        first.input_shape if columns is None else (width,),
        first.input_type,
        first.outputs if classes is None else len(classes),
        first.task,
        classes,
        scaled,
        scaling,
        declared.rows_per_node,
        declared.mean_of_nodes,
        model,
    )


def _same(
    descriptions: Descriptions,
    of: Callable[[DataDescription], Hashable],
    says: Callable[[DataDescription], str],
    remedy: str = "",
) -> None:
    """Raise DataError if a node differs from most others in a property, which ``says`` describes."""
    usual = _usual(descriptions, of)
    for one in descriptions:
        if of(one) != of(usual):
            raise DataError(f"node {one.node!r} {says(one)}, node {usual.node!r} {says(usual)}{remedy}")


def _usual(descriptions: Descriptions, of: Callable[[DataDescription], Hashable]) -> DataDescription:
    """Return the first node with the most frequent value of a property."""
    most = Counter(map(of, descriptions)).most_common(1)[0][0]
    return next(one for one in descriptions if of(one) == most)


def _columns(declared: NodesData, descriptions: Descriptions) -> tuple[Column, ...]:
    usual = _usual(descriptions, lambda one: frozenset(_by_name(one)))
    wanted = _by_name(usual)
    for one in descriptions:
        own = _by_name(one)
        lacking, more = [name for name in wanted if name not in own], [name for name in own if name not in wanted]
        differences = [f"lacks the column{'s' * (len(lacking) > 1)} {_listed(lacking)}"] if lacking else []
        differences += (
            [f"has the column{'s' * (len(more) > 1)} {_listed(more)}, which node {usual.node!r} lacks"] if more else []
        )
        if differences:
            raise DataError(f"node {one.node!r} {' and '.join(differences)}")
    agreed = []
    for name in sorted(
        wanted
    ):  # so that the order does not depend on which nodes participate, also if the run is resumed
        _same(
            descriptions,
            lambda one, name=name: _by_name(one)[name].kind,  # type: ignore[misc]
            lambda one, name=name: f"has {_by_name(one)[name].kind} in the column {name!r}",  # type: ignore[misc]
        )
        agreed.append(_column(name, declared, descriptions))
    for option, named in (("categories", declared.categories), ("scaling", declared.scaling or {})):
        for name in named:
            if name not in wanted or (option == "categories") == (wanted[name].categories is None):
                kind = "texts" if option == "categories" else "numbers"
                raise ConfigurationError(
                    f"data 'nodes', option {option!r}: the nodes have no column of {kind} {name!r}"
                )
    return tuple(agreed)


def _column(name: str, declared: NodesData, descriptions: Descriptions) -> Column:
    """Return a column with the categories on which the nodes agree."""
    held = [(one, _by_name(one)[name].categories) for one in descriptions]
    if held[0][1] is None:
        return Column(name)
    known = declared.categories.get(name)
    wanted = tuple(sorted({text for _, texts in held for text in texts or ()})) if known is None else known
    for one, texts in held:
        own, what = set(texts or ()), f"in the column {name!r}"
        if known is not None and (unknown := sorted(own - set(known))):
            raise DataError(
                f"node {one.node!r} has {_listed(unknown)} {what}, which [data] categories does not declare"
            )
        if known is None and (lacking := [text for text in wanted if text not in own]):
            raise DataError(
                f"node {one.node!r} has no row with {_listed(lacking)} {what}, which other nodes have: declare all texts of "
                f"the column, [data] categories = {{ {name} = [...] }}"
            )
    return Column(name, wanted)


def _classes(declared: NodesData, descriptions: Descriptions) -> tuple[str, ...] | None:
    first = descriptions[0]
    if first.classes is None:
        return None
    if declared.classes is None:
        _same(
            descriptions,
            lambda one: frozenset(one.classes or ()),
            lambda one: f"has the classes {_listed(one.classes or ())}",
            ": declare all, [data] classes = [...]",
        )
        return first.classes
    for one in descriptions:
        if unknown := [label for label in one.classes or () if label not in declared.classes]:
            raise DataError(f"node {one.node!r} has the class {unknown[0]!r}, which [data] classes does not declare")
    return declared.classes


def _check_rows(declared: NodesData, descriptions: Descriptions) -> None:
    if declared.rows_per_node is None:
        for one in descriptions:
            if one.rows is None:
                raise ConfigurationError(
                    f"node {one.node!r} does not give its number of rows: set the number to assume, [data] rows_per_node"
                )


def _scaling(
    declared: NodesData, descriptions: Descriptions, columns: tuple[Column, ...] | None
) -> tuple[Scaled, Scaling | None]:
    """Return the source of the scaling of number columns, and the scaling of the inputs if all nodes have the same."""
    if declared.standardize is False or columns is None:
        if columns is None and (declared.scaling or declared.standardize in ("statistics", "each")):
            raise ConfigurationError("data 'nodes': only columns of tables can be scaled, and the nodes have no tables")
        return "none", None
    if declared.scaling is not None:
        return "declared", _of_inputs(columns, dict(declared.scaling))
    lacking = [one.node for one in descriptions if one.statistics is None]
    if declared.standardize == "statistics" and lacking:
        raise ConfigurationError(
            f'node {lacking[0]!r} does not give the statistics of its columns: set standardize = "each", or declare the '
            "scaling, [data] scaling = { COLUMN = [MEAN, DEVIATION] }"
        )
    if declared.standardize == "each" or lacking:
        return "each", None
    return "statistics", _of_inputs(columns, _merged(descriptions))


def _merged(descriptions: Descriptions) -> dict[str, tuple[float, float]]:
    """Return mean and deviation of each column of numbers over the rows of all nodes (Chan et al. 1983)."""
    names = [column.name for column in descriptions[0].columns or () if column.categories is None]
    rows, mean, spread = 0, np.zeros(len(names)), np.zeros(len(names))
    for one in descriptions:
        own = {column.name: place for place, column in enumerate(c for c in one.columns or () if c.categories is None)}
        order, given = [own[name] for name in names], one.statistics
        assert given is not None
        there, spread_there = np.array(given.mean)[order], np.array(given.spread)[order]
        total = rows + given.rows
        delta = there - mean
        spread = spread + spread_there + delta**2 * (rows * given.rows / total)
        mean, rows = mean + delta * (given.rows / total), total
    found = Scaling.of_sums(mean, spread, rows)
    return dict(zip(names, zip(found.mean.tolist(), found.deviation.tolist(), strict=True), strict=True))


def _of_inputs(columns: tuple[Column, ...], scaling: dict[str, tuple[float, float]]) -> Scaling:
    """Return the scaling of all inputs; those of texts, and of columns without a scaling, are unchanged."""
    of_each = [scaling.get(column.name, (0.0, 1.0)) for column in columns for _ in column.features]
    mean, deviation = np.array(of_each).T
    return Scaling(mean.copy(), deviation.copy())


def _by_name(one: DataDescription) -> dict[str, Column]:
    return {column.name: column for column in one.columns or ()}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name!r:.80}" for name in names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
