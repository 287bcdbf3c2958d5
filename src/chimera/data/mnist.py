"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels in ten classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.named_places import data_folder
from chimera.data.dataset import Dataset
from chimera.data.download import cache_folder, downloading, save_to_cache
from chimera.data.readers.idx import read_idx
from chimera.data.readers.sources import read_npz
from chimera.data.split import DATASETS, Split, split_indices

Bytes: TypeAlias = NDArray[np.uint8]
Shape: TypeAlias = Literal["flat", "image"]

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_TRAIN = 60_000


@dataclass(frozen=True)
class _Images:
    """A data set in the format of MNIST.

    Attributes
    ----------
    name : name of the data set, of its folder in ``$CHIMERA_DATA`` and of its file in the cache.
    openml : number of the data set on OpenML.
    classes : the labels.
    first_labels : first labels of the original train part. They distinguish the two data sets, whose files have equal names.
    """

    name: str
    openml: int
    classes: tuple[str, ...]
    first_labels: tuple[int, ...]


_MNIST = _Images("mnist", 554, tuple("0123456789"), (5, 0, 4, 1, 9, 2, 1, 3))
_FASHION = _Images(
    "fashion-mnist",
    40996,
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    (9, 0, 0, 3, 0, 2, 7, 2),
)


@DATASETS.register("mnist")
def mnist(
    *,
    path: str | None = None,
    shape: Shape = "flat",
    limit: int | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    standardize: bool = False,
) -> Split:
    """MNIST: 60,000 train and 10,000 test images of handwritten digits, scaled to [0, 1] (LeCun et al. 1998).

    Parameters
    ----------
    path : the folder with the four IDX files, gzipped or not, or an .npz file with ``x_train, y_train, x_test, y_test``.
        By default they are searched in ``$CHIMERA_DATA/mnist``, in ``$CHIMERA_DATA`` and in the cache, then downloaded.
    shape : ``"flat"`` for (784,), ``"image"`` for (1, 28, 28).
    limit : number of train samples to keep, chosen at random; default all.
    test_fraction : share of all images that becomes the test part; by default the original parts are kept.
    seed : seed of the limit and of the split.
    standardize : give every pixel mean 0 and standard deviation 1.
    """
    return _split(_MNIST, path, shape, limit, test_fraction, seed, standardize)


@DATASETS.register("fashion-mnist")
def fashion_mnist(
    *,
    path: str | None = None,
    shape: Shape = "flat",
    limit: int | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    standardize: bool = False,
) -> Split:
    """Fashion-MNIST: 60,000 train and 10,000 test images of clothes, scaled to [0, 1] (Xiao et al. 2017).

    The options are those of `mnist`; the files are searched in ``$CHIMERA_DATA/fashion-mnist`` first.
    """
    return _split(_FASHION, path, shape, limit, test_fraction, seed, standardize)


def _split(
    which: _Images,
    path: str | None,
    shape: Shape,
    limit: int | None,
    test_fraction: float | None,
    seed: int,
    standardize: bool,
) -> Split:
    if shape not in ("flat", "image"):
        raise ConfigurationError(f"the shape {shape!r} is unknown; known: flat, image")
    images, labels, test_images, test_labels = _load(which, path)
    if test_fraction is not None:
        images, labels = np.concatenate((images, test_images)), np.concatenate((labels, test_labels))
        train, test = split_indices(len(labels), test_fraction, seed, labels)
        images, labels, test_images, test_labels = images[train], labels[train], images[test], labels[test]
    split = Split(_dataset(which, images, labels, shape), _dataset(which, test_images, test_labels, shape))
    if limit is not None:
        split = split.limited(limit, seed)
    return split.standardized() if standardize else split


def _dataset(which: _Images, images: Bytes, labels: Bytes, shape: Shape) -> Dataset:
    scaled = np.multiply(images, np.float32(1 / 255), dtype=np.float32)
    inputs = scaled.reshape(len(images), *((1, *images.shape[1:]) if shape == "image" else (-1,)))
    return Dataset(inputs, labels.astype(np.int64), which.classes, name=which.name)


def _load(which: _Images, path: str | None) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return images and labels of the train part and of the test part."""
    home, cached = data_folder(), cache_folder() / f"{which.name}.npz"
    if path is not None:
        places = [Path(path).expanduser()]
    else:
        places = ([home / which.name, home / f"{which.name}.npz", home] if home else []) + [cached]
    for place in places:
        if place.is_file():
            try:
                return _checked(which, place, [array for pair in read_npz(place) for array in pair])
            except DataError as error:
                again = "; remove it, and the next run downloads it again" if place == cached else ""
                raise DataError(f"{error}{again}") from error
        files = _found(place)
        if files:
            return _checked(which, place, [read_idx(file, 3 if "images" in file.name else 1) for file in files])
    searched = f"searched in {', '.join(map(str, places))}"
    needed = f"needed are {', '.join(_FILES)} (or with .gz)"
    if path is not None:
        raise DataError(f"no {which.name} in {path}: {needed}")
    advice = f"{needed}; {searched}; put them there, or set the option 'path' or $CHIMERA_DATA to their folder"
    with downloading(f"{which.name} from OpenML", advice):
        images, labels = _of_openml(which.openml)
    names = ("x_train", "y_train", "x_test", "y_test")
    arrays = (images[:_TRAIN], labels[:_TRAIN], images[_TRAIN:], labels[_TRAIN:])
    save_to_cache(cached, dict(zip(names, arrays, strict=True)))
    return arrays


def _found(folder: Path) -> list[Path]:
    """Return the four files in ``folder``; an empty list if it holds none of them."""
    files = [
        next((place for place in (folder / name, folder / f"{name}.gz") if place.is_file()), None) for name in _FILES
    ]
    missing = [name for name, file in zip(_FILES, files, strict=True) if file is None]
    if missing and len(missing) < len(_FILES):
        raise DataError(f"{folder} lacks {', '.join(missing)} (or with .gz)")
    return [file for file in files if file is not None]


def _checked(which: _Images, place: Path, arrays: list[Bytes]) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    if [array.ndim for array in arrays] != [3, 1, 3, 1] or any(array.dtype != np.uint8 for array in arrays):
        raise DataError(f"{place} does not hold the images and labels of a train and a test part as bytes")
    images, labels, test_images, test_labels = arrays
    if (len(images), len(test_images)) != (len(labels), len(test_labels)) or images.shape[1:] != test_images.shape[1:]:
        raise DataError(f"the images and labels in {place} do not match: {[a.shape for a in arrays]}")
    for other in (_MNIST, _FASHION):
        if other is not which and tuple(labels[:8].tolist()) == other.first_labels:
            raise DataError(
                f"{place} holds {other.name}, not {which.name}: put that in a folder {which.name!r} of its own"
            )
    return images, labels, test_images, test_labels


def _of_openml(number: int) -> tuple[Bytes, Bytes]:
    from sklearn.datasets import fetch_openml

    pixels, labels = fetch_openml(data_id=number, return_X_y=True, as_frame=False, n_retries=1, delay=0.5)
    return pixels.astype(np.uint8).reshape(-1, 28, 28), labels.astype(np.uint8)
