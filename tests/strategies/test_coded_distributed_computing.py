"""Tests of coded distributed computing: one packet serves several workers, and the sums always have the same bits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError, TooFewWorkersError
from chimera.core.parameters import Flat, Layout, reduce_in_order
from chimera.strategies.shuffle import Shuffle
from chimera.training.messages.message_key import Key, keyed, merged
from chimera.training.worker.extensions.mapped_blocks import MappedBlocks

Fit = Callable[..., chimera.Run]
LAYOUT = Layout(("a", "b"), ((7, 5), (13,)))
STEP = 3


def gradients_of(shuffle: Shuffle, rejected: set[int]) -> dict[int, Flat | None]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(shuffle.count, LAYOUT.size)).astype(np.float32)
    return {block: None if block in rejected else vector for block, vector in enumerate(vectors)}


def mapped(shuffle: Shuffle, gradients: dict[int, Flat | None], **options: Any) -> list[MappedBlocks]:
    return [
        MappedBlocks(
            shuffle,
            place,
            {block: gradients[block] for block in shuffle.held(place)},
            LAYOUT,
            key=Key(0, STEP, 0, place),
            **options,
        )
        for place in range(shuffle.workers)
    ]


@st.composite
def shuffles(draw: st.DrawFn) -> Shuffle:
    workers = draw(st.integers(1, 6))
    return Shuffle(workers, draw(st.integers(1, workers)), draw(st.booleans()))


@given(shuffles(), st.data())
def test_any_sufficient_workers_have_the_exact_sum_of_all_blocks(shuffle: Shuffle, data: st.DataObject) -> None:
    """With packets in any order, some of them twice, and others of another step."""
    places = st.sets(st.integers(0, shuffle.workers - 1), min_size=max(shuffle.workers - shuffle.copies + 1, 1))
    there = tuple(sorted(data.draw(places)))
    rejected = data.draw(st.sets(st.integers(0, shuffle.count - 1), max_size=2))
    gradients = gradients_of(shuffle, rejected)
    workers = mapped(shuffle, gradients)
    packets = [workers[place].packet(number) for number, place in shuffle.senders(there).items()]
    late = [keyed(each, Key(0, STEP - 1, int(each.meta["key_block"]), 0)) for each in packets[:3]]
    given_ = data.draw(st.permutations([*packets, *packets[:4], *late]))
    finite = [vector for vector in gradients.values() if vector is not None]
    expected = (
        reduce_in_order(finite, np.empty(LAYOUT.size, np.float32)) if finite else np.zeros(LAYOUT.size, np.float32)
    )
    found = np.full(LAYOUT.size, np.nan, np.float32)
    for place in there:
        for message in workers[place].sums(there, merged(given_, STEP)):
            part = int(message.meta["key_block"])
            begin, end = workers[place].bounds[part : part + 2]
            found[begin:end] = message.arrays[0]
            assert message.meta["gradients"] == len(finite)
    assert found.tobytes() == expected.tobytes()


@given(shuffles())
def test_blocks_are_spread_evenly_and_each_has_an_owner(shuffle: Shuffle) -> None:
    places = range(shuffle.workers)
    assert {len(shuffle.held(place)) for place in places} == {shuffle.count * shuffle.copies // shuffle.workers}
    own = [block for place in places for block in shuffle.held(place)[: shuffle.own(place)]]
    assert sorted(own) == [*range(shuffle.count)]


@given(shuffles())
def test_the_communication_load_matches_theory(shuffle: Shuffle) -> None:
    """Counted in segments of equal length, each packet once."""
    pieces = [shuffle.pieces(number) for number in shuffle.senders(tuple(range(shuffle.workers)))]
    assert all(len({piece.segments for piece in packet}) == 1 for packet in pieces)
    sent = sum(1 / packet[0].segments for packet in pieces)
    assert sent == pytest.approx(shuffle.load * shuffle.workers * shuffle.count)


@settings(max_examples=20)
@given(shuffles(), st.sampled_from(["cast", "qsgd", "top-k", "powersgd", "terngrad"]))
def test_codecs_encode_a_part_equally_on_all_holders(shuffle: Shuffle, codec: str) -> None:
    """Otherwise an exclusive or would not give the missing segment."""
    gradients, everybody = gradients_of(shuffle, set()), tuple(range(shuffle.workers))
    plain = Shuffle(shuffle.workers, shuffle.copies, coded=False)
    sums = []
    for each in (shuffle, plain):
        workers = mapped(each, gradients, codec=(codec, {}), seed=5)
        packets = [workers[place].packet(number) for number, place in each.senders(everybody).items()]
        sums.append(
            [message.arrays[0].tobytes() for w in workers for message in w.sums(everybody, merged(packets, STEP))]
        )
    assert sums[0] == sums[1]


def train(strategy: Any, folder: Path, **options: Any) -> chimera.Run:
    named = {"name": "coded-distributed-computing", **strategy} if isinstance(strategy, dict) else strategy
    given_: dict[str, Any] = {
        "engine": "simulated", "workers": 4, "batch_size": 4, "optimizer": {"name": "adam", "lr": 0.01},
        "rounds": 20, "evaluate_every": 20, "seed": 1, "out": folder,
    }  # fmt: skip
    model = {"name": "mlp", "hidden": [16], "dropout": 0.2}
    return chimera.train(model, "digits", strategy=named, **{**given_, **options})


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    folders = itertools.count()
    return lambda strategy, **options: train(strategy, tmp_path / f"{next(folders)}", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Return the weights after as many steps of six workers with one block each; four workers hold these blocks in pairs."""
    return parameters(train("parameter-server", tmp_path_factory.mktemp("whole") / "run", workers=6))


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


