import pickle
import warnings

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import nn
from torch.nn import functional as F  # noqa: N812

from chimera.core.errors import ConfigurationError, DataError, UnknownNameError
from chimera.models.torch_model import TorchModel


class Tied(nn.Module):
    """An auto-encoder whose decoder is its transposed encoder; one weight is frozen, and one is unused."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.middle = nn.Linear(4, 4)
        self.again = self.middle
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        hidden = torch.tanh(self.frozen(self.again(self.middle(self.encoder(x)))))
        return F.linear(hidden, self.encoder.weight.t())


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 5, sparse=True)
        self.out = nn.Linear(5, 3)

    def forward(self, words):
        return self.out(self.embedding(words).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


def rows(n=12, seed=0, kind="float"):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, 20, (n, 6)) if kind == "int" else rng.normal(size=(n, 6)).astype(np.float32)
    return inputs, rng.integers(0, 3, n)


CASES = {
    "mlp": (mlp, "cross-entropy", rows()),
    "batch norm cnn": (cnn, "cross-entropy", rows()),
    "embedding": (Words, "cross-entropy", rows(kind="int")),
    "tied": (Tied, "mse", (rows()[0], rows(seed=1)[0])),
}


@pytest.fixture(params=CASES)
def case(request):
    factory, loss, batch = CASES[request.param]
    return TorchModel(factory, loss=loss, seed=3), factory, batch


def by_hand(model, factory, batch):
    """Return the gradient of each parameter, computed by torch only, in the layout's order."""
    module = factory()
    module.load_state_dict(model.module.state_dict())
    inputs, targets = (torch.from_numpy(array) for array in batch)
    model.loss.function(module(inputs), targets).backward()
    places = dict(module.named_parameters())
    grads = [places[name].grad for name in model.layout.names]
    pieces = [torch.zeros(s) if g is None else g.to_dense() for g, s in zip(grads, model.layout.shapes, strict=True)]
    return torch.cat([piece.reshape(-1) for piece in pieces]).numpy()


def test_vector_and_parameters_are_the_same_memory(case):
    model, _, _ = case
    flat = model.parameters()
    flat[:] = np.arange(flat.size)
    places = dict(model.module.named_parameters())
    for name, view in model.layout.split(flat).items():
        assert np.array_equal(places[name].detach().numpy(), view)
        with torch.no_grad():
            places[name].fill_(-1)
        assert (view == -1).all()


def test_gradient_equals_that_of_autograd(case):
    model, factory, batch = case
    gradient, loss = model.gradient(batch)
    np.testing.assert_allclose(gradient, by_hand(model, factory, batch), rtol=1e-5, atol=1e-7)
    inputs, targets = map(torch.from_numpy, batch)
    assert loss == pytest.approx(model.loss(model.module(inputs), targets).item())


def test_second_gradient_does_not_contain_the_first(case):
    model, _, batch = case
    first = model.gradient(batch)[0].copy()
    model.gradient((batch[0][:5], batch[1][:5]))
    again, _ = model.gradient(batch)
    np.testing.assert_allclose(again, first, rtol=1e-6, atol=1e-8)


def test_frozen_parameters_stay_and_unused_ones_have_no_gradient():
    model = TorchModel(Tied, loss="mse", seed=0)
    assert not any("frozen" in name or "again" in name for name in model.layout.names)
    before = model.module.frozen.weight.clone()
    gradient, _ = model.gradient(CASES["tied"][2])
    model.load(model.parameters() - gradient)
    assert torch.equal(model.module.frozen.weight, before)
    assert model.module.frozen.weight.grad is None
    assert not model.layout.split(gradient)["unused.weight"].any()


