import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LogisticRegression, Perceptron, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.sklearn_model import SklearnModel

FEATURES = 5
CLASSIFICATION = ("log_loss", "hinge", "squared_hinge", "modified_huber", "perceptron", "squared_error")
REGRESSION = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive")


def rows(n, classes=0, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return inputs, rng.integers(0, classes, n) if classes else rng.normal(size=n).astype(np.float32)


def made(loss, classes, **options):
    if not classes:
        return SklearnModel(SGDRegressor(loss=loss, **options), n_features=FEATURES)
    return SklearnModel(SGDClassifier(loss=loss, **options), classes=range(classes), n_features=FEATURES)


def shaken(model, seed=0):
    model.load(np.random.default_rng(seed).normal(size=model.layout.size).astype(np.float32))
    return model


EVERY = [(loss, classes) for loss in CLASSIFICATION for classes in (2, 3)] + [(loss, 0) for loss in REGRESSION]


@pytest.mark.parametrize("penalty", [None, "l2", "l1", "elasticnet"])
@pytest.mark.parametrize(("loss", "classes"), EVERY)
def test_gradient_is_the_derivative_of_the_loss_it_reports(loss, classes, penalty):
    model = shaken(made(loss, classes, penalty=penalty, alpha=0.1))
    batch = rows(16, classes)
    gradient = model.gradient(batch)[0].copy()
    weights, h = model.parameters().copy(), 2e-3
    for index in range(weights.size):
        values = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[index] += sign * h
            model.load(moved)
            values.append(model.gradient(batch)[1])
        # if a float32 step crosses the kink of a few samples, the slope changes by their share
        assert gradient[index] == pytest.approx((values[0] - values[1]) / (2 * h), abs=5e-2, rel=2e-2)


@settings(max_examples=30, deadline=None)
@given(case=st.sampled_from(EVERY), workers=st.integers(1, 5), per_worker=st.integers(1, 9), seed=st.integers(0, 99))
def test_mean_over_workers_equals_the_gradient_of_the_whole_batch(case, workers, per_worker, seed):
    model = shaken(made(*case, penalty="elasticnet"), seed)
    inputs, targets = rows(workers * per_worker, case[1], seed)
    whole, loss = model.gradient((inputs, targets))
    whole, gradients, losses = whole.copy(), [], []
    for piece in zip(np.split(inputs, workers), np.split(targets, workers), strict=True):
        gradient, its_loss = model.gradient(piece)
        gradients.append(gradient.copy())
        losses.append(its_loss)
    np.testing.assert_allclose(np.mean(gradients, 0), whole, rtol=1e-4, atol=1e-5)
    assert np.mean(losses) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("class_weight", [None, {1: 3.0}])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("penalty", [None, "l2"])
@pytest.mark.parametrize(("loss", "classes"), EVERY)
def test_step_on_one_sample_equals_that_of_scikit_learn(loss, classes, penalty, fit_intercept, class_weight):
    rate = 0.05
    options = {"penalty": penalty, "alpha": 0.01, "fit_intercept": fit_intercept}
    if classes:
        options["class_weight"] = class_weight
    model = made(loss, classes, learning_rate="constant", eta0=rate, **options)
    own = clone(model.estimator)
    for seed in range(6):
        batch = rows(1, classes, seed)
        own.partial_fit(*batch, **({"classes": range(classes)} if classes else {}))
        gradient, _ = model.gradient(batch)
        model.load(model.parameters() - np.float32(rate) * gradient)
        np.testing.assert_allclose(model.estimator.coef_, own.coef_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.estimator.intercept_, own.intercept_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("loss", "classes"), EVERY)
def test_estimator_and_model_share_weights(loss, classes):
    model = shaken(made(loss, classes))
    inputs, targets = rows(200, classes)
    assert np.array_equal(model.predict(inputs), model.estimator.predict(inputs))
    figures = model.evaluate((inputs, targets))
    if classes:
        assert figures["accuracy"] == pytest.approx(model.estimator.score(inputs, targets))
    else:
        assert figures["r2"] == pytest.approx(model.estimator.score(inputs, targets), rel=1e-5)
        assert figures["mse"] == pytest.approx(sk.mean_squared_error(targets, model.predict(inputs)), rel=1e-5)
    assert figures["loss"] == pytest.approx(model.gradient((inputs, targets))[1], rel=1e-6)
    flat = model.parameters()
    flat[:] = 3
    assert (model.estimator.coef_ == 3).all()
    model.estimator.partial_fit(inputs, targets)
    assert np.array_equal(model.parameters()[:-1][: model.estimator.coef_.size], model.estimator.coef_.ravel())


@pytest.mark.parametrize(("loss", "classes"), [("log_loss", 2), ("hinge", 3), ("huber", 0)])
def test_pickling_keeps_predictions_and_views(loss, classes):
    model = shaken(made(loss, classes))
    batch = rows(20, classes)
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict(batch[0]), model.predict(batch[0]))
    assert np.array_equal(copy.gradient(batch)[0], model.gradient(batch)[0])
    copy.parameters()[:] = 0
    assert not copy.estimator.coef_.any()
    assert model.estimator.coef_.any()


