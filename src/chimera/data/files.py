"""The data sets ``csv`` and ``npz``, which read files of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.data.readers import csv_file, sources, table
from chimera.data.readers.arrays import Task
from chimera.data.readers.parquet import RowGroups, exceeds_memory, read_parquet
from chimera.data.scaling import Standardize
from chimera.data.split import DATASETS, Split
from chimera.data.table_samples import lazy_table


@DATASETS.register("csv")
def csv(
    *,
    path: str,
    test_path: str | None = None,
    target: str | int | list[str | int] | None = None,
    drop: list[str] | None = None,
    one_hot: list[str] | None = None,
    labels: str | Callable[[Mapping[str, Any]], Any] | None = None,
    groups: str | Callable[[Mapping[str, Any]], Any] | None = None,
    task: Task | None = None,
    header: bool | None = None,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: Standardize = "auto",
    scale_target: bool = False,
) -> Split:
    """A CSV file with one sample per line and a target column; text columns become one-hot columns.

    Parameters
    ----------
    path : the file, gzipped or not. The separator is detected from the first lines.
    test_path : a second file with the test part; by default a fraction of the first file is the test part.
    target : the name or the index of the target column, or a list of them; default the last column.
    drop : names of columns to leave out.
    one_hot : names of text columns that become one column for each text, for any number of texts; others may have up to
        50.
    labels : the labels for partitions by labels and stratified splits, if not the target: a column, or a function of a
        row, a mapping (``file.py:function``). The column remains an input unless ``drop`` names it.
    groups : the group of each row, for the partition ``by-group``, given in the same ways. The column is not an input.
    task : ``"classification"`` or ``"regression"``; by default texts and integers are classes, other numbers values.
    header : whether the first line has the names of the columns; by default it does if no cell in it is a number. A line with
        numbers that may be names, such as years, is refused.
    limit : number of train samples to keep, chosen at random; default all.
    test_fraction : share of the samples that becomes the test part.
    seed : seed of the limit and of the split.
    standardize : give every feature mean 0 and standard deviation 1, computed on the train part. By default if features are
        larger than 5, or differ in size by a factor of more than 1000 (docs/how-to/data.md).
    scale_target : the same for the values of a regression.
    """
    frames = []
    for file in (path, test_path):
        if file is not None:
            frames.append(csv_file.read_csv(sources.existing_file(file), header=header))
            csv_file.check_first_column(frames[-1], drop or (), file)
            if header is None:  # the files are alike, and the second one may have too few rows to show it
                header = list(map(str, frames[0].columns)) != list(map(str, range(frames[0].shape[1])))
    return _split_of_frames(
        frames,
        target=target,
        drop=drop or (),
        one_hot=one_hot or (),
        labels=labels,
        groups=groups,
        task=task,
        name=Path(path).name,
        limit=limit,
        test_fraction=test_fraction,
        seed=seed,
        standardize=standardize,
        scale_target=scale_target,
    )


@DATASETS.register("parquet", requires="pyarrow", extra="tables")
def parquet(
    *,
    path: str,
    test_path: str | None = None,
    columns: list[str] | None = None,
    target: str | int | list[str | int] | None = None,
    drop: list[str] | None = None,
    one_hot: list[str] | None = None,
    labels: str | Callable[[Mapping[str, Any]], Any] | None = None,
    groups: str | Callable[[Mapping[str, Any]], Any] | None = None,
    task: Task | None = None,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: Standardize = "auto",
    scale_target: bool = False,
    lazy: bool | None = None,
) -> Split:
    """A Parquet file with one row per sample and a target column; text columns become one-hot columns.

    Parameters
    ----------
    path : the file.
    test_path : a second file with the test part; by default a fraction of the first file is the test part.
    columns : names of the columns to read, the target included; default all.
    target, drop, one_hot, labels, groups, task, limit, test_fraction, seed, standardize, scale_target : as for ``csv``.
    lazy : whether workers read the rows of their batches, one row group of the file after another; by default if the file needs
        more than half of this machine's memory.
    """
    files = [sources.existing_file(file) for file in (path, test_path) if file is not None]
    if lazy is None:
        lazy = any(exceeds_memory(RowGroups(file, columns)) for file in files)
    extra = [] if columns is None else [name for name in (labels, groups) if isinstance(name, str) and ":" not in name]
    read = None if columns is None else list(dict.fromkeys([*columns, *extra]))
    table_options: dict[str, Any] = {
        "target": target,
        "drop": [*(drop or ()), *(name for name in extra if name not in (columns or ()))],
        "one_hot": one_hot or (),
        "labels": labels,
        "groups": groups,
        "task": task,
    }
    split_options: dict[str, Any] = {
        "limit": limit,
        "test_fraction": test_fraction,
        "seed": seed,
        "standardize": standardize,
        "scale_target": scale_target,
    }
    if lazy:
        train = lazy_table(files[0], columns=read, **table_options)
        tests = [lazy_table(file, columns=read, like=train, **table_options) for file in files[1:]]
        return Split.of((train, *tests) if tests else train, **split_options)
    frames = [read_parquet(file, read) for file in files]
    return _split_of_frames(frames, name=Path(path).name, **table_options, **split_options)


@DATASETS.register("npz")
def npz(
    *,
    path: str,
    task: Task | None = None,
    keep_integers: bool = False,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: Standardize = "auto",
    scale_target: bool = False,
) -> Split:
    """An .npz file with ``inputs`` and ``targets`` (or ``x`` and ``y``), or ``x_train, y_train, x_test, y_test``.

    Parameters
    ----------
    path : the file.
    task : ``"classification"`` or ``"regression"``; by default integers and texts are classes, other numbers values.
    keep_integers : keep integer inputs, such as indices into an embedding.
    limit : number of train samples to keep, chosen at random; default all.
    test_fraction : share of the samples that becomes the test part, if the file has none.
    seed : seed of the limit and of the split.
    standardize : give every feature mean 0 and standard deviation 1, computed on the train part. By default if features are
        larger than 5, or differ in size by a factor of more than 1000 (docs/how-to/data.md).
    scale_target : the same for the values of a regression.
    """
    pairs = sources.read_npz(sources.existing_file(path))
    return Split.of(
        tuple(pairs) if len(pairs) == 2 else pairs[0],
        task=task,
        keep_integers=keep_integers,
        name=Path(path).name,
        limit=limit,
        test_fraction=test_fraction,
        seed=seed,
        standardize=standardize,
        scale_target=scale_target,
    )


def _split_of_frames(
    frames: list[Any], *, target: table.Target, drop: Sequence[str], one_hot: Sequence[str], groups: Any, **options: Any
) -> Split:
    """Return the split of one frame, or of two, which are the train and the test part."""
    chosen = [table.with_columns(frame, (), one_hot) for frame in frames]
    last = table.TableOptions(drop=drop, groups=groups).without_columns(chosen[0]).columns[-1]
    return Split.of(
        (chosen[0], chosen[1]) if len(chosen) > 1 else chosen[0],
        target=last if target is None else target,
        drop=drop,
        groups=groups,
        **options,
    )
