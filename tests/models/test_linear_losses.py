import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import _sgd_fast as reference

from chimera.core.errors import ConfigurationError
from chimera.models.linear_losses import CLASSIFICATION, REGRESSION, Penalty, log_loss

PAIRS = {
    "squared_error": (REGRESSION["squared_error"], {}),
    "huber": (REGRESSION["huber"], {"epsilon": 0.3}),
    "epsilon_insensitive": (REGRESSION["epsilon_insensitive"], {"epsilon": 0.3}),
    "squared_epsilon_insensitive": (REGRESSION["squared_epsilon_insensitive"], {"epsilon": 0.3}),
} | {name: (loss, {}) for name, loss in CLASSIFICATION.items()}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=60, deadline=None)
@given(p=st.floats(-4, 4), y=st.floats(-4, 4), h=st.just(1e-6))
def test_derivative_equals_the_numerical_derivative(name, p, y, h):
    loss, options = PAIRS[name]
    y = y if name in REGRESSION else np.copysign(1.0, y)
    at = {d: loss(np.array([[p + d]]), np.array([[y]]), **options) for d in (-2 * h, -h, 0, h, 2 * h)}
    left, right = at[-h][1].item(), at[h][1].item()
    if abs(left - right) > 1e-3:  # at a kink, the derivative is that of one side
        assert at[0][1].item() in (
            pytest.approx(at[-2 * h][1].item(), abs=1e-4),
            pytest.approx(at[2 * h][1].item(), abs=1e-4),
        )
    else:
        assert at[0][1].item() == pytest.approx((at[h][0].item() - at[-h][0].item()) / (2 * h), abs=1e-4)


SCIKIT_LEARN = {
    "hinge": lambda: reference.Hinge(1.0),
    "perceptron": lambda: reference.Hinge(0.0),
    "squared_hinge": lambda: reference.SquaredHinge(1.0),
    "modified_huber": reference.ModifiedHuber,
    "epsilon_insensitive": lambda: reference.EpsilonInsensitive(0.3),
    "squared_epsilon_insensitive": lambda: reference.SquaredEpsilonInsensitive(0.3),
}


@pytest.mark.parametrize("name", SCIKIT_LEARN)
@settings(deadline=None)
@given(p=st.floats(-4, 4), y=st.sampled_from([-1.0, 1.0]))
def test_loss_and_derivative_equal_those_of_scikit_learn_also_at_kinks(name, p, y):
    loss, options = PAIRS[name]
    value, slope = loss(np.array([p]), np.array([y]), **options)
    assert value.item() == pytest.approx(SCIKIT_LEARN[name]().py_loss(p, y))
    assert slope.item() == pytest.approx(SCIKIT_LEARN[name]().py_dloss(p, y))


def test_log_loss_of_huge_scores_is_finite_and_correct():
    value, slope = log_loss(np.array([-1e4, 1e4, 0], np.float32), np.float32([1, 1, 1]))
    np.testing.assert_allclose(value, [1e4, 0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(slope, [-1, 0, -0.5], rtol=1e-6)


@settings(deadline=None)
@given(l1=st.floats(0, 2), l2=st.floats(0, 2), seed=st.integers(0, 99))
def test_penalty_gradient_equals_the_numerical_gradient(l1, l2, seed):
    weights, penalty, h = np.random.default_rng(seed).normal(size=(2, 3)), Penalty(l1, l2), 1e-7
    gradient = np.zeros((2, 3))
    penalty.add_gradient(weights, gradient)
    for index in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[index] = h
        slope = (penalty.value(weights + step) - penalty.value(weights - step)) / (2 * h)
        assert gradient[index] == pytest.approx(slope, abs=1e-5)


def test_elasticnet_lies_between_l1_and_l2():
    assert Penalty.of("l1", 0.5, 0.2) == Penalty(0.5, 0.0)
    assert Penalty.of("l2", 0.5, 0.2) == Penalty(0.0, 0.5)
    assert Penalty.of("elasticnet", 0.5, 0.2) == Penalty(pytest.approx(0.1), pytest.approx(0.4))
    with pytest.raises(ConfigurationError, match="unknown penalty 'l3'"):
        Penalty.of("l3", 1, 1)
