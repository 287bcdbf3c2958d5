"""Pipelines of actors: they give the windows that a learner would read itself, also after failures, and end cleanly."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import ConfigurationError, ConflictError, DataError
from chimera.data.split import DATASETS
from chimera.data.text.pipeline.pipelines import Pipelines
from chimera.data.text.text import Text
from data.text.actors import Consumer, Producer, ReadingLearner
from data.text.texts import random_text, written

LIMIT_S = 60.0
STEPS = [*range(60), 59, 3, 200, 201, 58]  # 200 windows each, of about 26,000 in a part, with seeks back and ahead
PRELOAD = {
    "preload": ["chimera.data.text.kernels", "chimera.data.text.pipeline.pipelines"]
}  # for the processes of the local engine
RAY = pytest.param(("ray", {}), marks=pytest.mark.long)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    path = written(tmp_path_factory.mktemp("book") / "book.txt", random_text(60_000))
    return Text.of(path, sample=0.05, test_windows=100)


@pytest.fixture(params=[("simulated", {}), ("local", PRELOAD), RAY], ids=lambda engine: engine[0], scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ENGINES.create(*request.param) as engine:
        yield engine


@pytest.fixture
def pipelines(engine: Engine, text: Text) -> Iterator[Callable[..., Pipelines]]:
    made: list[Pipelines] = []

    def make(**options: Any) -> Pipelines:
        made.append(Pipelines(engine, text, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def learners(engine: Engine, text: Text, orders: list[Any]) -> list[Any]:
    return [engine.spawn(ReadingLearner, text, order) for order in orders]


def until(engine: Engine, ask: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Repeat a call until its result is accepted. The calls also advance virtual time."""
    deadline = time.monotonic() + LIMIT_S
    while not wanted(value := engine.get(ask(), LIMIT_S)):
        assert time.monotonic() < deadline, f"the value stays {value}"
    return value


@pytest.mark.long
@pytest.mark.parametrize("stages", ["fused", "apart"])
def test_a_pipeline_per_learner_gives_the_windows_of_direct_reading(
    engine: Engine, text: Text, pipelines: Any, stages: str
) -> None:
    orders = pipelines(pipelines=2, learners=2, seed=4, stages=stages).orders(2, 200)
    found = engine.get([learner.read(STEPS) for learner in learners(engine, text, orders)], LIMIT_S)
    for order, rows in zip(text.orders(2, 200, 4), found, strict=True):
        expected = [text.take(order.batch(step)) for step in STEPS]
        np.testing.assert_array_equal(rows[:, :, 2], [targets for _, targets in expected])
        np.testing.assert_array_equal(np.delete(rows, 2, axis=2), [inputs for inputs, _ in expected])


@pytest.mark.long
def test_learners_that_share_a_pipeline_get_each_window_once(engine: Engine, text: Text, pipelines: Any) -> None:
    made = pipelines(pipelines=2, learners=5, stages="apart")
    some = learners(engine, text, made.orders(5, 512))
    whole = engine.get([learner.read(list(range(16))) for learner in some], LIMIT_S)  # 16 batches are one block
    for index in range(2):
        blocks = [rows.reshape(8192, 5) for rows in whole[index::2]]
        stream = text.stream(index, 2, 0).take(0, 12 * 8192).reshape(12, 8192, 5)
        places = [next(n for n in range(12) if np.array_equal(stream[n], block)) for block in blocks]
        assert len(set(places)) == len(blocks)
        assert min(places) == 0
    again = engine.get(some[0].read([15, 16, 16]), LIMIT_S)
    np.testing.assert_array_equal(again[0], whole[0][15])
    np.testing.assert_array_equal(again[1], again[2])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("stages", "kind"), [("fused", "pipeline"), ("apart", "tokenizer"), ("apart", "filter"), ("apart", "batcher")]
)
def test_learners_continue_after_a_stage_died_and_was_replaced(
    engine: Engine, text: Text, pipelines: Any, stages: str, kind: str
) -> None:
    made = pipelines(pipelines=2, learners=2, stages=stages)
    some = learners(engine, text, made.orders(2, 200))
    engine.get([learner.read([0, 1, 2]) for learner in some], LIMIT_S)
    (victim,) = [actor for actor in made.actors if actor.name == f"{kind} 1"]
    pending = some[1].read(list(range(3, 500)))
    engine.kill(victim)
    alone = text.orders(2, 200, 0)[1]
    found = engine.get(pending, LIMIT_S)  # a learner without a pipeline reads the files itself
    np.testing.assert_array_equal(found[:, :, 2], [text.take(alone.batch(step))[1] for step in range(3, 500)])
    assert made.lost() == [f"{kind} 1"]
    assert made.replace_lost() == [f"{kind} 1"]
    assert made.lost() == []
    for learner, order in zip(some, made.orders(2, 200), strict=True):
        learner.follow(order)
    found = engine.get([learner.read(STEPS) for learner in some], LIMIT_S)
    for order, rows in zip(text.orders(2, 200, 0), found, strict=True):
        np.testing.assert_array_equal(rows[:, :, 2], [text.take(order.batch(step))[1] for step in STEPS])


