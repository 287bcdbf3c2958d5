"""The results of an experiment over a grid of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chimera.training.artifacts.location import folder_of, path_in_run
from chimera.training.comparison.figures import Row
from chimera.training.comparison.stored_grid import StoredGrid


@dataclass(frozen=True)
class Comparison:
    """A finished or interrupted comparison.

    Attributes
    ----------
    folder : holds ``comparison.json``, ``comparison.csv``, ``comparison.html`` and the folder of each run. For a comparison in
        an object store, it has copies of what `plot` reads, and exists as long as this object.
    experiment : file name of the experiment.
    varied : the values of each key that varies, as texts.
    target : the metrics to reach, if the experiment names metrics and no cell has other ones.
    rows : one row for each cell, in the order of the grid: settings, state, final figures, and their ratios to the baseline.
        The baseline is the cell with the first value of the first key and equal other settings. With several seeds, rows have
        means over the seeds.
    runs : one row for each run; as ``rows`` if there is one seed.
    notes : remarks for a reader of the figures.
    signal : number of the signal that stopped the comparison: Ctrl-C, SIGTERM or SIGUSR1; None if there was none.
    """

    folder: Path
    experiment: str
    varied: dict[str, list[str]]
    target: dict[str, float] | None
    rows: list[Row] = field(repr=False)
    runs: list[Row] = field(repr=False)
    notes: list[str] = field(default_factory=list)
    signal: int | None = None
    stored: StoredGrid | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """Return the figures as a table for a notebook."""
        from chimera.report.comparison_page.table import as_html

        return as_html(self.plain())

    @property
    def location(self) -> Path | str:
        """The folder, or the URL of the files in an object store."""
        return self.folder if self.stored is None else self.stored.url

    @property
    def report(self) -> Path | str:
        """The path of the HTML report, or its URL in an object store."""
        return path_in_run(self.location, "comparison.html")

    @property
    def finished(self) -> bool:
        """Whether every run has finished."""
        return all(run["state"] == "finished" for run in self.runs)

    @property
    def interrupted(self) -> bool:
        """Whether a signal has kept a run from starting or finishing."""
        return any(run["state"] in ("interrupted", "waiting", "running") for run in self.runs)

    def plain(self) -> dict[str, Any]:
        """Return all results as plain values, as in ``comparison.json``."""
        return {
            "experiment": self.experiment,
            "varied": self.varied,
            "target": self.target,
            "notes": self.notes,
            "rows": self.rows,
            "runs": self.runs,
            "folder": str(self.location),
        }

    def table(self) -> str:
        """Return the figures as a text table."""
        from chimera.report.comparison_page.table import as_text

        return as_text(self.plain())

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Return the comparison that was written to a folder, or to an object store.

        Raises
        ------
        ConfigurationError : the folder holds no comparison.
        StoreError : the object store cannot be read.
        """
        from chimera.report.comparison_page.page import read_comparison

        path, stored = folder_of(folder), None
        if path is None:
            stored = StoredGrid(str(folder))
            stored.fetch_result()
            path = stored.folder
        found = read_comparison(path)
        if stored is not None:
            stored.fetch(str(run["folder"]) for run in found["runs"])
        kept = ("experiment", "varied", "target", "rows", "runs", "notes")
        return cls(folder=path, stored=stored, **{key: found[key] for key in kept})

    def plot(
        self,
        path: str | Path,
        *,
        x: Literal["bytes", "seconds", "rounds", "samples"] = "bytes",
        y: str | None = None,
        labels: Mapping[str, str] | None = None,
        size: Literal["column", "page"] | tuple[float, float] = "column",
    ) -> str:
        """Write the curves of all cells as a figure for a paper; return a caption.

        With several seeds, lines are means and bands one standard deviation over the seeds; the caption states this.

        Parameters
        ----------
        path : the file; its suffix selects the format, such as ``.pdf``, ``.svg`` or ``.png``.
        x : the axis: bytes sent up and down by all workers, seconds of training, rounds, or samples of all workers.
        y : a metric on the test set; default: the first of the target, or accuracy, or loss.
        labels : texts of the legend, by cell; default: the cells as the table names them.
        size : over one ``column`` (3.35 inches wide) or the whole ``page`` (6.9 inches), or width and height in inches.

        Raises
        ------
        ConfigurationError : there is no such metric, cell, axis or format, or no run has recorded the metric.
        """
        from chimera.report.paper import save_curves

        return save_curves({**self.plain(), "folder": str(self.folder)}, path, x=x, y=y, labels=labels, size=size)

    def latex(self, *, columns: Sequence[str] | None = None, labels: Mapping[str, str] | None = None) -> str:
        """Return the figures as a ``tabular`` for LaTeX, with the rules of the package booktabs.

        Parameters
        ----------
        columns : headings of the columns, in order; default: all columns of `table`.
        labels : names of cells; default: as `table` names them.

        Raises
        ------
        ConfigurationError : there is no such column or cell.
        """
        from chimera.report.paper import table_of

        return table_of(self.plain(), "latex", headings=columns, labels=labels)

    def markdown(self, *, columns: Sequence[str] | None = None, labels: Mapping[str, str] | None = None) -> str:
        """Return the figures as a Markdown table; see `latex`."""
        from chimera.report.paper import table_of

        return table_of(self.plain(), "markdown", headings=columns, labels=labels)
