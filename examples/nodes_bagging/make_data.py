"""Write the data of the workers and of the client: python make_data.py [SEED]."""

import sys
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import KFold, train_test_split

SOURCES = {
    "classification": (load_breast_cancer, ("tree1", "tree2", "tree3")),
    "regression": (load_diabetes, ("regressor1", "regressor2", "regressor3")),
}


def write(folder: Path, kind: str, inputs: pd.DataFrame, targets: pd.Series) -> None:
    """Write the two tables of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs.to_csv(folder / f"X_{kind}.csv", index=False)
    targets.to_frame("target").to_csv(folder / f"y_{kind}.csv", index=False)


def main(seed: int = 0) -> None:
    """Keep a quarter of the rows for the client, and give each worker a third of the others."""
    for task, (load, workers) in SOURCES.items():
        inputs, targets = load(return_X_y=True, as_frame=True)
        mine, test, y_mine, y_test = train_test_split(inputs, targets, test_size=0.25, random_state=seed)
        write(Path("test_data", task), "test", test, y_test)
        parts = KFold(len(workers), shuffle=True, random_state=seed).split(mine)
        for worker, (_, rows) in zip(workers, parts, strict=True):
            write(Path("chimera_train_data", worker), "train", mine.iloc[rows], y_mine.iloc[rows])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
