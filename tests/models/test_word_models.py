"""Word models: gradients are derivatives of losses, and all random numbers come from a seed."""

from __future__ import annotations

import itertools
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError, MissingExtraError
from chimera.models.conversion import build_model
from chimera.models.torch_model import TorchModel
from chimera.models.word2vec.huffman import huffman_paths
from chimera.models.word2vec.kernels import compiled, plain
from chimera.models.word2vec.noise import Noise

WORDS, WIDTH, DIM = 23, 4, 6
COUNTS = np.random.default_rng(5).integers(1, 90, WORDS)
SAMPLED: list[tuple[str, dict[str, Any]]] = [
    (name, {"output": output, **options})
    for name in ("cbow", "skip-gram")
    for output, options in (
        ("negative-sampling", {}),
        ("negative-sampling", {"shared_negatives": 16}),
        ("hierarchical-softmax", {}),
    )
]
SAMPLED.append(("cbow", {"output": "negative-sampling", "combiner": "mean", "noise_power": 1.0, "negatives": 2}))
IDS = [f"{name}-{'-'.join(map(str, options.values()))}" for name, options in SAMPLED]


def make(name: str, options: dict[str, Any], *, seed: int = 1, words: int = WORDS, counts: Any = COUNTS) -> Any:
    about = {"input_shape": (WIDTH,), "outputs": words, "task": "classification", "seed": seed, "counts": counts}
    return build_model(name, {"dim": DIM, **options}, **about)


def warmed(model: Any, seed: int = 2) -> Any:
    """Set all parameters to values that are not negligible."""
    model.load(np.random.default_rng(seed).normal(0, 0.5, model.parameters().size).astype(np.float32))
    return model


def batch(n: int = 9, seed: int = 3, *, padded: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs, targets = rng.integers(0, WORDS, (n, WIDTH)), rng.integers(0, WORDS, n)
    if padded:
        inputs[0, 0] = inputs[1, 1:] = inputs[-1, -2:] = -1
    return inputs, targets


@pytest.fixture(params=[compiled, plain], ids=["compiled", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, request.param)


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    for user in ("word_model", "objectives", "noise"):
        monkeypatch.setattr(f"chimera.models.word2vec.{user}.kernels", lambda: module)


def reference(model: Any, name: str, options: dict[str, Any], flat: torch.Tensor, data: Any) -> torch.Tensor:
    """Return the mean loss, computed by torch in float64, window by window, from the formulas of the papers."""
    embedding, output = (
        flat[a:b].view(s)
        for (a, b), s in zip(itertools.pairwise(model.layout.offsets), model.layout.shapes, strict=False)
    )
    total = torch.zeros((), dtype=torch.float64)
    objective = model._objective
    shared = options.get("shared_negatives")
    negatives = options.get("negatives", 5)
    model.reseed(11)
    pairs = [
        (group, target)
        for row, target in zip(*data, strict=False)
        for group in ([[c] for c in row if c >= 0] if name == "skip-gram" else [[c for c in row if c >= 0]])
    ]
    targets = np.array([target for _, target in pairs], np.int32)
    if options["output"] == "hierarchical-softmax":
        paths = huffman_paths(COUNTS)
        asked = [
            list(
                zip(
                    paths.nodes[slice(*paths.begin[t : t + 2])],
                    paths.labels[slice(*paths.begin[t : t + 2])],
                    itertools.repeat(1.0),
                )
            )
            for t in targets
        ]
    elif shared:
        drawn = np.empty(shared, np.int32)
        objective._noise.draw(drawn)
        asked = [[(t, 1, 1.0)] + [(w, 0, negatives / shared) for w in drawn if w != t] for t in targets]
    else:
        drawn = np.empty(len(targets) * negatives, np.int32)
        objective._noise.draw(drawn)
        asked = [
            [(t, 1, 1.0)] + [(w, 0, 1.0) for w in own if w != t]
            for t, own in zip(targets, drawn.reshape(len(targets), -1), strict=True)
        ]
    for (group, _), questions in zip(pairs, asked, strict=True):
        scale = max(len(group), 1) ** (-1.0 if options.get("combiner") == "mean" else -0.5)
        hidden = embedding[group].sum(0) * scale
        for row, label, weight in questions:
            logit = hidden @ output[int(row)]
            total = total + weight * torch.nn.functional.softplus(-logit if label else logit)
    return total / len(data[1])


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=IDS)
def test_the_gradient_is_that_of_the_loss_by_autograd(name: str, options: dict[str, Any]) -> None:
    model, data = warmed(make(name, options)), batch()
    flat = torch.tensor(model.parameters(), dtype=torch.float64, requires_grad=True)
    loss = reference(model, name, options, flat, data)
    loss.backward()
    model.gradient(batch(40, seed=8))  # whose rows must be cleared
    model.reseed(11)
    gradient, ours = model.gradient(data)
    assert ours == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, flat.grad.numpy(), atol=2e-6)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=IDS)
