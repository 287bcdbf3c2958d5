"""Tests of all pipeline schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.strategies.schedules import SCHEDULES, Task, in_turn

SIZES = st.integers(1, 7), st.integers(1, 12)


@pytest.mark.parametrize("name", SCHEDULES)
@given(*SIZES)
def test_each_task_runs_once_after_its_dependencies(name: str, stages: int, micro_batches: int) -> None:
    done: list[Task] = []
    for task in in_turn(SCHEDULES[name], stages, micro_batches):
        stage, phase, micro = task
        if phase == "forward" and stage:
            assert Task(stage - 1, "forward", micro) in done
        if phase == "backward":
            assert Task(stage, "forward", micro) in done
            assert stage == stages - 1 or Task(stage + 1, "backward", micro) in done
        done.append(task)
    assert len(done) == len(set(done)) == 2 * stages * micro_batches


@pytest.mark.parametrize("name", SCHEDULES)
@given(*SIZES)
def test_a_step_begins_with_the_first_micro_batch(name: str, stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        assert SCHEDULES[name](stage, stages, micro_batches)[0] == ("forward", 0)


@given(*SIZES)
def test_1f1b_holds_at_most_one_micro_batch_per_remaining_stage(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        held = most = 0
        for phase, _ in SCHEDULES["1f1b"](stage, stages, micro_batches):
            held += 1 if phase == "forward" else -1
            most = max(most, held)
        assert most == min(stages - stage, micro_batches)


@pytest.mark.parametrize("name", SCHEDULES)
@given(*SIZES)
def test_the_bubble_matches_theory(name: str, stages: int, micro_batches: int) -> None:
    free = [0.0] * stages
    ends: dict[Task, float] = {}
    for task in in_turn(SCHEDULES[name], stages, micro_batches):
        stage, phase, micro = task
        step = -1 if phase == "forward" else 1
        before = ends.get(Task(stage + step, phase, micro), 0.0)
        ends[task] = free[stage] = max(before, free[stage]) + (1 if phase == "forward" else 2)
    share = 1 - 3 * micro_batches / max(free)
    assert share == pytest.approx((stages - 1) / (micro_batches + stages - 1))
