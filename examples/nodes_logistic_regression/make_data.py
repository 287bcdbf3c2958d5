"""Write the data of the workers and of the client: python make_data.py [SEED]."""

import sys
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold, train_test_split

WORKERS = "sgd1", "sgd2"


def write(folder: Path, kind: str, inputs: pd.DataFrame, targets: pd.Series) -> None:
    """Write the two tables of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs.to_csv(folder / f"X_{kind}.csv", index=False)
    targets.to_frame("target").to_csv(folder / f"y_{kind}.csv", index=False)


def main(seed: int = 0) -> None:
    """Keep a quarter of the rows for the client, and give each worker half of the others; columns are standardized."""
    inputs, targets = load_breast_cancer(return_X_y=True, as_frame=True)
    mine, test, y_mine, y_test = train_test_split(inputs, targets, test_size=0.25, random_state=seed)
    mean, deviation = mine.mean(), mine.std()
    mine, test = (mine - mean) / deviation, (test - mean) / deviation
    write(Path("test_data"), "test", test, y_test)
    for worker, (_, rows) in zip(WORKERS, KFold(2, shuffle=True, random_state=seed).split(mine), strict=True):
        write(Path("chimera_train_data", worker), "train", mine.iloc[rows], y_mine.iloc[rows])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