def test_descend_is_a_step_with_the_gradient(name: str, options: dict[str, Any]) -> None:
    model, data = warmed(make(name, options)), batch()
    model.reseed(4)
    gradient, loss = model.gradient(data)
    stepped = model.parameters() - np.float32(0.3) * gradient
    model.reseed(4)
    assert model.descend(data, 0.3) == loss
    np.testing.assert_allclose(model.parameters(), stepped, atol=1e-6)
    model.reseed(4)
    again = model.gradient(data)[0].copy()  # no state of the step remains
    fresh = make(name, options)
    fresh.load(model.parameters())
    fresh.reseed(4)
    assert np.array_equal(fresh.gradient(data)[0], again)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(("name", "options"), [each for each in SAMPLED if "shared_negatives" not in each[1]])
def test_word_by_word_is_a_descent_for_each_window(name: str, options: dict[str, Any]) -> None:
    whole, single = (warmed(make(name, options | {"order": "word"})) for _ in range(2))
    inputs, targets = batch(padded=False)
    if name == "skip-gram":  # one pair per window, so that each step trains on one window
        inputs = inputs[:, :1]
    whole.reseed(6), single.reseed(6)
    loss = whole.descend((inputs, targets), 0.9)
    losses = [single.descend((inputs[i : i + 1], targets[i : i + 1]), 0.9 / len(targets)) for i in range(len(targets))]
    assert loss == pytest.approx(np.mean(losses), rel=1e-6)
    np.testing.assert_allclose(whole.parameters(), single.parameters(), atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [*SAMPLED, ("cbow", {"order": "word", "output": "negative-sampling"})])
def test_numpy_kernels_give_the_same(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for module in (compiled, plain):
        use(monkeypatch, module)
        model = warmed(make(name, options))
        model.reseed(9)
        losses = [model.descend(batch(50, seed=s), 2.0) for s in range(4)]
        found.append((losses, model.parameters().copy(), model.evaluate(batch(30)), model.predict(batch(30)[0])))
    (losses, weights, figures, likely), (losses_plain, weights_plain, figures_plain, likely_plain) = found
    np.testing.assert_allclose(losses, losses_plain, rtol=1e-5)
    np.testing.assert_allclose(weights, weights_plain, atol=1e-5)
    assert figures == pytest.approx(figures_plain, rel=1e-5)
    assert np.array_equal(likely, likely_plain)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(1, 300), st.integers(0, 400))
def test_both_kernels_draw_the_same_words(key: int, begin: int, words: int, size: int) -> None:
    noise = Noise(np.arange(1, words + 1))
    outs = [np.empty(size, np.int32) for _ in range(2)]
    for module, out in zip((compiled, plain), outs, strict=True):
        module.draw(noise._thresholds, noise._aliases, np.uint64(key), begin, out)
    assert np.array_equal(*outs)
    assert not size or (outs[0].min() >= 0 and outs[0].max() < words)


def test_noise_follows_its_power_and_never_draws_words_with_count_zero() -> None:
    counts = np.array([1000, 0, 1, 16, 81, 100])
    noise, out = Noise(counts), np.empty(200_000, np.int32)
    expected = np.where(counts > 0, counts**0.75, 0)
    for seed in (0, 1, 2**80 + 1):
        noise.reseed(seed)
        noise.draw(out)
        share = np.bincount(out, minlength=6) / out.size
        assert share[1] == 0
        sigma = np.sqrt(expected / expected.sum() / out.size)
        assert (np.abs(share - expected / expected.sum()) <= 5 * sigma).all()