def test_loss_of_logistic_regression_is_the_log_loss():
    model = shaken(made("log_loss", 2, penalty=None))
    inputs, targets = rows(300, 2)
    expected = sk.log_loss(targets, model.estimator.predict_proba(inputs)[:, 1])
    assert model.evaluate((inputs, targets))["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_pseudo_gradient_is_what_partial_fit_changes(classes):
    model = SklearnModel(Perceptron(), classes=range(classes), n_features=FEATURES)
    own = clone(model.estimator)
    for seed in range(3):
        batch = rows(10, classes, seed)
        for array in batch:
            array.setflags(write=False)
        own.partial_fit(*batch, classes=range(classes))
        gradient, _ = model.gradient(batch)
        model.load(model.parameters() - gradient)
        np.testing.assert_allclose(model.estimator.coef_, own.coef_, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(model.estimator.intercept_, own.intercept_, rtol=1e-5, atol=1e-6)


class Halving(RegressorMixin, BaseEstimator):
    """An estimator with float64 weights and a scalar intercept."""

    def partial_fit(self, inputs, targets):
        if not hasattr(self, "coef_"):
            self.coef_, self.intercept_ = np.zeros(inputs.shape[1]), 0.0
        self.coef_ = self.coef_ / 2
        self.intercept_ = float(np.mean(targets))
        return self


def test_user_estimator():
    model = SklearnModel(Halving(), n_features=FEATURES)
    model.load(np.full(FEATURES + 1, 4, np.float32))
    inputs, targets = rows(8)
    gradient, _ = model.gradient((inputs, targets + 10))
    np.testing.assert_allclose(gradient[:-1], 2)
    assert gradient[-1] == pytest.approx(4 - 10 - targets.mean(), rel=1e-5)
    assert (model.parameters() == 4).all()


def test_fitted_estimator_continues_from_its_weights_and_labels():
    inputs, targets = rows(60, 3)
    labels = np.array(["ant", "bee", "cat"])[targets]
    estimator = SGDClassifier(random_state=0).fit(inputs, labels)
    expected = estimator.predict(inputs)
    model = SklearnModel(estimator)
    assert np.array_equal(model.predict(inputs), expected)
    model.gradient((inputs, labels))
    with pytest.raises(DataError, match=r"the targets contain .*dog.*, but the classes are ant, bee, cat"):
        model.gradient((inputs[:2], np.array(["ant", "dog"])))


def test_images_are_flattened():
    model = SklearnModel(SGDRegressor(), n_features=6)
    model.gradient((np.ones((4, 2, 3), np.float32), np.ones(4)))


def test_the_seed_determines_the_result_and_global_random_state_is_unchanged():
    before = np.random.get_state()[1].copy()
    one, same, other = (
        SklearnModel(Perceptron(random_state=None), classes=[0, 1], n_features=FEATURES, seed=seed).gradient(
            rows(50, 2)
        )[0]
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SklearnModel(LogisticRegression()),
            r"LogisticRegression cannot learn from batches \(it has no partial_fit\)",
        ),
        (lambda: SklearnModel(GaussianNB(), classes=[0, 1], n_features=2), "GaussianNB is not linear"),
        (
            lambda: SklearnModel(SGDClassifier()),
            "SGDClassifier is not fitted: SklearnModel needs n_features and classes",
        ),
        (lambda: SklearnModel(SGDRegressor()), "SGDRegressor is not fitted: SklearnModel needs n_features"),
        (
            lambda: SklearnModel(SGDRegressor(average=True), n_features=2),
            r"SGDRegressor\(average=True\) cannot be trained",
        ),
        (
            lambda: SklearnModel(SGDRegressor(loss="hinge"), n_features=2),
            "cannot be trained with these parameters: The 'loss'",
        ),
        (lambda: SklearnModel(SGDClassifier(class_weight="balanced")), "give the weights as a dictionary"),
        (lambda: SklearnModel(SGDClassifier(), classes=[1, 0], n_features=2), "classes must be two or more, sorted"),
    ],
)
def test_errors_have_one_line(make, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((3, 4), np.float32), [0, 1, 0], "the model has 5 features, the inputs have 4"),
        (np.zeros((3, 5), np.float32), [0, 1, 2], "the targets contain .*2.*, but the classes are 0, 1"),
        (np.zeros((3, 5), np.float32), [0, 1, -1], "the targets contain .*-1.*, but the classes are 0, 1"),
        (np.zeros((3, 5), np.float32), [0, 1], r"3 rows of inputs need as many targets, these have shape \(2,\)"),
        (np.zeros((0, 5), np.float32), [], "a batch without rows has no loss"),
    ],
)
def test_data_that_do_not_fit(inputs, targets, message):
    model = made("hinge", 2)
    with pytest.raises(DataError, match=message):
        model.gradient((inputs, np.array(targets)))


def test_buffers_are_empty():
    model = made("hinge", 2)
    assert model.buffers().size == 0
    model.load_buffers(model.buffers())
    with pytest.raises(ConfigurationError, match="has no buffers"):
        model.load_buffers(np.zeros(1, np.float32))