def calls(run: chimera.Run, call: str) -> list[dict[str, Any]]:
    rows = map(json.loads, (run.run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["call"] == call]


@pytest.mark.parametrize("engine", ["simulated", "local", pytest.param("ray", marks=pytest.mark.long)])
@pytest.mark.parametrize("coded", [True, False])
def test_weights_equal_those_of_one_worker_per_block(fit: Fit, whole: np.ndarray, engine: str, coded: bool) -> None:
    run = fit({"coded": coded}, engine=engine)
    np.testing.assert_array_equal(parameters(run), whole)
    assert run.cost.samples == 20 * 6 * 4
    assert sum(row["samples"] for row in calls(run, "map_blocks")) == run.cost.samples


@pytest.mark.long
@pytest.mark.parametrize(("workers", "copies"), [(2, 1), (2, 2), (1, 3), (5, 3)])
def test_any_number_of_workers_and_copies(fit: Fit, workers: int, copies: int) -> None:
    run = fit({"copies": copies}, workers=workers)
    expected = fit("parameter-server", workers=Shuffle(workers, min(copies, workers)).count)
    np.testing.assert_array_equal(parameters(run), parameters(expected))


PACE = {"name": "simulated", "compute": {"seconds_per_sample": 1e-2}}  # the blocks of a step take 0.12 s


def hung(*ranks: int, for_s: float = 20) -> list[str]:
    return [f"hang worker {rank} for {for_s} s at step 5" for rank in ranks]


@pytest.mark.parametrize("coded", [True, False])
def test_missing_packets_are_requested_from_another_holder_after_the_timeout(
    fit: Fit, whole: np.ndarray, coded: bool
) -> None:
    run = fit({"timeout_s": 0.5, "coded": coded}, engine=PACE, faults=hung(2))
    np.testing.assert_array_equal(parameters(run), whole)
    assert {event.event for event in run.events} == {"fault"}
    in_time = [row for row in calls(run, "step_shuffled") if row["end_s"] < 20]
    assert len(in_time) >= 3 * 20, "the step waited for a straggler"


@pytest.mark.long
def test_missing_packets_are_requested_from_another_holder_on_processes(fit: Fit, whole: np.ndarray) -> None:
    run = fit({"timeout_s": 5}, engine="local", faults=["hang worker 0 for 15 s at step 5"])
    np.testing.assert_array_equal(parameters(run), whole)
    assert {event.event for event in run.events} == {"fault"}


def test_a_returning_worker_gets_the_weights_of_the_others(fit: Fit, whole: np.ndarray) -> None:
    """Another one hangs when the first is back, which then has the weights that the rest of the run needs."""
    faults = [*hung(1, for_s=1), "hang worker 0 for 30 s at step 16"]
    run = fit({"timeout_s": 0.5}, engine=PACE, faults=faults)
    np.testing.assert_array_equal(parameters(run), whole)
    assert {row["actor"] for row in calls(run, "restore")} == {"worker 0", "worker 1"}


def test_a_step_fails_if_no_worker_has_a_block_in_time(fit: Fit) -> None:
    why = r"step \d: block 3 is missing, and none of its holders is alive or has answered in 0.5 s"
    with pytest.raises(TooFewWorkersError, match=why) as caught:
        fit({"timeout_s": 0.5}, engine=PACE, faults=hung(1, 2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["respawn", "drop"])
@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_worker_loss_does_not_change_weights(fit: Fit, whole: np.ndarray, engine: str, policy: str) -> None:
    run = fit({}, engine=engine, faults=["kill worker 1 at step 8"], on_worker_loss=policy)
    assert "worker lost" in [event.event for event in run.events]
    np.testing.assert_array_equal(parameters(run), whole)


@pytest.mark.parametrize(
    ("strategy", "why"),
    [({"copies": 0}, "copies must be at least 1, not 0"), ({"timeout_s": 0}, "timeout_s must be above 0, not 0")],
    ids=str,
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, strategy: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(strategy)
    assert "\n" not in str(caught.value)
