"""Torch modules on batches of any nesting: arguments, losses and outputs; gradients equal those of plain PyTorch."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import chimera
from chimera.core.batch import mapped, pieces_of, rows_of, samples_in, with_targets
from chimera.core.errors import ConfigurationError, DataError
from chimera.models.torch_model import TorchModel

N = 6
RNG = np.random.default_rng(0)
X, Z = (RNG.normal(size=(N, 4)).astype(np.float32) for _ in range(2))
Y = RNG.integers(0, 3, N)
TOKENS = RNG.integers(0, 7, (N, 5))
NEXT = np.where(RNG.random((N, 5)) < 0.3, -100, RNG.integers(0, 7, (N, 5)))


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.top = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, a: Any, b: Any) -> Any:
        return self.top(torch.cat([self.left(a), torch.tanh(self.right(b))], 1))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.words(tokens))


class WithLoss(nn.Module):
    """As a model of transformers: keywords in, an object with loss and logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: Any, labels: Any = None, **_: Any) -> Any:
        logits = self.net(x)
        return SimpleNamespace(loss=None if labels is None else 2 * F.cross_entropy(logits, labels), logits=logits)


class Plain(WithLoss):
    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return self.net(x)


@dataclass(frozen=True)
class Parts:
    x: Any
    y: Any