def test_consecutive_seeds_draw_different_words() -> None:
    noise = Noise(np.ones(1000))
    rows = np.empty((50, 40), np.int32)
    for seed, row in enumerate(rows):
        noise.reseed(seed)
        noise.draw(row)
    assert len(np.unique(rows)) > 800  # of 2000 draws from 1000 words about 865 are different
    assert len(set(rows[:, 0])) > 40


@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=IDS)
def test_the_same_seed_gives_the_same_bits(name: str, options: dict[str, Any]) -> None:
    first, second = (warmed(make(name, options)) for _ in range(2))
    first.gradient(batch(20, seed=1))
    first.evaluate(batch(20))
    for model in (first, second):
        model.reseed(2**70 + 3)
    assert np.array_equal(first.gradient(batch())[0], second.gradient(batch())[0])
    travelled = pickle.loads(pickle.dumps(first))
    for model in (first, travelled):
        model.reseed(5)
    assert first.descend(batch(), 0.1) == travelled.descend(batch(), 0.1)
    assert np.array_equal(first.parameters(), travelled.parameters())
    assert first.evaluate(batch()) == travelled.evaluate(batch())
    assert not np.array_equal(make(name, options, seed=1).parameters(), make(name, options, seed=2).parameters())


def test_evaluation_does_not_change_the_random_numbers_of_training() -> None:
    first, second = (warmed(make(*SAMPLED[0])) for _ in range(2))
    first.evaluate(batch())
    assert np.array_equal(first.gradient(batch())[0], second.gradient(batch())[0])
    assert first.evaluate(batch())["loss"] == second.evaluate(batch())["loss"]


@pytest.mark.parametrize(("name", "options"), [*SAMPLED, ("cbow", {}), ("skip-gram", {"output": "softmax"})])
def test_padding_is_ignored(name: str, options: dict[str, Any]) -> None:
    inputs, targets = np.full((5, WIDTH), -1), np.arange(5)
    inputs[:, 0], inputs[:, 2] = np.arange(5), np.arange(5) + 7
    first, second = (warmed(make(name, options)) for _ in range(2))
    first.reseed(1), second.reseed(1)
    gradient, loss = first.gradient((inputs, targets))
    other, other_loss = second.gradient((inputs[:, [0, 2]].copy(), targets))
    assert loss == pytest.approx(other_loss, rel=1e-6)
    np.testing.assert_allclose(gradient, other, atol=1e-6)
    empty = np.full((2, WIDTH), -1), targets[:2]
    assert np.isfinite(first.gradient(empty)[0]).all()
    assert np.isfinite(list(first.evaluate(empty).values())).all()
    assert first.predict(inputs).shape == (5,)


@pytest.mark.parametrize(("name", "options"), [*SAMPLED, ("cbow", {"order": "word", "output": "negative-sampling"})])
def test_a_learning_rate_that_is_too_high_increases_the_loss(name: str, options: dict[str, Any]) -> None:
    model, data = warmed(make(name, options)), batch(50)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = [model.descend(data, 1e6) for _ in range(300)]
    first = next(i for i, loss in enumerate(losses) if not np.isfinite(loss))
    assert not np.isfinite(losses[first:]).any()
    assert not np.isfinite(model.gradient(data)[1])


