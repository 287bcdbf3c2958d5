"""Speed of ensembles fitted by one worker, by two, and by scikit-learn with one process and with two.

The variants alternate. The table shows medians of the seconds of a fit and of the speed-up over one worker. The time includes
the start of the workers, except in the variant ``kept``, whose engine is open already. Run it on an idle machine::

    python benchmarks/ensembles.py [--turns 5] [--estimators 40]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

SAMPLES, FEATURES = 10_000, 40


def variants(estimators: int, inputs: Any, targets: Any, kept: Any) -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import BaggingClassifier
    from sklearn.tree import DecisionTreeClassifier

    from chimera.ensembles import Bagging

    def chimera_s(workers: int, engine: Any) -> Callable[[], Any]:
        bag = Bagging(DecisionTreeClassifier(), n_estimators=estimators, workers=workers, engine=engine, seed=1)
        return lambda: bag.fit(inputs, targets)

    def sklearn_s(jobs: int) -> Callable[[], Any]:
        bag = BaggingClassifier(DecisionTreeClassifier(), n_estimators=estimators, n_jobs=jobs, random_state=1)
        return lambda: bag.fit(inputs, targets)

    return {
        "one worker": chimera_s(1, "local"),
        "two workers": chimera_s(2, "local"),
        "two workers, engine kept": chimera_s(2, kept),
        "scikit-learn, one process": sklearn_s(1),
        "scikit-learn, two processes": sklearn_s(2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--estimators", type=int, default=40)
    arguments = parser.parse_args()
    import sklearn
    from sklearn.datasets import make_classification

    import chimera
    from chimera.engines.local import Local

    inputs, targets = make_classification(SAMPLES, FEATURES, n_informative=20, random_state=0)
    about = f"chimera {chimera.__version__}, scikit-learn {sklearn.__version__}, Python {platform.python_version()}"
    print(f"{about}, {os.cpu_count()} processors")
    print(
        f"{arguments.estimators} trees, {SAMPLES:,} samples, {FEATURES} features; medians of {arguments.turns} repetitions"
    )
    with contextlib.closing(Local(preload=["sklearn.tree"])) as kept:
        fits = variants(arguments.estimators, inputs, targets, kept)
        found: dict[str, list[float]] = {name: [] for name in fits}
        for _ in range(arguments.turns):
            for name, fit in fits.items():
                began_s = time.perf_counter()
                fit()
                found[name].append(time.perf_counter() - began_s)
    one = statistics.median(found["one worker"])
    print(f"{'':32}{'seconds':>9}{'spread':>8}{'speed-up':>10}")
    for name, values in found.items():
        value = statistics.median(values)
        print(f"{name:32}{value:9.2f}{(max(values) - min(values)) / value:8.0%}{one / value:10.2f}")


if __name__ == "__main__":
    main()
