"""The small data sets that are part of scikit-learn, and so need no network."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.data.split import DATASETS, Split

_IRIS = tuple(f"{part} {side} (cm)" for part in ("sepal", "petal") for side in ("length", "width"))
_WINE = (
    "alcohol",
    "malic_acid",
    "ash",
    "alcalinity_of_ash",
    "magnesium",
    "total_phenols",
    "flavanoids",
    "nonflavanoid_phenols",
    "proanthocyanins",
    "color_intensity",
    "hue",
    "od280/od315_of_diluted_wines",
    "proline",
)
_CELL = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
_BREAST_CANCER = tuple(each.format(trait) for each in ("mean {}", "{} error", "worst {}") for trait in _CELL)
_DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


@DATASETS.register("digits")
def digits(
    *,
    shape: Literal["flat", "image"] = "flat",
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: bool = False,
) -> Split:
    """Digits: 1,797 grey images of 8 x 8 pixels in ten classes, scaled to [0, 1] (Alpaydin and Kaynak 1998).

    Parameters
    ----------
    shape : ``"flat"`` for (64,), ``"image"`` for (1, 8, 8).
    limit : number of train samples to keep, chosen at random; default all.
    test_fraction : share of the samples that becomes the test part.
    seed : seed of the limit and of the split.
    standardize : give every pixel mean 0 and standard deviation 1.
    """
    if shape not in ("flat", "image"):
        raise ConfigurationError(f"the shape {shape!r} is unknown; known: flat, image")
    table = _table("digits.csv.gz", "load_digits")
    images = table[:, :-1].reshape(len(table), *((1, 8, 8) if shape == "image" else (64,))) / 16
    whole = Dataset.of((images, table[:, -1].astype(np.int64)), classes=10, name="digits")
    return Split.of(whole, test_fraction=test_fraction, seed=seed, limit=limit, standardize=standardize)


@DATASETS.register("iris")
def iris(*, limit: int | None = None, test_fraction: float = 0.2, seed: int = 0, standardize: bool = True) -> Split:
    """Iris: 150 flowers, four measures in cm, three species (Fisher 1936). Options as for `digits`."""
    whole = _classes("iris", _table("iris.csv", "load_iris"), ("setosa", "versicolor", "virginica"), _IRIS)
    return Split.of(whole, test_fraction=test_fraction, seed=seed, limit=limit, standardize=standardize)


@DATASETS.register("wine")
def wine(*, limit: int | None = None, test_fraction: float = 0.2, seed: int = 0, standardize: bool = True) -> Split:
    """Wine: 178 wines, 13 chemical measures, three growers (Forina et al. 1988). Options as for `digits`."""
    whole = _classes("wine", _table("wine_data.csv", "load_wine"), ("class_0", "class_1", "class_2"), _WINE)
    return Split.of(whole, test_fraction=test_fraction, seed=seed, limit=limit, standardize=standardize)


@DATASETS.register("breast-cancer")
def breast_cancer(
    *, limit: int | None = None, test_fraction: float = 0.2, seed: int = 0, standardize: bool = True
) -> Split:
    """Breast cancer, Wisconsin: 569 tumours, 30 measures, malignant or benign (Street et al. 1993). Options as for `digits`."""
    table = _table("breast_cancer.csv", "load_breast_cancer")
    whole = _classes("breast-cancer", table, ("malignant", "benign"), _BREAST_CANCER)
    return Split.of(whole, test_fraction=test_fraction, seed=seed, limit=limit, standardize=standardize)


@DATASETS.register("diabetes")
def diabetes(
    *,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: bool = True,
    scale_target: bool = True,
) -> Split:
    """Diabetes: 442 patients, ten measures, progression of the disease after a year (Efron et al. 2004).

    The other options are those of `digits`.

    Parameters
    ----------
    scale_target : give the target mean 0 and standard deviation 1, so that plain SGD converges. Losses are then in squared
        standard deviations.
    """
    folder = _folder()
    if folder is not None:
        inputs, targets = (np.loadtxt(folder / f"diabetes_{part}.csv.gz") for part in ("data_raw", "target"))
    else:
        inputs, targets = _loaded("load_diabetes", scaled=False)
    whole = Dataset(inputs.astype(np.float32), targets.astype(np.float32), None, _DIABETES, "diabetes")
    return Split.of(
        whole,
        test_fraction=test_fraction,
        seed=seed,
        limit=limit,
        standardize=standardize,
        scale_target=scale_target,
    )


def _classes(name: str, table: NDArray[Any], classes: tuple[str, ...], features: tuple[str, ...]) -> Dataset:
    return Dataset(table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64), classes, features, name)


def _folder() -> Path | None:
    """Return scikit-learn's folder of data files. Reading them takes 0.02 s, importing its loaders 1 s."""
    found = importlib.util.find_spec("sklearn")
    for root in (found.submodule_search_locations or ()) if found else ():
        folder = Path(root) / "datasets" / "data"
        if folder.is_dir():
            return folder
    return None


def _table(file: str, loader: str) -> NDArray[np.float64]:
    """Return a read-only table of inputs, with targets in the last column."""
    return _read(_folder(), file, loader)


@cache  # a comparison loads the same data set in each cell
def _read(folder: Path | None, file: str, loader: str) -> NDArray[np.float64]:
    if folder is None:
        table = np.column_stack(_loaded(loader))
    else:
        table = np.loadtxt(folder / file, delimiter=",", skiprows=0 if file.startswith("digits") else 1)
    table.setflags(write=False)
    return table


def _loaded(loader: str, **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    import sklearn.datasets

    inputs, targets = getattr(sklearn.datasets, loader)(return_X_y=True, **options)
    return inputs, targets
