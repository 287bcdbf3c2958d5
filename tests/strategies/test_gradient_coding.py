"""Tests of gradient coding: any n - s of n workers give the exact gradient, without waiting for stragglers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError, TooFewWorkersError
from chimera.core.message import Encoded
from chimera.core.parameters import Layout
from chimera.strategies.codes import CODES, blocks_of, code_of, decoding, max_missed
from chimera.training.messages.message_key import Key, keyed, merged
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

Fit = Callable[..., chimera.Run]
WORKERS = 5


def train(strategy: Any, folder: Path, **options: Any) -> chimera.Run:
    named = {"name": "gradient-coding", **strategy} if isinstance(strategy, dict) else strategy
    settings: dict[str, Any] = {
        "engine": "simulated", "workers": WORKERS, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01},
        "rounds": 50, "evaluate_every": 50, "seed": 1, "out": folder,
    }  # fmt: skip
    model = {"name": "mlp", "hidden": [16], "dropout": 0.2}
    return chimera.train(model, "digits", strategy=named, **{**settings, **options})


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    folders = itertools.count()
    return lambda strategy, **options: train(strategy, tmp_path / f"{next(folders)}", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return the weights after as many steps that wait for all workers."""
    return parameters(train("parameter-server", tmp_path_factory.mktemp("whole") / "run"))


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


@st.composite
def codes(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int]]:
    stragglers = draw(st.integers(0, 4))
    workers = stragglers + draw(st.integers(1, 6))
    missing = draw(st.sets(st.integers(0, workers - 1), max_size=stragglers))
    name = draw(st.sampled_from(["cyclic", "repetition"]))
    return CODES[name](workers, stragglers), stragglers, [i for i in range(workers) if i not in missing]


@given(codes())
def test_any_sufficient_workers_decode_every_block_once(drawn: tuple[np.ndarray, int, list[int]]) -> None:
    code, stragglers, there = drawn
    assert ((code != 0).sum(0) > stragglers).all()
    assert code.diagonal().all()
    shares, off = decoding(code[there])
    assert off == 0
    np.testing.assert_allclose(shares @ code[there], 1, atol=1e-7)


@given(st.integers(1, 12), st.data())
def test_a_random_graph_code_gives_blocks_equal_numbers_of_holders(workers: int, data: st.DataObject) -> None:
    others = data.draw(st.integers(0, workers - 1))
    code = code_of("regular", workers, others)
    assert ((code == 1) | (code == 0)).all()
    assert code.diagonal().all()
    assert (code.sum(0) == others + 1).all()
    assert (code.sum(1) == others + 1).all()


@given(st.integers(2, 9), st.sampled_from(["cyclic", "regular"]), st.data())
def test_too_few_workers_decode_the_least_squares_approximation(workers: int, name: str, data: st.DataObject) -> None:
    code = code_of(name, workers, 1)
    there = sorted(data.draw(st.sets(st.integers(0, workers - 1), min_size=1, max_size=max(workers - 2, 1))))
    shares, off = decoding(code[there])
    assert off == pytest.approx(np.sqrt(np.mean((shares @ code[there] - 1) ** 2)), abs=1e-8)
    other = shares + np.random.default_rng(0).normal(size=len(there)) * 0.1
    assert np.sqrt(np.mean((other @ code[there] - 1) ** 2)) > off


@given(codes(), st.data())
def test_single_blocks_replace_missing_workers(drawn: tuple[np.ndarray, int, list[int]], data: st.DataObject) -> None:
    code, _, _ = drawn
    there = data.draw(st.sets(st.integers(0, len(code) - 1), min_size=1))
    rows, asked = list(code[sorted(there)]), []
    while decoding(rows)[1]:
        asked.append(max_missed(rows))
        rows.append(np.eye(len(code))[asked[-1]])
    assert len(set(asked)) == len(asked)
    held = {block for place in there for block in blocks_of(code, place)}
    if held == set(range(len(code))):
        assert set(asked) <= held, "a straggler was asked although other workers hold all blocks"


SIZE, SHARES = 5, {0: 0.5, 2: -1.25, 3: 2.0, 7: 0.1}


def server() -> ParameterShard:
    layout = Layout(("all",), ((SIZE,),))
    return ParameterShard(np.ones(SIZE, np.float32), layout, optimizer=OptimizerSettings("sgd", {"lr": 1.0}))


