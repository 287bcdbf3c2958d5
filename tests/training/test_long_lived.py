"""Tests of the garbage collector with many actors in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from chimera.training.run.gc_freeze import frozen_gc


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Undo the freeze of the whole test run (tests/conftest.py) during a test."""
    gc.unfreeze()
    yield
    assert gc.get_freeze_count() == 0
    gc.freeze()


def failing_run_within_a_run() -> None:
    with frozen_gc(1000):
        with frozen_gc(1000):
            pass
        assert gc.get_freeze_count() > 0
        raise ArithmeticError


@pytest.mark.long
def test_gc_settings_are_restored_after_a_run_and_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ArithmeticError):
        failing_run_within_a_run()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_cycles_created_meanwhile_are_collected() -> None:
    with frozen_gc(1000):
        ring: list[object] = []
        ring.append(ring)
        del ring
        assert gc.collect() > 0


def test_few_actors_leave_gc_unchanged() -> None:
    with frozen_gc(3):
        assert gc.get_freeze_count() == 0