def test_queues_fill_up_to_their_bound_and_a_report_takes_nothing_from_them(
    engine: Engine, text: Text, pipelines: Any
) -> None:
    made = pipelines(pipelines=1, learners=1, stages="apart", ahead=2)
    (learner,) = learners(engine, text, made.orders(1, 200))
    assert set(made.fill()) == {"filter 0", "batcher 0"}
    engine.get(learner.read([0]), LIMIT_S)
    for name in ("filter 0", "batcher 0"):
        until(engine, lambda name=name: made.fill()[name], lambda share: share == 1)  # type: ignore[misc]
    until(engine, learner.fill, lambda share: share == 1)
    for _ in range(20):
        assert {*engine.get([*made.fill().values(), learner.fill()], LIMIT_S)} == {1}
    read = engine.get(learner.read([100]), LIMIT_S)
    np.testing.assert_array_equal(read[0, :, 2], text.take(text.orders(1, 200, 0)[0].batch(100))[1])


def test_a_prefetch_call_on_a_dead_producer_is_retried(engine: Engine) -> None:
    consumer = engine.spawn(Consumer, first := engine.spawn(Producer, 10))
    assert engine.get(consumer.take(0), LIMIT_S) == 10  # 1 and 2 are prefetched
    until(engine, consumer.waiting, lambda values: values == 2)
    engine.kill(first)
    until(engine, list, lambda _: any(actor is first for actor in engine.lost()))
    assert engine.get(consumer.take(1), LIMIT_S) == 11  # this calls the dead producer
    engine.get(consumer.follow(engine.spawn(Producer, 20)), LIMIT_S)
    assert engine.get(consumer.take(2), LIMIT_S) == 12
    assert engine.get(consumer.take(3), LIMIT_S) == 23


def test_an_error_of_a_prefetch_call_is_raised_when_its_value_is_taken(engine: Engine) -> None:
    consumer = engine.spawn(Consumer, engine.spawn(Producer, 10), 2)
    assert engine.get(consumer.take(0), LIMIT_S) == 10
    until(engine, consumer.waiting, lambda values: values == 2)
    assert engine.get(consumer.take(1), LIMIT_S) == 11
    with pytest.raises(ConflictError, match="there is no value at 2"):
        engine.get(consumer.take(2), LIMIT_S)


def test_new_shared_pipelines_continue_after_the_windows_that_were_taken(
    engine: Engine, text: Text, pipelines: Any
) -> None:
    made = pipelines(pipelines=1, learners=2)
    (learner, _) = learners(engine, text, made.orders(2, 100, since=50, begin=10_000))
    rows = engine.get(learner.read([50]), LIMIT_S)
    np.testing.assert_array_equal(rows[0], text.stream(0, 1, 0).take(10_000, 100))


def test_all_stages_end_while_calls_are_in_flight(engine: Engine, text: Text, pipelines: Any) -> None:
    made = pipelines(pipelines=2, learners=2, stages="apart")
    some = learners(engine, text, made.orders(2, 100))
    pending = [learner.read(list(range(100))) for learner in some]
    stages = made.actors
    made.end()
    assert all(len(rows) == 100 for rows in engine.get(pending, LIMIT_S))
    assert {actor.name for actor in stages} <= {actor.name for actor in engine.lost()}
    assert made.actors == []


def test_an_error_of_a_stage_is_raised_at_the_learner(engine: Engine, tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", random_text(500))
    text = Text.of(path, test_windows=10)
    made = Pipelines(engine, text, learners=1, stages="apart")
    (learner,) = learners(engine, text, made.orders(1, 10))
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        engine.get(learner.read([0]), LIMIT_S)
    made.end()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipelines": 3, "learners": 2}, "1 to 2 are allowed"),
        ({"pipelines": 0, "learners": 2}, "1 to 2 are allowed"),
        ({"learners": 2, "stages": "split"}, "the stages 'split' are unknown"),
        ({"learners": 2, "ahead": -1}, "ahead is -1"),
        ({"learners": 1, "seed": -1}, "the seed is -1"),
    ],
)
def test_invalid_pipelines_are_rejected(text: Text, options: dict[str, Any], said: str) -> None:
    with ENGINES.create("simulated") as engine, pytest.raises(ConfigurationError, match=said):
        Pipelines(engine, text, **options)


def test_all_preloaded_modules_exist() -> None:
    ahead = [module for entry in DATASETS.entries() for module in entry.preload]
    assert "chimera.core.jit_warm_up" in ahead
    for module in ahead:  # a failed preload is not reported, and makes the start of processes slow
        importlib.import_module(module)