@settings(max_examples=25, deadline=None)
@given(workers=st.integers(1, 4), per_worker=st.integers(1, 7), seed=st.integers(0, 99))
def test_mean_over_workers_equals_the_gradient_of_the_whole_batch(workers, per_worker, seed):
    model = TorchModel(mlp, seed=1)
    inputs, targets = rows(workers * per_worker, seed)
    whole, loss = model.gradient((inputs, targets))
    whole = whole.copy()
    gradients, losses = [], []
    for piece in zip(np.split(inputs, workers), np.split(targets, workers), strict=True):
        gradient, its_loss = model.gradient(piece)
        gradients.append(gradient.copy())
        losses.append(its_loss)
    np.testing.assert_allclose(np.mean(gradients, 0), whole, rtol=1e-4, atol=1e-6)
    assert np.mean(losses) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_optimizer_on_the_flat_parameter_steps_like_one_on_all(case, optimizer):
    model, factory, batch = case
    module = factory()
    module.load_state_dict(model.module.state_dict())
    names = model.layout.names
    reference = optimizer([dict(module.named_parameters())[name] for name in names], lr=0.05)
    stepper = optimizer([model.flat_parameter()], lr=0.05)
    for _ in range(3):
        reference.zero_grad()
        model.loss.function(module(*map(torch.from_numpy, batch[:1])), torch.from_numpy(batch[1])).backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
            elif name in names:
                parameter.grad = torch.zeros_like(parameter)
        reference.step()
        stepper.zero_grad()
        model.gradient(batch)
        model.flat_parameter()
        stepper.step()
    for name, parameter in module.named_parameters():
        trained = dict(model.module.named_parameters())[name]
        torch.testing.assert_close(trained, parameter, rtol=1e-4, atol=1e-5)


def test_clearing_gradients_breaks_nothing(case):
    model, _, batch = case
    expected = model.gradient(batch)[0].copy()
    model.module.zero_grad(set_to_none=True)
    np.testing.assert_allclose(model.gradient(batch)[0], expected, rtol=1e-6, atol=1e-8)
    for parameter in model.module.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    np.testing.assert_allclose(model.gradient(batch)[0], expected, rtol=1e-6, atol=1e-8)


