"""The models that come with Chimera, by name."""

from __future__ import annotations

import math
from typing import Any, Literal

from chimera.core.errors import ConfigurationError
from chimera.models.model import MODELS, Task
from chimera.models.sklearn_model import SklearnModel

Activation = Literal["tanh", "relu", "gelu", "sigmoid", "leaky-relu", "silu"]
_ACTIVATIONS = {
    "tanh": "Tanh",
    "relu": "ReLU",
    "gelu": "GELU",
    "sigmoid": "Sigmoid",
    "leaky-relu": "LeakyReLU",
    "silu": "SiLU",
}


def _activation(name: str) -> Any:
    from torch import nn

    if name not in _ACTIVATIONS:
        raise ConfigurationError(f"unknown activation {name!r}; known: {', '.join(sorted(_ACTIVATIONS))}")
    return getattr(nn, _ACTIVATIONS[name])()


def _check(model: str, dropout: float = 0.0, **widths: tuple[int, ...]) -> None:
    if not 0 <= dropout < 1:
        raise ConfigurationError(f"model {model!r}, option 'dropout': {dropout!r} must be at least 0 and below 1")
    for option, values in widths.items():
        if any(value < 1 for value in values):
            raise ConfigurationError(f"model {model!r}, option {option!r}: {list(values)} must all be at least 1")


def _dense(
    inputs: int, hidden: tuple[int, ...], outputs: int, activation: str, dropout: float = 0.0, batch_norm: bool = False
) -> list[Any]:
    from torch import nn

    layers: list[Any] = []
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(_activation(activation))
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return [*layers, nn.Linear(inputs, outputs)]


def _sequential(input_shape: tuple[int, ...], layers: list[Any]) -> Any:
    from torch import nn

    return nn.Sequential(*([] if len(input_shape) == 1 else [nn.Flatten()]), *layers)