@pytest.mark.parametrize("name", ["cbow", "skip-gram"])
def test_the_loss_stays_exact_far_from_where_it_saturates(name: str) -> None:
    model, data = warmed(make(name, {"output": "negative-sampling"})), batch(padded=False)
    model.load(model.parameters() * 20)
    flat = torch.tensor(model.parameters(), dtype=torch.float64)
    loss = reference(model, name, {"output": "negative-sampling"}, flat, data).item()
    model.reseed(11)
    assert loss > 100
    assert model.gradient(data)[1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", ["cbow", "skip-gram"])
@pytest.mark.parametrize("output", ["softmax", "hierarchical-softmax"])
def test_a_loss_over_all_words_is_a_cross_entropy(name: str, output: str) -> None:
    model, (inputs, targets) = warmed(make(name, {"output": output})), batch(3, padded=False)
    per_word = 1 if name == "cbow" else WIDTH
    total = np.zeros(len(targets))
    for word in range(WORDS):  # over all words, the likelihoods of one context word add up to 1
        losses = [model.gradient((row[None, :1], np.array([word])))[1] for row in inputs]
        total += np.exp(-np.array(losses))
    np.testing.assert_allclose(total, 1, rtol=1e-5)
    if output == "hierarchical-softmax":
        figures = model.evaluate((inputs, targets))
        assert figures["cross-entropy"] == pytest.approx(figures["loss"] / per_word, rel=1e-5)
    likely = [min(range(WORDS), key=lambda w: model.gradient((row[None], np.array([w])))[1]) for row in inputs]
    assert model.predict(inputs).tolist() == likely


@pytest.mark.parametrize("name", ["cbow", "skip-gram"])
def test_a_full_softmax_equals_that_of_torch_and_starts_at_the_log_of_the_vocabulary_size(name: str) -> None:
    model, (inputs, targets) = make(name, {"output": "softmax"}), batch(padded=False)
    assert isinstance(model, TorchModel)
    assert model.layout.names == ("embedding.weight", "output.weight", "output.bias")
    assert model.layout.shapes == ((WORDS, DIM), (WORDS, DIM), (WORDS,))
    per_word = 1 if name == "cbow" else WIDTH
    assert model.evaluate((inputs, targets))["loss"] / per_word == pytest.approx(np.log(WORDS), rel=1e-6)
    warmed(model)
    flat = torch.tensor(model.parameters(), dtype=torch.float64, requires_grad=True)
    embedding, weight, bias = (
        flat[a:b].view(s)
        for (a, b), s in zip(itertools.pairwise(model.layout.offsets), model.layout.shapes, strict=False)
    )
    vectors = embedding[torch.from_numpy(inputs)]
    pooled = vectors.mean(1, keepdim=True) if name == "cbow" else vectors
    logs = (pooled @ weight.T + bias).log_softmax(2)
    loss = -logs[torch.arange(len(targets)), :, torch.from_numpy(targets)].sum(1).mean()
    loss.backward()
    gradient, ours = model.gradient((inputs, targets))
    assert ours == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, flat.grad.numpy(), atol=1e-6)


@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=IDS)
def test_it_learns_which_words_occur_together(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, WORDS, 4000)
    inputs = (targets[:, None] + rng.integers(1, 3, (4000, WIDTH))) % WORDS  # the two words that follow
    model = make(name, options | {"dim": 16})
    before = model.evaluate((inputs, targets))
    for step, begin in enumerate(list(range(0, 4000, 50)) * 6):
        model.reseed(step)
        model.descend((inputs[begin : begin + 50], targets[begin : begin + 50]), 2.0)
    after = model.evaluate((inputs, targets))
    assert after["loss"] < 0.6 * before["loss"]
    assert after["cross-entropy"] < 0.6 * before["cross-entropy"]
    assert after["accuracy"] > 0.8
    assert np.mean(model.predict(inputs) == targets) == after["accuracy"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60).filter(any))
def test_huffman_paths_are_those_of_a_shortest_code(counts: list[int]) -> None:
    import heapq

    paths = huffman_paths(np.array(counts))
    lengths = np.diff(paths.begin)
    codes = {tuple(zip(paths.nodes[a:b], paths.labels[a:b], strict=False)) for a, b in itertools.pairwise(paths.begin)}
    assert len(codes) == len(counts)
    assert (paths.nodes[paths.begin[:-1]] == len(counts) - 2).all()  # all begin at the root
    assert sum(0.5 ** int(length) for length in lengths) == 1  # a complete binary tree
    heap, cost = sorted(max(c, 1) for c in counts), 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    assert int((np.maximum(counts, 1) * lengths).sum()) == cost


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("cbow", {"output": "magic"}, "'output'"),
    ("cbow", {"dim": 0}, "'dim': 0 must be at least 1"),
    ("cbow", {"negatives": 3}, "'negatives': it has no effect with output = 'softmax'"),
    ("cbow", {"output": "hierarchical-softmax", "shared_negatives": 3}, "'shared_negatives': it has no effect"),
    ("skip-gram", {"negatives": 0}, "'negatives': 0 must be at least 1"),
    ("skip-gram", {"shared_negatives": 0}, "'shared_negatives': 0 must be at least 1"),
    ("skip-gram", {"noise_power": 2.0}, "'noise_power': 2.0 must be from 0 to 1"),
    ("skip-gram", {"shared_negatives": 8, "order": "word"}, "order = 'word' cannot be"),
    ("skip-gram", {"combiner": "mean"}, "no option 'combiner'"),
]


