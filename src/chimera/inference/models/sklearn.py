"""Estimators of scikit-learn in files of skops, a format that runs no code when it is loaded."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.readers.npy import open_archive
from chimera.inference.models.table import KINDS, existing_path, file_stamp
from chimera.models.instantiation import first_line


@KINDS.register("sklearn", requires="skops", extra="inference", preload=["skops.io"])
@dataclass(frozen=True, kw_only=True)
class SklearnFile:
    """A fitted estimator or pipeline of scikit-learn, saved with ``skops.io.dump``.

    A query is a row of numbers. It is a dictionary of columns if the estimator was fitted on a data frame, and a text if the
    pipeline begins with a vectorizer.

    Parameters
    ----------
    file : path of the file.
    method : method that answers: ``predict``, ``predict_proba`` (a list in the order of ``classes_``) or
        ``decision_function``.
    trusted : names of types in the file that may be loaded besides those of scikit-learn and NumPy.
    stamp : set automatically. It changes when the file is written again, so that workers load the model again.
    """

    file: str
    method: Literal["predict", "predict_proba", "decision_function"] = "predict"
    trusted: tuple[str, ...] = ()
    stamp: str | None = None

    @property
    def code(self) -> str:
        """``trusted`` if it names types, else empty."""
        return "trusted" if self.trusted else ""

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with the absolute path of the file."""
        whole = existing_path("kind 'sklearn'", self.file, folder)
        return replace(self, file=whole, stamp=self.stamp or file_stamp(Path(whole)))

    def load(self) -> SklearnPredictor:
        """Load the file. Raise ConfigurationError if it contains a type that is not trusted."""
        import skops.io

        with open_archive(Path(self.file), "a skops file") as archive:
            archive.check()
        try:
            unknown = sorted(set(skops.io.get_untrusted_types(file=self.file)) - set(self.trusted))
            if unknown:
                raise ConfigurationError(
                    f"{self.file} contains types that are not trusted: {', '.join(unknown)}; if you trust them, add them to "
                    "the model's table: trusted = [...]"
                )
            estimator = skops.io.load(self.file, trusted=list(self.trusted))
        except ConfigurationError:
            raise
        except (
            *(OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError),
            *(ValueError, LookupError, TypeError, AttributeError, ImportError),
        ) as error:
            raise ConfigurationError(f"{self.file} cannot be read as a skops file: {first_line(error)}") from error
        if not callable(getattr(estimator, self.method, None)):
            raise ConfigurationError(f"{self.file}: a {type(estimator).__name__} has no method {self.method!r}")
        return SklearnPredictor(estimator, self.method)


class SklearnPredictor:
    """Answers queries by one method of an estimator."""

    def __init__(self, estimator: Any, method: str) -> None:
        self._method, self._columns = getattr(estimator, method), getattr(estimator, "feature_names_in_", None)

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the estimator's result for each row."""
        found: list[Any] = self._method(self._rows(queries)).tolist()
        return found

    def _rows(self, queries: list[Any]) -> Any:
        if all(isinstance(query, str) for query in queries):
            return queries
        if self._columns is None:
            if any(isinstance(query, Mapping) for query in queries):
                raise DataError("the estimator was fitted without column names: queries must be rows of numbers")
            import numpy as np

            return np.asarray(queries)
        import pandas

        for query in queries:
            missing = [name for name in self._columns if isinstance(query, Mapping) and name not in query]
            if missing:
                raise DataError(f"the row has no column {missing[0]!r}")
        return pandas.DataFrame(queries, columns=list(self._columns))
