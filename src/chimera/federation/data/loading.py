"""Reading of a node's data: a Parquet, CSV or .npz file, or a folder of images with one folder per class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.registry import checked_options, registered_names_only
from chimera.data.image_folder import ImageFolder
from chimera.data.readers import sources, table
from chimera.data.readers.arrays import Task, as_inputs, as_targets
from chimera.federation.data.division import contents_of_array, contents_of_frame, divided, own_seed
from chimera.federation.data.own_data import ArrayData, ImageData, OwnData, TableData
from chimera.training.nodes_data.description import Column


def loaded(path: str | os.PathLike[str], node: str, options: Mapping[str, Any], folder: Path) -> OwnData:
    """Read the data of a node by options of a file or command line; the seed of the division is in the node's folder.

    Raises
    ------
    ConfigurationError : an option is unknown or invalid.
    DataError : see `load`.
    """
    given: dict[str, Any] = {"path": path, "node": node, "split_seed": own_seed(folder)}
    return load(**checked_options("the data of a node", load, options, given), **given)


def load(
    path: str | os.PathLike[str],
    node: str,
    *,
    target: str | int | Sequence[str | int] | None = None,
    task: Task | None = None,
    drop: Sequence[str] = (),
    header: bool | None = None,
    classes: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    split_by: str | None = None,
    size: int | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
) -> OwnData:
    """Read the data of a node.

    Parameters
    ----------
    path : a file whose name ends in ``.parquet``, ``.csv`` (also gzipped) or ``.npz``, or a folder of class folders of images.
    node : name of the node in messages.
    target, task, drop, header : for files, see `chimera.data.dataset.Dataset.of`.
    classes, categories : all labels, and all texts of columns of texts by name, that drivers see. Default: those that rows
        have, so that a driver sees which of them a node has.
    split_by : for tables: rows with the same value in this column, such as the number of a patient, are in the same part. The
        column is not an input. Default: the whole row decides, without the target.
    size : for images: height and width in pixels to which they are scaled; needed unless all have the same size.
    test_fraction : share of the rows, on average, that the node keeps for evaluation; see `divided`.
    split_seed : seed of the division.

    Raises
    ------
    DataError : the data is missing, empty, or of a kind that cannot be read.
    """
    with registered_names_only(None):  # the owner of the node gives these options
        if Path(path).expanduser().is_dir():
            return _images(Path(path).expanduser(), node, classes, size, test_fraction, split_seed)
        options = table.TableOptions(target, drop, groups=split_by)
        raw = sources.pairs(path, options, header=header)
    if len(raw) > 1:
        raise DataError(f"{path} holds a train and a test part: give one, the node keeps test rows itself")
    inputs, targets, groups = raw[0].inputs, raw[0].targets, raw[0].groups
    if not len(inputs):
        raise DataError(f"{path} has no rows")
    frame = sources.is_frame(inputs)
    if groups is not None:
        contents: Any = (groups.names[index].encode() for index in groups.indices.tolist())
    else:
        contents = contents_of_frame(inputs) if frame else contents_of_array(np.asarray(inputs))
    values, held = _targets(targets, task)
    declared = None if classes is None else tuple(classes)
    test = divided(contents, test_fraction, split_seed)
    if not frame:
        return ArrayData(node, values, held, test, as_inputs(inputs, keep_integers=False), declared=declared)
    inputs = inputs.rename(columns=str)
    columns = _columns(inputs, node, categories or {})
    return TableData(node, values, held, test, inputs, columns, declared=declared)


def _targets(targets: Any, task: Task | None) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    known = None
    if hasattr(targets, "isna"):
        targets, known = table.target_values(targets)
    return as_targets(targets, task=task, classes=known if task != "regression" else None)


def _columns(frame: Any, node: str, declared: Mapping[str, Sequence[str]]) -> tuple[Column, ...]:
    found = []
    for name in frame.columns:
        texts = table.categories(name, frame[name])
        if texts is not None:
            table.check_categories(name, texts, frame[name])
            held = list(map(str, texts))
            if strange := sorted(set(held) - set(declared.get(name, held))):
                raise DataError(
                    f"node {node!r} has {strange[0]!r} in the column {name!r}, which its owner does not declare"
                )
            texts = list(declared.get(name, held))
        found.append(Column(name, None if texts is None else tuple(texts)))
    of_texts = [column.name for column in found if column.categories is not None]
    if unknown := [name for name in declared if name not in of_texts]:
        raise DataError(f"node {node!r} has no column of texts {unknown[0]!r}; it has: {', '.join(of_texts) or 'none'}")
    return tuple(found)


def _images(
    path: Path, node: str, classes: Sequence[str] | None, size: int | None, test_fraction: float, seed: int
) -> ImageData:
    folder = ImageFolder(path, None, size)
    contents = ((path / file).read_bytes() for file in folder.files)
    shape = folder[0][0].shape
    test = divided(contents, test_fraction, seed)
    declared = None if classes is None else tuple(classes)
    return ImageData(node, folder.targets, folder.classes, test, folder, shape, declared=declared)
