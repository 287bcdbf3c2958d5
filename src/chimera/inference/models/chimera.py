"""Models that Chimera trained, loaded from the folder of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.safe_path import safe_path
from chimera.inference.models.table import KINDS, existing_path, file_stamp
from chimera.models.model import Model
from chimera.training.artifacts.rebuild import RunSource
from chimera.training.artifacts.signature import Signature

_BOOLEANS: dict[str, Any] = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
"""The texts that training reads as numbers in a column of Booleans."""
_NEEDED = ("experiment.toml", "signature.json", "weights.safetensors")


@KINDS.register("chimera")
@dataclass(frozen=True, kw_only=True)
class ChimeraRun:
    """A model that Chimera trained. The folder of its run contains its weights, and the experiment that makes the model.

    A query is one input: numbers in the model's input shape, or a dictionary of columns if the data were a table. Queries are
    standardized if the data were. The result is a label for a classifier, else a value or a list of values.

    Parameters
    ----------
    run : the folder.
    trust_code : whether to run the code that ``experiment.toml`` names by path (``file.py:factory``). A folder from another
        user may name any code.
    stamp : set automatically. It changes when the files are written again, so that workers load the model again.
    """

    run: str
    trust_code: bool = False
    stamp: str | None = None

    @property
    def code(self) -> str:
        """``trust_code`` if it is set, else empty."""
        return "trust_code" if self.trust_code else ""

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with the absolute path of the folder."""
        whole = existing_path("kind 'chimera'", self.run, folder, folders=True)
        for name in _NEEDED:
            if not safe_path(Path(whole), name).is_file():
                raise ConfigurationError(f"{whole} is not the folder of a finished run: it has no {name}")
        replace(self, run=whole)._source().check()  # so that it is refused here already, not only in a worker
        stamp = self.stamp or file_stamp(*(Path(whole) / name for name in _NEEDED))
        return replace(self, run=whole, stamp=stamp)

    def check_query(self, query: Any) -> None:
        """Raise DataError if a row by name lacks a column."""
        if isinstance(query, Mapping) and (column := missing_column(Signature.read(Path(self.run)), query)) is not None:
            raise DataError(
                f"the inputs have no column {column!r}, which the model of {self.run} needs; their columns: "
                f"{', '.join(map(str, query))}"
            )

    def load(self) -> RunPredictor:
        """Make the model of the experiment, and load the run's weights."""
        signature = Signature.read(Path(self.run))
        if signature.nested:
            raise ConfigurationError(
                f'the inputs of the model of {self.run} are not one array: serve it as kind = "factory"'
            )
        return RunPredictor(self._source().load(signature), signature)

    def _source(self) -> RunSource:
        remedy = "if you trust the folder, set trust_code = true in the model's table"
        unnamed = "train a model that has a name ('file.py:factory'), or serve it as kind = \"factory\""
        return RunSource(Path(self.run), self.trust_code, remedy, unnamed)


class RunPredictor:
    """Answers raw rows: scales them, calls the model, and decodes labels."""

    def __init__(self, model: Model, signature: Signature) -> None:
        self._model, self._signature = model, signature
        self._scaling, self._target_scaling = signature.inputs, signature.targets

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return a label, a value, or a list of values for each query."""
        rows = np.stack([self._row(query) for query in queries])
        if self._scaling is not None:
            rows = self._scaling.apply(rows)
        found = self._model.predict(rows)
        classes = self._signature.classes
        if classes is not None:
            return [classes[int(index)] for index in found]
        if self._target_scaling is not None:
            found = self._target_scaling.undo(found)
        values: list[Any] = found.tolist()
        return values

    def _row(self, query: Any) -> NDArray[Any]:
        if isinstance(query, Mapping):
            query = self._by_name(query)
        try:
            with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is reported below
                row = np.asarray(query, self._signature.input_type)
        except (TypeError, ValueError) as error:
            raise DataError(f"a query must be numbers of shape {self._signature.input_shape}: {error}") from error
        shape = self._signature.input_shape
        if row.size != int(np.prod(shape)):
            raise DataError(f"the query has shape {row.shape}, the model expects {shape}")
        if row.dtype.kind == "f" and not np.isfinite(row).all():  # as in the training; an answer would be arbitrary
            place, names = int(np.flatnonzero(~np.isfinite(row))[0]), self._signature.features
            where = f"value {place}, counted from 0," if names is None else f"column {names[place]!r}"
            raise DataError(f"{where} of the query is missing, NaN, or infinite as {row.dtype}")
        return row.reshape(shape)

    def _by_name(self, query: Mapping[str, Any]) -> list[Any]:
        """Return the numbers of a dictionary of columns. A text column is one feature ``column=text`` per text."""
        if (missing := missing_column(self._signature, query)) is not None:
            raise DataError(f"the row has no column {missing!r}")
        row = []
        for feature in self._signature.features or ():
            column, equals, text = feature.partition("=")
            of_text = bool(equals) and feature not in query
            value = query[column if of_text else feature]
            if of_text:
                if value is None or value != value:  # NaN of a data frame
                    raise DataError(f"column {column!r} of the query is missing or NaN")
                row.append(float(str(value) == text))
            else:
                row.append(_BOOLEANS.get(value, value) if isinstance(value, str) else value)
        return row


def missing_column(signature: Signature, names: Collection[str]) -> str | None:
    """Return the first column that a row with these names lacks; None if it has all.

    Raises
    ------
    DataError : the data of the model had no names of columns.
    """
    if signature.features is None:
        raise DataError("the model's data had no column names: queries must be numbers")
    for feature in signature.features:
        column, equals, _ = feature.partition("=")
        if feature not in names and not (equals and column in names):
            return column
    return None
