"""Ensembles fitted by workers: equality with scikit-learn, replacement of dead workers, saving and serving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, make_friedman1
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from threadpoolctl import threadpool_limits

from chimera.core.errors import ConfigurationError, DataError, RunError
from chimera.engines.simulated.engine import Simulated
from chimera.ensembles import Bagging, FederatedForest, Stacking, Voting
from chimera.ensembles.fitter import Fitter
from chimera.inference import models
from ensembles.killing_estimator import KillingEstimator

DIGITS, CANCER, DIABETES, IRIS = (
    train_test_split(*load(return_X_y=True), random_state=0)
    for load in (load_digits, load_breast_cancer, load_diabetes, load_iris)
)
FRIEDMAN = train_test_split(*make_friedman1(1000, random_state=0), random_state=0)
NAMED = [
    ("tree", DecisionTreeClassifier(max_depth=4, random_state=0)),
    ("bayes", GaussianNB()),
    ("scaled", make_pipeline(StandardScaler(), LogisticRegression())),
]
VALUES = [("ridge", Ridge()), ("tree", DecisionTreeRegressor(max_depth=3, random_state=0))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


def scores(make: Any, data: Any, seeds: int = 8) -> np.ndarray:
    inputs, others, targets, wanted = data
    return np.array([make(seed).fit(inputs, targets).score(others, wanted) for seed in range(seeds)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("ours", "theirs", "data"),
    [
        (
            lambda seed: Bagging(n_estimators=20, engine="simulated", seed=seed),
            lambda seed: BaggingClassifier(n_estimators=20, random_state=seed),
            DIGITS,
        ),
        (
            lambda seed: Bagging(DecisionTreeRegressor(), 20, max_samples=0.6, engine="simulated", seed=seed),
            lambda seed: BaggingRegressor(n_estimators=20, max_samples=0.6, random_state=seed),
            DIABETES,
        ),
        (
            lambda seed: FederatedForest(n_estimators=40, workers=1, engine="simulated", seed=seed),
            lambda seed: RandomForestClassifier(40, random_state=seed),
            DIGITS,
        ),
        (
            lambda seed: FederatedForest(ExtraTreesRegressor(), 40, workers=1, engine="simulated", seed=seed),
            lambda seed: ExtraTreesRegressor(40, random_state=seed),
            DIABETES,
        ),
    ],
    ids=["classes", "values", "forest", "extra trees"],
)
def test_scores_equal_those_of_scikit_learn_within_sampling_error(ours: Any, theirs: Any, data: Any) -> None:
    here, there = scores(ours, data), scores(theirs, data)
    error = np.hypot(here.std(ddof=1), there.std(ddof=1)) / np.sqrt(len(here))
    assert abs(here.mean() - there.mean()) < 3.5 * error


@pytest.mark.parametrize("engine", ["simulated", "local", pytest.param("ray", marks=pytest.mark.long)])
def test_predictions_are_bit_equal_for_any_workers_and_engine(engine: str) -> None:
    inputs, others, targets, _ = CANCER
    alone = Bagging(n_estimators=6, workers=1, engine="simulated").fit(inputs, targets).predict_proba(others)
    many = Bagging(n_estimators=6, workers=3, engine=engine).fit(inputs, targets).predict_proba(others)
    np.testing.assert_array_equal(alone, many)


@pytest.mark.parametrize("estimator", [Ridge(), make_pipeline(StandardScaler(), Ridge())], ids=["weighs", "repeats"])
def test_a_row_drawn_several_times_counts_several_times(estimator: Any) -> None:
    inputs, _, targets, _ = DIABETES
    fitter = Fitter(inputs, targets, np.arange(20, 120))
    fitted = fitter.draw_and_fit(estimator, 7, 0.9, True, "predict")
    drawn = 20 + np.random.default_rng(7).integers(100, size=90)
    assert len(set(drawn)) < len(drawn)
    same = clone(estimator).fit(inputs[drawn], targets[drawn])
    np.testing.assert_allclose(fitted.estimator.predict(inputs), same.predict(inputs), rtol=1e-9)
    assert sorted(fitted.left_out) == sorted(set(range(20, 120)) - set(drawn))
    np.testing.assert_array_equal(fitted.predictions, fitted.estimator.predict(inputs[fitted.left_out]))


def test_a_sample_is_drawn_from_the_rows_of_its_worker() -> None:
    inputs, targets, rows = np.arange(100.0)[:, None], np.arange(100) % 2, np.arange(10, 50)
    worker = Fitter(inputs, targets, rows)
    fitted = worker.draw_and_fit(DecisionTreeClassifier(), 1, share=0.25, replace=False, oob_method="predict")
    assert len(fitted.left_out) == 30
    assert set(fitted.left_out) < set(rows)


def test_a_row_that_makes_a_class_known_has_no_effect_on_a_forest() -> None:
    inputs, targets = np.arange(30.0)[:, None], np.arange(30) % 2
    forest = Fitter(inputs, targets, None).grow(RandomForestClassifier(bootstrap=False), 1, trees=3, classes=4)
    assert forest.classes_.tolist() == [0, 1, 2, 3]
    assert forest.predict_proba(inputs).tolist() == np.eye(4)[targets].tolist()  # the trees fit each row exactly


def test_a_prediction_is_the_mean_of_the_estimators() -> None:
    inputs, others, targets, _ = DIABETES
    bagging = Bagging(DecisionTreeRegressor(), 5, engine="simulated", partition="iid").fit(inputs, targets)
    np.testing.assert_allclose(
        bagging.predict(others), np.mean([each.predict(others) for each in bagging.estimators_], axis=0)
    )


@pytest.mark.parametrize("estimator", [None, LinearSVC(), DecisionTreeRegressor()], ids=["proba", "votes", "values"])
def test_the_out_of_bag_score_estimates_the_test_score(estimator: Any) -> None:
    inputs, others, targets, wanted = FRIEDMAN if isinstance(estimator, DecisionTreeRegressor) else CANCER
    bagging = Bagging(estimator, 60, oob_score=True, engine="simulated", partition="iid").fit(inputs, targets)
    assert bagging.oob_score_ == pytest.approx(bagging.score(others, wanted), abs=0.12)
    assert bagging.oob_score_ < Bagging(estimator, 60, engine="simulated").fit(inputs, targets).score(inputs, targets)


@pytest.mark.parametrize("voting", ["hard", "soft"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 4.0]])
def test_votes_equal_those_of_scikit_learn(voting: Any, weights: Any) -> None:
    inputs, others, targets, _ = DIGITS
    theirs = VotingClassifier(NAMED, voting=voting, weights=weights).fit(inputs, targets)
    ours = Voting(unseeded(NAMED), voting=voting, weights=weights, workers=3, engine="simulated").fit(inputs, targets)
    assert np.mean(ours.predict(others) == theirs.predict(others)) > 0.97  # trees break ties by their seeds
    steady = [pair for pair in NAMED if pair[0] != "tree"]
    weights = weights and weights[1:]
    theirs = VotingClassifier(steady, voting=voting, weights=weights).fit(inputs, targets)
    ours = Voting(steady, voting=voting, weights=weights, engine="simulated").fit(inputs, targets)
    np.testing.assert_array_equal(ours.predict(others), theirs.predict(others))


def unseeded(named: Any) -> Any:
    return [(name, clone(each)) for name, each in named]


def test_averaged_values_equal_those_of_scikit_learn() -> None:
    inputs, others, targets, _ = DIABETES
    named = [("ridge", Ridge()), ("line", LinearRegression())]
    theirs = VotingRegressor(named, weights=[1, 3]).fit(inputs, targets)
    ours = Voting(named, weights=[1, 3], engine="simulated").fit(inputs, targets)
    np.testing.assert_allclose(ours.predict(others), theirs.predict(others))


@pytest.mark.parametrize("passthrough", [False, True])
@pytest.mark.parametrize(
    ("data", "classes"), [(CANCER, True), (IRIS, True), (DIABETES, False)], ids=["two", "many", "values"]
)
def test_stacking_equals_that_of_scikit_learn(data: Any, classes: bool, passthrough: bool) -> None:
    inputs, others, targets, _ = data
    named = NAMED[1:] if classes else [("ridge", Ridge()), ("line", LinearRegression())]
    last = make_pipeline(StandardScaler(), LogisticRegression()) if classes else None
    kind = StackingClassifier if classes else StackingRegressor
    theirs = kind(named, last, cv=3, passthrough=passthrough).fit(inputs, targets)
    ours = Stacking(named, last, cv=3, passthrough=passthrough, workers=3, engine="simulated").fit(inputs, targets)
    np.testing.assert_allclose(ours.predict(others), theirs.predict(others))


def test_a_forest_combines_trees_of_workers_that_lack_some_classes() -> None:
    inputs, others, targets, wanted = DIGITS
    by_label = {"name": "by-label"}
    forest = FederatedForest(n_estimators=60, workers=5, engine="simulated", partition=by_label).fit(inputs, targets)
    assert len(forest.ensemble_.estimators_) == 60
    assert forest.predict_proba(others).shape == (len(others), 10)
    alone = FederatedForest(n_estimators=12, workers=1, engine="simulated", partition="iid").fit(
        inputs[targets < 3], targets[targets < 3]
    )
    assert forest.score(others, wanted) > 2 * alone.score(others, wanted)


def test_labels_may_be_strings() -> None:
    inputs, others, targets, wanted = CANCER
    names = np.array(["malignant", "benign"])
    for ensemble in (
        Bagging(engine="simulated"),
        Voting(NAMED, engine="simulated"),
        FederatedForest(engine="simulated"),
    ):
        fitted = ensemble.fit(inputs, names[targets])
        assert set(fitted.predict(others)) <= set(names)
        assert fitted.score(others, names[wanted]) > 0.9
        assert is_classifier(fitted)


@pytest.mark.long
def test_dead_workers_are_replaced_up_to_the_limit_without_a_change_of_the_result(tmp_path: Path) -> None:
    inputs, others, targets, _ = CANCER
    for number in range(2):
        (tmp_path / str(number)).touch()
    bagging = Bagging(KillingEstimator(str(tmp_path)), 6, engine="local").fit(inputs, targets)
    quiet = Bagging(KillingEstimator(str(tmp_path)), 6, engine="simulated").fit(inputs, targets)
    np.testing.assert_array_equal(bagging.predict_proba(others), quiet.predict_proba(others))
    for number in range(9):
        (tmp_path / str(number)).touch()
    with pytest.raises(RunError, match=r"worker \d died, and no restarts are left"):
        Bagging(KillingEstimator(str(tmp_path)), 6, engine="local").fit(inputs, targets)


@pytest.mark.parametrize(
    "ensemble",
    [Bagging(n_estimators=3), Voting(NAMED, voting="soft"), Stacking(NAMED, cv=2), FederatedForest(n_estimators=4)],
    ids=lambda each: type(each).__name__,
)
def test_an_ensemble_can_be_saved_loaded_and_served(ensemble: Any, tmp_path: Path) -> None:
    inputs, others, targets, _ = CANCER
    import skops.io  # here, since this import takes seconds

    file = tmp_path / "ensemble.skops"
    table = ensemble.set_params(engine="simulated").fit(inputs, targets).save(file)
    served = models.load(models.read(str(table))).predict(others[:5].tolist())
    np.testing.assert_array_equal(served, ensemble.predict(others[:5]))
    loaded = skops.io.load(file, trusted=skops.io.get_untrusted_types(file=file))
    np.testing.assert_array_equal(loaded.predict(others), ensemble.predict(others))


@pytest.mark.parametrize(
    ("ensemble", "message"),
    [
        (Bagging(n_estimators=0), "n_estimators must be at least 1"),
        (Bagging(max_samples=1.5), "max_samples above 0"),
        (Bagging(oob_score=True, bootstrap=False), "oob_score needs rows that were not drawn"),
        (Bagging(workers=0), "workers must be at least 1"),
        (Bagging(LogisticRegression(C=-1.0)), "worker 0 cannot fit: InvalidParameterError"),
        (Bagging(partition="nowhere"), "nowhere"),
        (Bagging(partition="by-group"), "the rows of an ensemble have no groups"),
        (Voting([]), "regressors only; there are none"),
        (Voting([*NAMED[:1], *VALUES[:1]]), "regressors only; there are both"),
        (Voting(NAMED, weights=[1.0]), "one value for each of the 3 estimators, not 1"),
        (FederatedForest(DecisionTreeClassifier()), "DecisionTreeClassifier is not a forest"),
        (FederatedForest(n_estimators=1), "n_estimators must be at least the number of workers, 2, not 1"),
        (FederatedForest(RandomForestRegressor(), 1, workers=3), "at least the number of workers, 3, not 1"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_in_one_line(ensemble: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        ensemble.set_params(engine="simulated").fit(CANCER[0], CANCER[2])
    assert "\n" not in str(caught.value)


def test_invalid_data_are_refused_before_they_reach_a_worker() -> None:
    inputs, targets = CANCER[0].copy(), CANCER[2]
    with pytest.raises(DataError, match="inconsistent numbers of samples"):
        Bagging(engine="simulated").fit(inputs[:-1], targets)
    inputs[3, 4] = np.nan
    with pytest.raises(DataError, match="NaN"):
        Bagging(engine="simulated").fit(inputs, targets)


def test_a_given_engine_stays_open() -> None:
    with Simulated() as engine:
        for _ in range(2):
            Bagging(n_estimators=2, engine=engine).fit(CANCER[0], CANCER[2])
        assert engine.now() >= 0
