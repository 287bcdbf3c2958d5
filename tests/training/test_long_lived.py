"""The garbage collector while many actors live in this process."""

from __future__ import annotations

import gc

import pytest

from chimera.training.run.gc_freeze import frozen_gc


@pytest.fixture(autouse=True)
def untouched() -> None:
    assert gc.get_freeze_count() == 0


def failing_run_within_a_run() -> None:
    with frozen_gc(1000):
        with frozen_gc(1000):
            pass
        assert gc.get_freeze_count() > 0
        raise ArithmeticError


@pytest.mark.long
def test_it_is_as_before_when_the_run_is_over_also_by_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ArithmeticError):
        failing_run_within_a_run()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_cycles_that_come_meanwhile_are_found() -> None:
    with frozen_gc(1000):
        ring: list[object] = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0


def test_few_actors_change_nothing() -> None:
    with frozen_gc(3):
        assert gc.get_freeze_count() == 0