def message(block: int, step: int = 4, sender: int = 0) -> Encoded:
    """The same from each sender, as with a codec that is not random."""
    vector = np.random.default_rng([block, step]).normal(size=SIZE).astype(np.float32)
    return keyed(Encoded("identity", SIZE, (vector,)), Key(0, step, block, sender))


@given(st.data())
def test_the_sum_has_the_same_bits_in_any_order_of_arrival(data: st.DataObject) -> None:
    needed = [message(block) for block in SHARES]
    keys = st.tuples(st.sampled_from([*SHARES, 11]), st.integers(0, 6), st.integers(0, 5))
    more = [message(*key) for key in data.draw(st.lists(keys, max_size=12))]
    given_ = data.draw(st.permutations([*needed, *more]))
    expected, _ = server().combine(*needed, shares=SHARES, step=4)
    weights, applied = server().combine(*given_, shares=SHARES, step=4)
    assert weights.arrays[0].tobytes() == expected.arrays[0].tobytes()
    assert (applied.gradients, applied.rejected) == (len(SHARES), ())


def test_a_server_does_not_step_if_a_block_is_missing() -> None:
    late = [message(block, step=3) for block in SHARES]
    weights, applied = server().combine(*[message(block) for block in (0, 2, 7)], *late, shares=SHARES, step=4)
    assert (weights.arrays[0] == 1).all()
    assert (applied.gradients, [each.why for each in applied.rejected]) == (0, ["nothing came of the blocks 3"])


def test_of_differing_copies_the_lowest_rank_is_used() -> None:
    own, other = message(3, sender=1), keyed(message(2), Key(0, 4, 3, 0))
    assert merged([own, other], 4) == {3: other}


def test_a_message_without_a_key_is_rejected() -> None:
    message = Encoded("identity", SIZE, (np.ones(SIZE, np.float32),))
    _, applied = server().combine(message, shares={0: 1.0}, step=0)
    assert (applied.gradients, [each.why for each in applied.rejected]) == (0, ["nothing came of the blocks 0"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stragglers": 3, "shards": 2},
        {"stragglers": 0},
        {"stragglers": 4},
        {"name": "replicated"},
        {"name": "replicated", "copies": 5, "shards": 2},
        {"name": "replicated", "copies": 1},
        {"name": "approximate-coding", "copies": 5, "stragglers": 4},
        {"name": "approximate-coding", "stragglers": 0},
    ],
    ids=str,
)
def test_weights_do_not_depend_on_stragglers(fit: Fit, whole: np.ndarray, options: dict[str, Any]) -> None:
    engine = {"name": "simulated", "compute": {"straggler_spread": 2.0}}
    run = fit(options, engine=engine)
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)
    assert run.figures.get("coding_error", 0) == 0


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_weights_do_not_depend_on_stragglers_on_processes(fit: Fit, whole: np.ndarray, engine: str) -> None:
    np.testing.assert_allclose(parameters(fit({}, engine=engine)), whole, atol=2e-6)


def test_label_flip_attacks_affect_coded_gradients(fit: Fit, whole: np.ndarray) -> None:
    run = fit({"stragglers": 0}, faults=["label flip worker 1 at step 0"])
    expected = fit("parameter-server", faults=["label flip worker 1 at step 0"])
    np.testing.assert_allclose(parameters(run), parameters(expected), atol=2e-6)
    assert np.abs(parameters(run) - whole).max() > 0.01


PACE = {"name": "simulated", "compute": {"seconds_per_sample": 1e-2}}  # a gradient of two blocks takes 0.16 s


def hung(*ranks: int, for_s: float = 20) -> list[str]:
    return [f"hang worker {rank} for {for_s} s at step 10" for rank in ranks]


