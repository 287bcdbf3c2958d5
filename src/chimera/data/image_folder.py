"""The data set ``image-folder``: image files in one folder per class, decoded when a worker needs them."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.registry import load_object
from chimera.data.row_labels import RowLabels, found_labels
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split

Transform = Callable[[Any], Any]
"""A function of a ``PIL.Image`` in RGB that returns an array or tensor."""

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 50_000_000
"""Larger images are refused before they are decoded: a small file can hold a huge image."""


@DATASETS.register("image-folder", requires="PIL", extra="images")
def image_folder(
    *,
    path: str,
    test_path: str | None = None,
    transform: str | Transform | None = None,
    test_transform: str | Transform | None = None,
    size: int | None = None,
    labels: str | Callable[[str], Any] | None = None,
    groups: str | Callable[[str], Any] | None = None,
    test_fraction: float = 0.2,
    limit: int | None = None,
    seed: int = 0,
) -> Split:
    """Image files in one folder per class, as ``path/cat/1.png``; workers decode the images of each batch.

    Parameters
    ----------
    path : the folder of the class folders. Classes are in the order of their names.
    test_path : a second folder with the test part; by default a fraction of the images of each class is the test part.
    transform : function of a ``PIL.Image`` in RGB that returns an array or tensor, or its name ``package.module:function``. By
        default the pixels as float32 from 0 to 1, shape (3, height, width).
    test_transform : the same for the test part; default: ``transform``.
    size : scale each image to this height and width in pixels before the transform; default: unchanged.
    labels : the labels for partitions by labels and stratified splits, if not the classes: a function of the path of an
        image below ``path``, such as ``cat/1.png``, or its name ``package.module:function``.
    groups : the group of each image, for the partition ``by-group``, given in the same way.
    test_fraction : share of the images that becomes the test part.
    limit : number of train images to keep, chosen at random; default all.
    seed : seed of the limit and of the split.
    """
    made = _function(transform)
    tested = made if test_transform is None else _function(test_transform)
    train = ImageFolder(Path(path), made, size)
    marks = [
        None if given is None else found_labels(given, what, {}, lambda: train.files, len(train))
        for what, given in (("labels", labels), ("groups", groups))
    ]
    if test_path is not None:
        test = ImageFolder(Path(test_path), tested, size)
        if test.classes != train.classes:
            raise DataError(
                f"{path} has the class folders {_listed(train.classes)}, {test_path} has {_listed(test.classes)}"
            )
        split = Split(_samples(train, *marks), _samples(test))
        return split if limit is None else split.limited(limit, seed)
    split = Split.of(_samples(train, *marks), test_fraction=test_fraction, seed=seed, limit=limit)
    assert isinstance(split.test, SampleDataset)
    return Split(
        split.train, SampleDataset(ImageFolder(Path(path), tested, size), rows=split.test.rows, name=split.test.name)
    )


class ImageFolder:
    """A map-style data set of image files: item ``i`` is the transformed image and its class.

    Parameters
    ----------
    path : the folder of the class folders.
    transform : function of a ``PIL.Image``; default: pixels as float32 from 0 to 1, shape (3, height, width).
    size : height and width in pixels to which images are scaled; default: unchanged.

    Attributes
    ----------
    classes : names of the class folders, sorted.
    targets : class of each image, shape (n,).
    files : path of each image below the folder, such as ``cat/1.png``.

    Raises
    ------
    DataError : the folder does not exist, or has no class folders with images.
    """

    def __init__(self, path: Path, transform: Transform | None = None, size: int | None = None) -> None:
        if size is not None and size < 1:
            raise ConfigurationError(f"size must be at least 1 pixel, not {size}")
        if not path.is_dir():
            raise DataError(
                f"there is no folder {str(path)!r}: give the folder that has one folder of images per class"
            )
        self.path, self._transform, self._size = path, transform, size
        self.classes = tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and _files(entry.path)))
        if not self.classes:
            raise DataError(
                f"{path} has no folders with images ({', '.join(sorted(SUFFIXES))}): one folder per class is needed"
            )
        self.files = [f"{name}/{file}" for name in self.classes for file in _files(path / name)]

    def with_classes(self, classes: tuple[str, ...]) -> ImageFolder:
        """Return the same images with the indices of other classes, which contain all of this folder."""
        other = copy.copy(self)
        vars(other).pop("targets", None)
        other.classes = classes
        return other

    @cached_property
    def targets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Class of each image, shape (n,)."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return np.array([numbers[file.partition("/")[0]] for file in self.files], np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = self._decoded(self.path / self.files[index])
        return (_pixels if self._transform is None else self._transform)(image), int(self.targets[index])

    def _decoded(self, path: Path) -> Any:
        from PIL import Image, UnidentifiedImageError

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is lower
                with Image.open(path) as image:
                    width, height = image.size
                    if width * height > MAX_PIXELS:
                        raise DataError(f"{path} has {width} x {height} pixels, more than {MAX_PIXELS:,}")
                    decoded = _of_eight_bits(image, path).convert("RGB")
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read as an image: {error}") from error
        return decoded if self._size is None else decoded.resize((self._size, self._size))


def _of_eight_bits(image: Any, path: Path) -> Any:
    """Return an image of 16 bits a pixel with 8 bits, since pillow would clip its values; return other images unchanged."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        return Image.fromarray((np.asarray(image, np.int32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(
            f"{path} has pixels of 32 bits (mode {image.mode}), whose range is not known: convert it to 8 or 16 bits"
        )
    return image


def _pixels(image: Any) -> Any:
    """Return an image as float32 from 0 to 1, shape (3, height, width)."""
    return np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)


def _files(folder: str | Path) -> list[str]:
    names = (entry.name for entry in os.scandir(folder) if entry.is_file())
    return sorted(name for name in names if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."))


def _samples(folder: ImageFolder, labels: RowLabels | None = None, groups: RowLabels | None = None) -> SampleDataset:
    return SampleDataset(folder, labels=labels, groups=groups, name=folder.path.name)


def _function(transform: str | Transform | None) -> Transform | None:
    return load_object(transform) if isinstance(transform, str) else transform


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
