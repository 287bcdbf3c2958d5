"""Number of trees that an ensemble needs, for three partitions of the data; draws docs/images/bagging.png.

Four workers fit decision trees to bootstraps of the digits: of all digits, of an even quarter for each worker, or of a quarter
with few of the ten classes. The picture shows the accuracy of the first trees of each ensemble on the test set. At the end the
first ensemble is saved as a scikit-learn estimator and loaded again.

    python examples/bagging.py [--picture bagging.png]

Takes about 20 s on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import skops.io
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier

from chimera.engines.local import Local
from chimera.ensembles import Bagging

WORKERS, TREES = 4, 48
PARTITIONS: dict[str, Any] = {
    "all the data": None,
    "an even quarter each": "iid",
    "a quarter of few digits each": {"name": "dirichlet", "alpha": 0.1},
}


def accuracies(bag: Bagging, inputs: Any, targets: Any) -> list[float]:
    """Return the accuracy of the first tree, of the first two, and so on; the workers' trees alternate."""
    votes, reached = np.zeros((len(inputs), len(bag.classes_))), []
    for tree in bag.ensemble_.estimators_:
        votes[:, tree.classes_.astype(int)] += tree.predict_proba(inputs)  # a tree has only the classes of its own rows
        reached.append(float(np.mean(bag.classes_[votes.argmax(axis=1)] == targets)))
    return reached


def main() -> None:
    """Fit the three ensembles, draw the picture, save the first ensemble."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, default=Path("bagging.png"))
    picture = parser.parse_args().picture
    train, test, digits, answers = train_test_split(*load_digits(return_X_y=True), random_state=0)

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    bags = {}
    with Local() as engine:
        for name, partition in PARTITIONS.items():
            bag = Bagging(DecisionTreeClassifier(), TREES, workers=WORKERS, partition=partition, engine=engine)
            bags[name] = bag.fit(train, digits)
            reached = accuracies(bag, test, answers)
            axes.plot(range(1, TREES + 1), reached, label=name)
            print(f"{name}: one tree {reached[0]:.3f}, {TREES} trees {reached[-1]:.3f}")
    axes.set(xlabel="Trees of the ensemble", ylabel="Accuracy on the test set")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(picture, dpi=100)

    bags["all the data"].save("bagging.skops")
    again = skops.io.load("bagging.skops", trusted=["sklearn.tree._tree.Tree"])  # safe: this script wrote the file
    same = (again.predict(test) == bags["all the data"].predict(test)).all()
    print(f"{picture}; bagging.skops, loaded again, gives the same answers: {same}")


if __name__ == "__main__":
    main()
