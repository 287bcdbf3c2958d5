"""California housing: the values of houses in 20,640 districts of California in 1990."""

from __future__ import annotations

from pathlib import Path

from chimera.core.named_places import data_folder
from chimera.data.dataset import Dataset
from chimera.data.download import downloading
from chimera.data.split import DATASETS, Split

_NAME = "california-housing"
_FILES = (f"{_NAME}.npz", f"{_NAME}.csv", "california_housing.csv")


@DATASETS.register(_NAME)
def california_housing(
    *,
    path: str | None = None,
    limit: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    standardize: bool = True,
    scale_target: bool = True,
) -> Split:
    """California housing: eight features of 20,640 districts and their median house value (Pace and Barry 1997).

    Parameters
    ----------
    path : a CSV file with the value in its last column, or an .npz file with ``inputs`` and ``targets``. By default
        ``california-housing.npz`` or ``.csv`` in ``$CHIMERA_DATA``, or else scikit-learn's copy, which is downloaded once.
    limit : number of train samples to keep, chosen at random; default all.
    test_fraction : share of the samples that becomes the test part.
    seed : seed of the limit and of the split.
    standardize : give every feature mean 0 and standard deviation 1.
    scale_target : give the value mean 0 and standard deviation 1, so that plain SGD converges; losses are then in squared
        standard deviations.
    """
    return Split.of(
        _load(path),
        test_fraction=test_fraction,
        seed=seed,
        limit=limit,
        standardize=standardize,
        scale_target=scale_target,
    )


def _load(path: str | None) -> Dataset:
    home = data_folder()
    places = [home / folder / file for folder in ("", _NAME) for file in _FILES] if home else []
    file = Path(path) if path is not None else next((place for place in places if place.is_file()), None)
    if file is not None:
        return Dataset.of(file, task="regression", name=_NAME)
    advice = f"needed is {_FILES[0]} or {_FILES[1]}: set the option 'path' to the file, or put it into $CHIMERA_DATA"
    with downloading(_NAME, f"{advice} ({home or 'not set'})"):
        from sklearn.datasets import fetch_california_housing

        found = fetch_california_housing(n_retries=1, delay=0.5)
    whole = Dataset.of((found.data, found.target), task="regression", name=_NAME)
    return Dataset(whole.inputs, whole.targets, features=tuple(found.feature_names), name=_NAME)