class Encoding(UserDict):  # type: ignore[type-arg]
    """As ``BatchEncoding``: keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


def own_step(module: Any, batch: Any) -> Any:
    outputs = module(batch.x)
    return {"loss": F.cross_entropy(outputs, batch.y), "outputs": outputs}


def t(array: Any) -> Any:
    return torch.as_tensor(array)


CASES: dict[str, tuple[type, dict[str, Any], Any, Callable[[Any], Any]]] = {
    "inputs in a tuple": (TwoTower, {}, ((X, Z), Y), lambda m: F.cross_entropy(m(t(X), t(Z)), t(Y))),
    "targets last": (TwoTower, {}, (X, Z, Y), lambda m: F.cross_entropy(m(t(X), t(Z)), t(Y))),
    "inputs in a mapping": (TwoTower, {}, ({"b": Z, "a": X}, Y), lambda m: F.cross_entropy(m(t(X), t(Z)), t(Y))),
    "tensors": (Plain, {}, (t(X), t(Y)), lambda m: F.cross_entropy(m(t(X)), t(Y))),
    "a mapping without a loss": (Plain, {}, {"x": X, "label": Y}, lambda m: F.cross_entropy(m(t(X)), t(Y))),
    "one input of another name": (Plain, {}, {"pixels": X, "label": Y}, lambda m: F.cross_entropy(m(t(X)), t(Y))),
    "a mapping with the module's loss": (WithLoss, {}, {"x": X, "labels": Y}, lambda m: m(t(X), t(Y)).loss),
    "an encoding": (WithLoss, {}, Encoding({"x": X, "labels": Y}), lambda m: m(t(X), t(Y)).loss),
    "a step for a dataclass": (Plain, {"step": own_step}, Parts(X, Y), lambda m: F.cross_entropy(m(t(X)), t(Y))),
    "a step for an encoding": (Plain, {"step": own_step}, Encoding(x=X, y=Y), lambda m: F.cross_entropy(m(t(X)), t(Y))),
    "a target per token": (
        Language,
        {},
        (t(TOKENS), t(NEXT)),
        lambda m: F.cross_entropy(m(t(TOKENS)).transpose(1, 2), t(NEXT), ignore_index=-100),
    ),
    "a target per pixel": (
        lambda: nn.Conv1d(2, 3, 1),
        {},
        (t(X.reshape(N, 2, 2)), t(TOKENS[:, :2] % 3)),
        lambda m: F.cross_entropy(m(t(X.reshape(N, 2, 2))), t(TOKENS[:, :2] % 3)),
    ),
    "values": (lambda: nn.Linear(4, 2), {"loss": "mse"}, (t(X), t(Z[:, :2])), lambda m: F.mse_loss(m(t(X)), t(Z[:, :2]))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_those_of_plain_pytorch(case: str) -> None:
    make, options, batch, direct = CASES[case]
    torch.manual_seed(1)
    module = make()
    loss = direct(module)
    loss.backward()
    expected = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    module.zero_grad()
    gradient, got = TorchModel(module, **options).gradient(batch)
    np.testing.assert_allclose(got, loss.item(), rtol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", [case for case in CASES if case != "a target per token"])  # pieces count other numbers
def test_evaluation_in_pieces_equals_that_of_the_whole_batch(case: str) -> None:
    make, options, batch, direct = CASES[case]
    torch.manual_seed(1)
    module = make()
    whole, pieces = (TorchModel(module, evaluate_rows=rows, **options).evaluate(batch) for rows in (N, 2))
    np.testing.assert_allclose(whole["loss"], direct(module.eval()).item(), rtol=1e-5)
    assert whole.keys() == pieces.keys()
    np.testing.assert_allclose(list(whole.values()), list(pieces.values()), rtol=1e-5)


def test_default_metrics_are_those_that_fit_the_outputs() -> None:
    for case in ("inputs in a tuple", "a mapping with the module's loss", "an encoding"):
        make, options, batch, _ = CASES[case]
        assert set(TorchModel(make(), **options).evaluate(batch)) == {"loss", "accuracy"}
    make, options, batch, _ = CASES["a target per token"]
    assert set(TorchModel(make(), **options).evaluate(batch)) == {"loss"}


def test_metrics_of_the_user_need_outputs_and_targets() -> None:
    model = TorchModel(Plain(), step=lambda module, batch: module(batch[0]).square().mean(), metrics="accuracy")
    with pytest.raises(ConfigurationError, match="the metrics accuracy need outputs and targets"):
        model.evaluate((X, Y))
    assert set(TorchModel(Plain(), step=lambda m, b: m(b[0]).square().mean()).evaluate((X, Y))) == {"loss"}


def test_predictions_for_several_inputs() -> None:
    model = TorchModel(TwoTower(), evaluate_rows=4)
    with torch.no_grad():
        expected = model.module(t(X), t(Z)).argmax(1).numpy()
    assert np.array_equal(model.predict((X, Z)), expected)
    assert np.array_equal(model.predict({"a": X, "b": Z}), expected)


@pytest.mark.parametrize(
    ("module", "options", "batch", "message"),
    [
        (Plain, {}, {"x": X}, "returned no loss, and the batch (a mapping with 'x') has no targets"),
        (Plain, {"step": lambda _m, _b: 3.0}, (X, Y), "without a loss: return a scalar tensor"),
        (Plain, {}, {"x": X, "text": ["a"] * N, "labels": Y}, "Plain.forward has no parameter 'text': leave this"),
        (lambda: nn.Conv1d(2, 2, 1), {}, (t(X.reshape(N, 2, 2)), t(TOKENS[:, :2] % 2)), "fit both"),
    ],
)
def test_mistakes_get_a_clear_message(module: Any, options: Any, batch: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, DataError)) as caught:
        TorchModel(module(), **options).gradient(batch)
    assert message in str(caught.value)


def test_a_batch_without_rows_or_leaves_is_refused() -> None:
    with pytest.raises(DataError, match="without rows"):
        TorchModel(TwoTower()).gradient(((X[:0], Z[:0]), Y[:0]))
    with pytest.raises(DataError, match="no array or tensor"):
        TorchModel(TwoTower()).gradient({"text": "abc"})


def test_batches_keep_their_nesting() -> None:
    batch = {"a": [X, (Z, "text")], "b": Parts(t(Y), None)}
    half = rows_of(batch, slice(0, 3))
    assert samples_in(half) == 3
    assert half["a"][1][1] == "text"
    assert isinstance(half["b"], Parts)
    assert len(batch["b"].x) == N
    assert type(mapped(lambda leaf: leaf, Encoding(x=X))) is Encoding


def test_mappings_that_cannot_be_changed_become_dictionaries(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", x=X, label=Y)
    with np.load(tmp_path / "arrays.npz") as arrays:
        for batch in (arrays, MappingProxyType({"x": X, "label": Y})):
            half = rows_of(batch, slice(0, 3))
            assert type(half) is dict
            np.testing.assert_array_equal(half["x"], X[:3])
            np.testing.assert_array_equal(with_targets(batch, Y[::-1])["label"], Y[::-1])
            assert np.isfinite(TorchModel(Plain()).gradient(batch)[1])


def test_arrays_train_a_module_whose_result_has_logits() -> None:
    """As a classifier of Hugging Face on ``(images, labels)``, whose result was no tensor of outputs."""

    class Named(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            return SimpleNamespace(loss=None, logits=super().forward(inputs))

    torch.manual_seed(0)
    named, plain = TorchModel(Named(4, 3)), TorchModel(nn.Linear(4, 3))
    plain.load(named.parameters())
    np.testing.assert_array_equal(named.gradient((X, Y))[0], plain.gradient((X, Y))[0])
    assert named.evaluate((X, Y)) == plain.evaluate((X, Y))
    np.testing.assert_array_equal(named.predict(X), plain.predict(X))


def test_samples_are_not_the_first_of_several_lengths() -> None:
    tokens, offsets, labels = np.arange(10), np.array([0, 4, 7]), np.array([0, 1, 0])
    boxes = np.zeros((5, 4))
    assert samples_in({"tokens": tokens, "offsets": offsets, "labels": labels}) == 3
    assert samples_in({"nodes": tokens, "graph": tokens % 3, "y": labels}) == 3
    assert samples_in((tokens, offsets, labels)) == 3
    assert samples_in((np.zeros((3, 8, 8)), boxes)) == 3
    assert samples_in({"image": np.zeros((3, 8, 8)), "boxes": boxes, "label": "text"}) == 3


def test_arrays_inside_lists_do_not_tell_the_number_of_samples() -> None:
    """As batches of object detection, whose lists have the boxes of each image. The number of samples was 0."""
    images = np.zeros((3, 8, 8))
    assert samples_in((images, [np.zeros((0, 4))] * 3, [np.zeros(0)] * 3)) == 3
    sizes = [{"size": np.zeros(2), "orig_size": np.zeros(2)}] * 3
    assert samples_in({"pixel_values": images, "labels": sizes}) == 3
    assert samples_in({"pixel_values": images, "pixel_mask": images, "boxes": np.zeros((5, 4))}) == 3
    assert samples_in({"inputs": (X, Z), "text": "abc"}) == N


def test_a_batch_of_several_lengths_is_not_cut() -> None:
    batch = {"tokens": np.arange(10), "offsets": np.array([0, 4, 7]), "labels": np.array([0, 1, 0])}
    assert list(pieces_of(batch, 3)) == [batch]
    with pytest.raises(
        DataError, match="its arrays have 10, 3 rows; set accumulate to 1 to train, and evaluate or predict at most 2"
    ):
        list(pieces_of(batch, 2))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag, self.last = nn.EmbeddingBag(12, 4), nn.Linear(4, 3)

    def forward(self, tokens: Any, offsets: Any) -> Any:
        return self.last(self.bag(tokens, offsets))


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 11

    def __getitem__(self, row: int) -> Any:
        return torch.arange(1 + row), row % 3


def joined(samples: list[Any]) -> dict[str, Any]:
    lengths = [0] + [len(tokens) for tokens, _ in samples]
    tokens = torch.cat([tokens for tokens, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    return {"tokens": tokens, "offsets": torch.tensor(lengths[:-1]).cumsum(0), "labels": labels}


def test_the_loss_of_bags_of_words_is_the_mean_over_texts() -> None:
    """Before, each piece of the evaluation counted by its number of tokens."""
    data, model = chimera.SampleDataset(Texts(), collate=joined), TorchModel(Bags(), evaluate_rows=4)
    whole = joined([Texts()[row] for row in range(11)])
    with torch.no_grad():
        wanted = F.cross_entropy(model.module(whole["tokens"], whole["offsets"]), whole["labels"])
    assert model.evaluate(data.whole())["loss"] == pytest.approx(wanted.item(), rel=1e-6)


def test_a_step_that_reads_weights_of_samples_has_no_default_metrics() -> None:
    """Before, the weights, the last part of a batch, were the classes of an accuracy."""

    def weighted(module: Any, batch: Any) -> Any:
        inputs, targets, weights = batch
        outputs = module(inputs)
        return (F.cross_entropy(outputs, targets, reduction="none") * weights).mean(), outputs

    torch.manual_seed(0)
    model = TorchModel(nn.Linear(4, 3), step=weighted)
    inputs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    assert set(model.evaluate((inputs, np.arange(6) % 3, np.ones(6, np.float32)))) == {"loss"}


def test_metrics_of_batches_are_means_over_samples() -> None:
    class Mean:
        """As a metric of torchmetrics."""

        def reset(self) -> None:
            self.values: list[Any] = []

        def update(self, outputs: Any, targets: Any) -> None:
            self.values += (outputs.argmax(1) == targets).tolist()

        def compute(self) -> Any:
            return torch.tensor(self.values, dtype=torch.float32).mean()

    def margin(outputs: Any, batch: Any) -> Any:
        return (outputs[:, 0] - batch["x"][:, 0]).mean()

    metrics = {"margin": margin, "perplexity": "perplexity", "mine": Mean(), "accuracy": "accuracy"}
    batch = {"x": t(X), "label": t(Y)}
    torch.manual_seed(0)
    model = TorchModel(Plain(), metrics=metrics, evaluate_rows=4)
    with torch.no_grad():
        outputs = model.module(t(X))
    found = model.evaluate(batch)
    np.testing.assert_allclose(found["margin"], (outputs[:, 0] - t(X)[:, 0]).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["perplexity"], np.exp(found["loss"]), rtol=1e-6)
    np.testing.assert_allclose(found["mine"], found["accuracy"])
    assert model.evaluate(batch) == found