class Clears(nn.Module):
    """A module that clears its own gradients in the forward pass."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        self.zero_grad(set_to_none=True)
        return self.net(x)


def test_clearing_gradients_within_the_step_breaks_nothing():
    model, reference = TorchModel(Clears, seed=1), TorchModel(mlp, seed=1)
    for _ in range(2):
        np.testing.assert_allclose(model.gradient(rows())[0], reference.gradient(rows())[0], rtol=1e-6)


def test_replaced_parameters_become_views_again(case):
    model, factory, batch = case
    other = TorchModel(factory, loss=model.loss.name, seed=8)
    model.module.load_state_dict(other.module.state_dict(), assign=True)
    np.testing.assert_allclose(model.gradient(batch)[0], other.gradient(batch)[0], rtol=1e-5, atol=1e-7)
    assert np.array_equal(model.parameters(), other.parameters())
    last = list(model.module.parameters())[-1]
    last.data = torch.full_like(last, 7.0)
    assert (model.parameters()[-last.numel() :] == 7).all()
    model.parameters()[-1] = 9
    assert last.flatten()[-1] == 9


def test_parameters_that_changed_shape_or_type_are_rejected():
    model = TorchModel(mlp, seed=0)
    model.module.double()
    with pytest.raises(ConfigurationError, match=r"'0.weight' is now torch.float64 of shape \(5, 6\)"):
        model.gradient(rows())


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_pickling_keeps_predictions_and_views(case, dumps):
    model, _, batch = case
    model.gradient(batch)
    data = dumps(model)
    copy = pickle.loads(data)
    assert np.array_equal(copy.predict(batch[0]), model.predict(batch[0]))
    assert np.array_equal(copy.buffers(), model.buffers())
    copy.load(np.zeros(copy.layout.size, np.float32))
    assert all(not parameter.any() for parameter in copy.module.parameters() if parameter.requires_grad)
    assert model.parameters().any()
    np.testing.assert_allclose(copy.gradient(batch)[0].shape, model.gradient(batch)[0].shape)


def test_pickle_holds_the_weights_once_and_no_gradient():
    model = TorchModel(lambda: nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200)))
    model.gradient((np.zeros((2, 200), np.float32), np.zeros(2, np.int64)))
    assert len(cloudpickle.dumps(model)) < model.parameters().nbytes + 10_000


def test_tied_parameters_are_tied_after_pickling():
    copy = pickle.loads(cloudpickle.dumps(TorchModel(Tied, loss="mse")))
    assert copy.module.again.weight is copy.module.middle.weight


def test_memory_comes_from_the_given_allocator():
    pool = np.empty(1000, np.float32)
    given_out = []

    def memory(size):
        given_out.append(pool[sum(map(len, given_out)) :][:size])
        return given_out[-1]

    model = TorchModel(mlp, memory=memory)
    gradient, _ = model.gradient(rows())
    assert np.shares_memory(model.parameters(), pool)
    assert np.shares_memory(gradient, pool)
    assert len(given_out) == 2


def test_read_only_and_odd_inputs_give_no_warning_and_the_same_result(case):
    model, _, (inputs, targets) = case
    expected = model.gradient((inputs, targets))[0].copy()
    still = inputs.copy(), targets.copy()
    for array in still:
        array.setflags(write=False)
    backwards = inputs[::-1].copy()[::-1], targets[::-1].copy()[::-1]
    wide = inputs.astype(np.float64) if inputs.dtype.kind == "f" else inputs.astype(np.int32), targets
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in (still, backwards, wide):
            np.testing.assert_allclose(model.gradient(batch)[0], expected, rtol=1e-6, atol=1e-8)
        frozen = model.parameters().copy()
        frozen.setflags(write=False)
        model.load(frozen)
        model.evaluate(still)


def test_a_module_that_changes_its_inputs_cannot_reach_read_only_data():
    class Rude(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x.zero_())

    inputs, targets = rows()
    inputs.setflags(write=False)
    TorchModel(Rude).evaluate((inputs, targets))
    assert inputs.all()


def test_evaluation_agrees_with_scikit_learn():
    inputs, targets = rows(700, 2)
    names = ("accuracy", "top-2-accuracy")
    model = TorchModel(mlp, metrics=[*names, sk.balanced_accuracy_score], evaluate_rows=64, seed=0)
    logits = model.module(torch.from_numpy(inputs)).detach()
    figures = model.evaluate((inputs, targets))
    predictions = model.predict(inputs)
    assert predictions.shape == targets.shape
    assert predictions.dtype.kind == "i"
    assert figures["loss"] == pytest.approx(sk.log_loss(targets, logits.softmax(1).numpy()), rel=1e-5)
    assert figures["accuracy"] == pytest.approx(sk.accuracy_score(targets, predictions))
    assert figures["top-2-accuracy"] == pytest.approx(sk.top_k_accuracy_score(targets, logits.numpy(), k=2))
    assert figures["balanced_accuracy_score"] == pytest.approx(sk.balanced_accuracy_score(targets, predictions))


def test_regression_targets_get_the_shape_of_the_outputs():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(50, 4)), rng.normal(size=50) + 1000
    model = TorchModel(
        lambda: nn.Linear(4, 1), loss="mse", metrics=("mse", "mae", "rmse", "r2"), seed=0, evaluate_rows=7
    )
    column, flat = model.gradient((inputs, targets[:, None]))[0].copy(), model.gradient((inputs, targets))[0]
    assert np.array_equal(column, flat)
    figures, predictions = model.evaluate((inputs, targets)), model.predict(inputs)
    assert predictions.shape == (50,)
    assert figures["mse"] == pytest.approx(sk.mean_squared_error(targets, predictions), rel=1e-6)
    assert figures["mse"] == pytest.approx(figures["loss"], rel=1e-5)
    assert figures["mae"] == pytest.approx(sk.mean_absolute_error(targets, predictions), rel=1e-6)
    assert figures["rmse"] == pytest.approx(sk.root_mean_squared_error(targets, predictions), rel=1e-6)
    assert figures["r2"] == pytest.approx(sk.r2_score(targets, predictions), rel=1e-6)


def test_binary_logits():
    inputs, targets = rows(40)[0], rows(40)[1] % 2
    model = TorchModel(lambda: nn.Linear(6, 1), loss="bce-with-logits", seed=0)
    assert set(model.evaluate((inputs, targets))) == {"loss", "accuracy"}
    predictions = model.predict(inputs)
    assert np.array_equal(predictions, (model.module(torch.from_numpy(inputs)) > 0).numpy()[:, 0])


def test_class_probabilities_as_targets():
    inputs, targets = rows()
    model = TorchModel(mlp, seed=0)
    hard = model.gradient((inputs, targets))[0].copy()
    soft = np.eye(3)[targets]
    np.testing.assert_allclose(model.gradient((inputs, soft))[0], hard, rtol=1e-5, atol=1e-7)
    assert model.evaluate((inputs, soft))["accuracy"] == model.evaluate((inputs, targets))["accuracy"]


def test_own_loss_metric_and_transforms():
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(30, 4)).astype(np.float32), rng.normal(size=30) * 10 + 50

    def worst(true, predicted):
        return np.abs(true - predicted).max()

    model = TorchModel(
        lambda: nn.Linear(4, 1),
        loss=lambda outputs, wanted: (outputs - wanted).abs().mean(),
        metrics={"worst": worst, "mae": "mae"},
        target_transform=lambda wanted: (wanted - 50) / 10,
        predict_transform=lambda outputs: outputs[:, 0] * 10 + 50,
        seed=0,
    )
    figures = model.evaluate((inputs, targets))
    assert figures["worst"] == pytest.approx(worst(targets, model.predict(inputs)))
    assert figures["mae"] == pytest.approx(10 * figures["loss"], rel=1e-5)


def test_modes():
    module = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.BatchNorm1d(50).eval(), nn.Linear(50, 3))
    model = TorchModel(module)
    inputs, targets = rows()
    assert np.array_equal(model.predict(inputs), model.predict(inputs))
    before = model.buffers()
    assert model.evaluate((inputs, targets)) == model.evaluate((inputs, targets))
    model.reseed(1)
    first = model.gradient((inputs, targets))[0].copy()
    assert not np.array_equal(model.gradient((inputs, targets))[0], first)
    model.reseed(1)
    assert np.array_equal(model.gradient((inputs, targets))[0], first)
    assert [part.training for part in module] == [True, True, False, True]  # the user's own mode is kept
    assert np.array_equal(model.buffers(), before)
    module.eval()
    model.gradient((inputs, targets))
    assert module[1].training


def test_buffers_that_a_run_neither_averages_nor_returns_are_named():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Words())
    assert TorchModel(module).notice is None
    module[2].register_buffer("mean", torch.zeros(3), persistent=False)
    module[2].register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)
    module[0].register_buffer("of_a_library", torch.ones(3), persistent=False)
    expected = "persistent=False, so neither averaged over the workers nor returned: 2.mean"
    assert TorchModel(module).notice == expected


def test_buffers_keep_their_integers():
    module = cnn()
    module.register_buffer("big", torch.tensor([2**40 + 1, 3]))
    module.register_buffer("scratch", torch.zeros(9), persistent=False)
    model = TorchModel(module)
    model.gradient(rows())
    flat = model.buffers()
    assert flat.shape == (4 + 4 + 1 + 2,)
    other = TorchModel(cnn)
    other.load_buffers(flat[2:])
    assert torch.equal(other.module[2].running_mean, module[2].running_mean)
    assert torch.equal(other.module[2].running_var, module[2].running_var)
    assert other.module[2].num_batches_tracked == 1
    flat[1] = 4.6
    model.load_buffers(flat)
    assert module.big.tolist() == [2**40 + 1, 5]  # unchanged values keep their bits
    with pytest.raises(ConfigurationError, match="the buffers have 11 elements, the vector has 3"):
        model.load_buffers(flat[:3])


def test_seed_determines_the_weights_and_global_generators_are_unchanged():
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, same, other = (TorchModel(mlp, seed=seed).parameters() for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TorchModel(mlp().double()), r"the parameter '0.weight' is torch.float64; .* call module.float\(\)"),
        (lambda: TorchModel(mlp().requires_grad_(False)), "Sequential has no parameter that requires a gradient"),
        (lambda: TorchModel(nn.LazyLinear(3)), "'weight' has no shape yet"),
        (
            lambda: TorchModel(mlp, loss="hinge-of-doom"),
            "unknown loss 'hinge-of-doom'; known: bce, bce-with-logits, cross-entropy",
        ),
        (
            lambda: TorchModel(mlp, metrics=("acuracy",)),
            r"unknown metric 'acuracy'; did you mean 'accuracy'\? known: accuracy",
        ),
        (lambda: TorchModel(mlp, metrics={"loss": "mse"}), "a metric cannot be named 'loss'"),
        (lambda: TorchModel(mlp, buffers="median"), "unknown buffer policy 'median'; known: average, first, none"),
        (lambda: TorchModel(mlp, loss="mse", task="classification"), "the loss 'mse' is for regression"),
        (lambda: TorchModel(dict), "TorchModel needs an nn.Module or a function that returns one, not dict"),
        (lambda: TorchModel(mlp, loss=3), "a loss must be a name or a function"),
    ],
)
def test_errors_have_one_line(make, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_different_parameters_that_share_memory_are_rejected():
    module = mlp()
    module[2].weight = nn.Parameter(module[0].weight.data[:3, :5])
    with pytest.raises(ConfigurationError, match=r"'0.weight' and '2.weight' share memory"):
        TorchModel(module)


def test_factory_that_raises_is_named():
    def broken():
        return nn.Linear(2, "three")

    with pytest.raises(ConfigurationError, match=r"the model factory .*broken' raised TypeError") as caught:
        TorchModel(broken)
    assert isinstance(caught.value.__cause__, TypeError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        ("cross-entropy", [0, 1, 7, 0], "the model has 3 outputs: classes must be 0 to 2, targets go from 0 to 7"),
        ("cross-entropy", [0, 1], "the model made 4 outputs for a batch of 2 targets"),
        ("cross-entropy", [0.5, 1, 1, 1], "needs class indices as targets, not type float64"),
        ("cross-entropy", [[0.5], [1], [1], [1]], "needs class indices as targets, not type float64"),
        ("cross-entropy", ["a", "b", "a", "b"], "targets must be numbers, not of type <U1"),
        ("mse", [0.5, 1, 1, 1], r"needs targets of the outputs' shape \(4, 3\), but these have shape \(4,\)"),
        ("cross-entropy", [], "a batch without rows has no loss"),
    ],
)
def test_targets_that_do_not_fit(loss, targets, message):
    model = TorchModel(mlp, loss=loss)
    with pytest.raises(DataError, match=message) as caught:
        model.gradient((np.zeros((4, 6), np.float32), np.array(targets)))
    assert "\n" not in str(caught.value)


def test_loss_that_is_no_scalar():
    model = TorchModel(mlp, loss=lambda outputs, targets: outputs.sum(1))
    with pytest.raises(ConfigurationError, match=r"must return a scalar, it returned shape \(12,\)"):
        model.gradient(rows())


def test_an_error_in_the_module_names_the_place():
    with pytest.raises(RuntimeError) as caught:
        TorchModel(mlp).gradient((np.zeros((4, 5), np.float32), np.zeros(4, int)))
    assert caught.value.__notes__ == ["in the forward pass of Sequential on torch.float32 inputs of shape (4, 5)"]


def test_nothing_to_evaluate():
    model = TorchModel(mlp)
    with pytest.raises(DataError, match="cannot evaluate 0 rows"):
        model.evaluate((np.zeros((0, 6), np.float32), np.zeros(0, int)))
    with pytest.raises(DataError, match="cannot evaluate 3 rows of inputs with 2 targets"):
        model.evaluate((np.zeros((3, 6), np.float32), np.zeros(2, int)))
    assert model.predict(np.zeros((0, 6), np.float32)).shape == (0,)


def test_unknown_names_raise_an_error_that_lists_known_names():
    with pytest.raises(UnknownNameError):
        TorchModel(mlp, loss="nope")


@pytest.mark.parametrize(("rows", "threads"), [(10, 1), (30_000, 2)])
def test_one_thread_evaluates_a_small_data_set(rows, threads):
    seen = []

    class Counted(nn.Linear):
        def forward(self, inputs):
            seen.append(torch.get_num_threads())
            return super().forward(inputs)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        TorchModel(Counted(100, 2)).evaluate((np.ones((rows, 100), np.float32), np.zeros(rows, np.int64)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {threads}