def last_step_s(run: chimera.Run) -> float:
    """Return when the servers took the last step; the run ends when all workers are back."""
    rows = map(json.loads, (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines())
    return max(row["end_s"] for row in rows if row["call"] == "combine")


def test_approximate_codes_continue_with_too_few_workers(fit: Fit) -> None:
    faults = [f"slow worker {rank} by 10 at step 0" for rank in (0, 2)]
    run = fit({"name": "approximate-coding", "stragglers": 2}, engine=PACE, faults=faults, rounds=150)
    assert 0 < run.figures["coding_error"] < 1
    assert run.metrics["accuracy"] > 0.85


def test_one_worker_of_each_group_is_enough(fit: Fit) -> None:
    """Four of six workers are stragglers, twice as many as any code tolerates without knowing them."""
    options: dict[str, Any] = {"workers": 6, "engine": PACE}
    late = [f"hang worker {rank} for 100 s at step 0" for rank in (0, 2, 3, 4)]
    run = fit({"name": "replicated", "copies": 3}, faults=late, **options)
    np.testing.assert_allclose(parameters(run), parameters(fit("parameter-server", **options)), atol=2e-6)
    assert last_step_s(run) < 100


def test_a_block_missing_after_the_timeout_is_requested_again(fit: Fit, whole: np.ndarray) -> None:
    """Two stragglers of five are too many for the code, but the other three hold all blocks."""
    run = fit({"timeout_s": 0.5}, engine=PACE, faults=hung(0, 2))
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)
    assert {event.event for event in run.events} == {"fault"}
    assert last_step_s(run) < 20, "the step waited for a straggler"


def test_a_block_is_taken_from_the_first_holder_that_returns(fit: Fit, whole: np.ndarray) -> None:
    """One of two groups hangs as a whole, though one of it not for long."""
    faults = [*hung(3), *hung(4, for_s=1)]
    run = fit({"name": "replicated", "timeout_s": 0.8}, engine=PACE, faults=faults)
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)
    assert last_step_s(run) < 20


@pytest.mark.parametrize(("name", "late", "block"), [("gradient-coding", (0, 1), 1), ("replicated", (3, 4), 3)])
def test_a_step_fails_if_no_worker_has_a_block_in_time(fit: Fit, name: str, late: tuple[int, ...], block: int) -> None:
    why = rf"step 1\d: block {block} is missing, and of its holders, none of 2 workers answered in 0.5 s"
    with pytest.raises(TooFewWorkersError, match=why) as caught:
        fit({"name": name, "timeout_s": 0.5}, engine=PACE, faults=hung(*late))
    assert "\n" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(("engine", "lost"), [("simulated", 1), ("simulated", 2), ("local", 2)])
def test_dropped_workers_count_as_permanent_stragglers(fit: Fit, whole: np.ndarray, engine: str, lost: int) -> None:
    """Their data is not lost while others have it: the gradient stays that of all five."""
    faults = [f"kill worker {rank} at step 10" for rank in (1, 3)[:lost]]
    run = fit({}, engine=engine, faults=faults, on_worker_loss="drop")
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["gradient-coding", "replicated"])
def test_a_missing_block_is_requested_again_on_processes(fit: Fit, whole: np.ndarray, name: str) -> None:
    """A worker is left of each of the groups {0, 1, 2} and {3, 4}, and of each block."""
    faults = [f"hang worker {rank} for 15 s at step 10" for rank in (0, 2)]
    run = fit({"name": name, "timeout_s": 5}, engine="local", faults=faults)
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)
    assert {event.event for event in run.events} == {"fault"}


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_worker_loss_does_not_change_weights(fit: Fit, whole: np.ndarray, engine: str) -> None:
    run = fit({}, engine=engine, faults=["kill worker 2 at step 20"])
    assert "worker respawned" in [event.event for event in run.events]
    np.testing.assert_allclose(parameters(run), whole, atol=2e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    "codec", ["cast", "int8", {"name": "qsgd", "levels": 127}, {"name": "top-k", "ratio": 0.2}], ids=str
)
def test_codecs_encode_linear_combinations(fit: Fit, codec: Any) -> None:
    run = fit({"stragglers": 1}, codec=codec, rounds=150)
    assert run.metrics["accuracy"] > 0.85
    assert run.cost.bits_per_element_up < 17


@pytest.mark.parametrize(
    ("strategy", "options", "why"),
    [
        ({"stragglers": -1}, {}, "stragglers must be at least 0"),
        ({"name": "replicated", "copies": 0}, {}, "copies must be at least 1, not 0"),
        ({"name": "approximate-coding", "copies": 0}, {}, "copies must be at least 1, not 0"),
        ({"name": "approximate-coding", "stragglers": -1}, {}, "stragglers must be at least 0, not -1"),
        ({"timeout_s": 0}, {}, "timeout_s must be above 0"),
        ({"shards": 0}, {}, "shards must be at least 1"),
    ],
    ids=str,
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, strategy: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(strategy, **options)
    assert "\n" not in str(caught.value)
