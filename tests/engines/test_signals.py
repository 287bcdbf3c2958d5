"""Disturbances keep their promises at any timing, and signals reach the intended process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.engine import Disturbance
from chimera.engines.signals import SLICE_S, Disturbances, send, this_process


class Observed:
    """A process with a clock of its own, and its running and stopped times."""

    def __init__(self) -> None:
        self.now = self.ran_s = self.stopped_s = 0.0
        self.stopped = self.gone = False
        self.disturbances: Disturbances[str] = Disturbances(self.send, lambda: self.now)

    def send(self, process: str, number: int) -> None:
        if self.gone:
            raise ProcessLookupError
        self.stopped = number == signal.SIGSTOP

    def disturb(self, *args: object, **kwargs: object) -> None:
        self.disturbances.add("it", Disturbance(*args, **kwargs))  # type: ignore[arg-type]

    def go_on(self, until_s: float, late_s: list[float]) -> None:
        """Tick whenever that was requested, or later by one of these delays in turn."""
        turn = 0
        while (next_s := self.disturbances.tick()) is not None and self.now < until_s:
            step_s = next_s + late_s[turn % len(late_s)] + 1e-6
            turn += 1
            if self.stopped:
                self.stopped_s += step_s
            else:
                self.ran_s += step_s
            self.now += step_s


@given(
    factor=st.floats(1.0, 50.0),
    late_s=st.lists(st.floats(0.0, 0.02), min_size=1, max_size=5),
)
def test_slow_is_by_the_factor_also_when_ticks_come_late(factor: float, late_s: list[float]) -> None:
    it = Observed()
    it.disturb("slow", factor)
    it.go_on(30.0, late_s)
    longest_slice_s = SLICE_S + max(late_s) + 1e-5
    assert it.ran_s > 0
    assert (
        abs(it.stopped_s - (factor - 1) * it.ran_s) <= (factor - 1) * (longest_slice_s + max(late_s)) + longest_slice_s
    )


@given(what=st.sampled_from(["hang", "cut off", "slow"]), for_s=st.floats(0.01, 5.0), factor=st.floats(1.0, 1000.0))
def test_what_lasts_for_a_time_leaves_the_process_running(what: str, for_s: float, factor: float) -> None:
    it = Observed()
    it.disturb(what, factor, for_s)
    assert it.stopped == (what != "slow")
    it.go_on(10.0, [0.0])
    assert not it.stopped
    assert it.disturbances.tick() is None
    assert it.now == pytest.approx(for_s, abs=1e-3)


def test_a_later_disturbance_begins_from_where_the_former_left_the_process() -> None:
    it = Observed()
    it.disturb("hang")
    assert (it.stopped, it.disturbances.tick()) == (True, None)
    it.disturb("slow", 2.0)
    assert not it.stopped
    it.disturb("hang", for_s=1.0)
    it.go_on(5.0, [0.0])
    assert not it.stopped


def test_the_disturbance_of_one_that_is_gone_ends() -> None:
    it = Observed()
    it.disturb("slow", 3.0)
    it.gone = True
    it.go_on(5.0, [0.0])
    assert it.disturbances.tick() is None


def test_a_signal_goes_to_the_process_that_was_meant_or_to_none() -> None:
    code = "from chimera.engines.signals import this_process; print(*this_process(), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with child:
        assert child.stdout is not None
        pid, started = map(int, child.stdout.readline().split())
        with pytest.raises(ProcessLookupError):
            send((pid, started + 1), signal.SIGKILL)
        assert child.poll() is None
        send((pid, started), signal.SIGKILL)
        assert child.wait(timeout=10) == -signal.SIGKILL
    assert this_process()[0] == os.getpid()