@pytest.mark.parametrize(("name", "options", "said"), BAD)
def test_invalid_options_are_rejected_in_one_line(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")) as caught:
        make(name, options)
    assert "\n" not in str(caught.value)


def test_counts_and_data_that_do_not_fit_are_rejected() -> None:
    for counts, said in (
        (None, "needs the option 'counts'"),
        (COUNTS[1:], "one for each"),
        (-COUNTS, "negative"),
        (COUNTS * 0, "one must be above 0"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            make("skip-gram", {}, counts=counts)
    with pytest.raises(ConfigurationError, match="2 words or more"):
        make("skip-gram", {}, words=1)
    with pytest.raises(ConfigurationError, match="is for classification of words"):
        build_model("cbow", {}, input_shape=(4,), outputs=1, task="regression", seed=0)


@pytest.mark.parametrize("order", ["batch", "word"])
def test_invalid_windows_are_rejected(order: str) -> None:
    model = make("cbow", {"output": "negative-sampling", "order": order})
    inputs, targets = batch()
    for strange, said in [
        ((inputs + WORDS, targets), "context words range from"),
        ((inputs - 1, targets), "context words range from -2"),
        ((inputs, targets - WORDS), "words range from"),
        ((inputs, targets + WORDS), "words range from"),
        ((inputs.astype(np.float32), targets), "indices into the vocabulary"),
        ((inputs[:, 0], targets), "context words per window"),
        ((np.hstack([inputs, inputs]), targets), "context words per window"),
        ((inputs[:3], targets), "3 windows and 9 targets"),
        ((inputs[:0], targets[:0]), "0 windows"),
    ]:
        for ask in (model.gradient, model.evaluate, lambda data: model.descend(data, 0.1)):
            with pytest.raises(DataError, match=said):
                ask(strange)
    assert model.predict(inputs[:0]).shape == (0,)
    with pytest.raises(ConfigurationError, match="no buffers"):
        model.load_buffers(np.ones(1, np.float32))


@pytest.mark.parametrize("name", ["cbow", "skip-gram"])
def test_a_full_softmax_without_torch_gives_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"output = 'softmax' needs .*chimera-dml\[train\]"):
        make(name, {"output": "softmax"})


@pytest.mark.long
def test_sampled_models_need_no_torch() -> None:
    import subprocess

    code = """
import sys, numpy as np
from chimera.models.conversion import build_model
from chimera.embeddings import WordVectors
about = {"input_shape": (4,), "outputs": 9, "task": "classification", "seed": 0, "counts": np.ones(9)}
model = build_model("cbow", {"output": "negative-sampling"}, **about)
model.gradient((np.zeros((2, 4), np.int64), np.zeros(2, np.int64)))
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=IDS)
def test_rows_returns_the_rows_that_the_gradient_changes(name: str, options: dict[str, Any]) -> None:
    model, data = warmed(make(name, options)), batch()
    model.reseed(4)
    rows = model.rows(data)
    model.reseed(4)
    found, loss = model.row_gradient(data)
    model.reseed(4)
    gradient, again = model.gradient(data)
    assert loss == again
    for table, (numbers, values) in zip(model.layout.split(gradient).values(), found.values(), strict=True):
        whole = np.zeros_like(table)
        whole[numbers] = values
        assert np.array_equal(whole, table)
    for tensor, (numbers, _) in found.items():
        assert np.array_equal(numbers, rows[tensor])
        assert (np.diff(numbers) > 0).all()
    spoilt = {name: table.copy() for name, table in model.layout.split(model.parameters()).items()}
    for tensor, table in model.layout.split(model.parameters()).items():
        others = np.setdiff1d(np.arange(len(table)), rows[tensor])
        table[others] = np.nan
        assert others.size
    model.reseed(4)
    again_found, again = model.row_gradient(data)
    assert loss == again
    assert all(np.array_equal(found[tensor][1], again_found[tensor][1]) for tensor in spoilt)


def test_row_gradient_allocates_no_memory_for_all_rows() -> None:
    words = 20_000
    first, model = (
        make("cbow", {"output": "negative-sampling"}, words=words, counts=np.ones(words, np.int64)) for _ in range(2)
    )
    first.row_gradient(batch())  # compiles
    peak = peak_bytes(lambda: model.row_gradient(batch()))
    assert peak < model.parameters().nbytes / 10


def peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