@MODELS.register("mlp", requires="torch", extra="train")
def mlp(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    hidden: tuple[int, ...] = (128, 128),
    activation: Activation = "tanh",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Any:
    """Multi-layer perceptron.

    Parameters
    ----------
    input_shape, outputs : shape of one input, which is flattened, and the number of classes or values.
    hidden : width of each hidden layer.
    activation : activation after each hidden layer: tanh, relu, gelu, sigmoid, leaky-relu or silu.
    dropout : probability with which a hidden unit is dropped in training.
    batch_norm : whether to normalise before each activation.
    """
    _check("mlp", dropout, hidden=hidden)
    return _sequential(input_shape, _dense(math.prod(input_shape), hidden, outputs, activation, dropout, batch_norm))


def _linear(input_shape: tuple[int, ...], outputs: int) -> Any:
    from torch import nn

    layer = nn.Linear(math.prod(input_shape), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return _sequential(input_shape, [layer])


@MODELS.register("logistic-regression", requires="torch", extra="train")
def logistic_regression(*, input_shape: tuple[int, ...], outputs: int, task: Task = "classification") -> Any:
    """Multinomial logistic regression, from zero weights."""
    if task != "classification":
        raise ConfigurationError(
            "model 'logistic-regression' is for classification; for values use 'linear-regression'"
        )
    return _linear(input_shape, outputs)


@MODELS.register("linear-regression", requires="torch", extra="train")
def linear_regression(*, input_shape: tuple[int, ...], outputs: int, task: Task = "regression") -> Any:
    """Linear regression by least squares, from zero weights."""
    if task != "regression":
        raise ConfigurationError("model 'linear-regression' is for regression; for classes use 'logistic-regression'")
    return _linear(input_shape, outputs)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (channels, height, width) of an input, which may have no channels or be a flat square."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    side = math.isqrt(math.prod(shape))
    if len(shape) != 1 or side * side != shape[0]:
        raise ConfigurationError(
            f"model 'cnn' needs inputs of shape (channels, height, width), (height, width) or a flat square, not {shape}"
        )
    return 1, side, side


@MODELS.register("cnn", requires="torch", extra="train")
def cnn(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    channels: tuple[int, ...] = (8, 16),
    hidden: tuple[int, ...] = (64,),
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Any:
    """Small convolutional network: 3 x 3 convolutions, each followed by 2 x 2 max-pooling, then dense layers.

    Parameters
    ----------
    input_shape, outputs : shape of one image (channels, height, width), (height, width) or a flat square; and the number of
        classes or values.
    channels : output channels of each convolution.
    hidden : width of each dense layer before the last.
    activation : activation after each convolution and hidden layer.
    dropout : probability with which a hidden unit is dropped in training.
    batch_norm : whether to normalise before each activation.
    """
    from torch import nn

    _check("cnn", dropout, channels=channels, hidden=hidden)
    depth, height, width = shape = _image_shape(input_shape)
    layers: list[Any] = [] if shape == input_shape else [nn.Flatten(), nn.Unflatten(1, shape)]
    for count in channels:
        layers.append(nn.Conv2d(depth, count, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(count))
        layers += [_activation(activation), nn.MaxPool2d(2)]
        depth, height, width = count, height // 2, width // 2
    if not height * width:
        raise ConfigurationError(f"model 'cnn': {len(channels)} poolings leave no pixel of an image of shape {shape}")
    dense = _dense(depth * height * width, hidden, outputs, activation, dropout, batch_norm)
    return nn.Sequential(*layers, nn.Flatten(), *dense)


_PENALTIES = {"l2": "l2", "l1": "l1", "elasticnet": "elasticnet", "none": None}


@MODELS.register("sklearn-sgd-classifier", preload=["sklearn.linear_model"])
def sklearn_sgd_classifier(
    *,
    task: Task = "classification",
    loss: Literal["hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron"] = "hinge",
    penalty: Literal["l2", "l1", "elasticnet", "none"] = "l2",
    alpha: float = 1e-4,
    l1_ratio: float = 0.15,
    fit_intercept: bool = True,
    seed: int = 0,
) -> Any:
    """Linear classifier: scikit-learn's SGDClassifier (options as there), one versus rest, with its exact gradient.

    The strategy's optimizer takes the steps, not scikit-learn's. The result is the estimator, which `as_model` adapts to the
    features and labels of the data.

    Parameters
    ----------
    task : ``classification``.
    loss : loss of a sample: ``hinge`` (a linear support vector machine), ``log_loss`` (logistic regression),
        ``modified_huber``, ``squared_hinge`` or ``perceptron``.
    penalty : norm of the coefficients that is added to the loss: ``l2``, ``l1``, ``elasticnet`` (a mixture of both) or
        ``none``.
    alpha : factor of the penalty.
    l1_ratio : share of the l1 norm in ``elasticnet``, from 0 to 1.
    fit_intercept : whether the model has an intercept.
    seed : seed of the model; it starts from zero weights, so the seed has no effect on its gradients.
    """
    from sklearn.linear_model import SGDClassifier

    if task != "classification":
        raise ConfigurationError(
            "model 'sklearn-sgd-classifier' is for classification; for values use 'sklearn-sgd-regressor'"
        )
    return SGDClassifier(
        loss=loss,
        penalty=_PENALTIES[penalty],
        alpha=alpha,
        l1_ratio=l1_ratio,
        fit_intercept=fit_intercept,
        learning_rate="constant",
        random_state=seed,
    )


@MODELS.register("sklearn-sgd-regressor", preload=["sklearn.linear_model"])
def sklearn_sgd_regressor(
    *,
    input_shape: tuple[int, ...],
    outputs: int = 1,
    task: Task = "regression",
    loss: Literal["squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"] = "squared_error",
    epsilon: float = 0.1,
    penalty: Literal["l2", "l1", "elasticnet", "none"] = "l2",
    alpha: float = 1e-4,
    l1_ratio: float = 0.15,
    fit_intercept: bool = True,
    seed: int = 0,
) -> SklearnModel:
    """Linear regression: scikit-learn's SGDRegressor (options as there) with its exact gradient; one target.

    The strategy's optimizer takes the steps, not scikit-learn's. The options that have no description here are those of
    `sklearn_sgd_classifier`.

    Parameters
    ----------
    loss : loss of a sample: ``squared_error``, ``huber`` (absolute above ``epsilon``), ``epsilon_insensitive`` (zero below
        ``epsilon``, then absolute) or ``squared_epsilon_insensitive``.
    epsilon : error up to which ``huber`` is squared and the two insensitive losses are zero.
    """
    from sklearn.linear_model import SGDRegressor

    if task != "regression":
        raise ConfigurationError(
            "model 'sklearn-sgd-regressor' is for regression; for classes use 'sklearn-sgd-classifier'"
        )
    if outputs != 1:
        raise ConfigurationError(
            f"model 'sklearn-sgd-regressor' has one target, the data have {outputs}; use 'linear-regression'"
        )
    estimator = SGDRegressor(
        loss=loss,
        epsilon=epsilon,
        penalty=_PENALTIES[penalty],
        alpha=alpha,
        l1_ratio=l1_ratio,
        fit_intercept=fit_intercept,
        learning_rate="constant",
    )
    return SklearnModel(estimator, n_features=math.prod(input_shape), seed=seed)
