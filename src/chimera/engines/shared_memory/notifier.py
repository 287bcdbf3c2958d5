"""Waiting for other processes: poll shared memory for a short time, then sleep until another process wakes this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from chimera.core.errors import ActorLost
from chimera.engines.shared_memory.futex import Futex
from chimera.engines.shared_memory.memory import BELL_AT, Memory, fence

_RECHECK_S = 0.25  # bounds the delay if a wake-up is lost; no such case is known
_MAX_SLEEP_S = 1e-3


class Notifier:
    """Sleeping and waking between the processes of an engine.

    Each process has a word in shared memory, which other processes change to wake it. On Linux the process sleeps on that
    word (a futex). On other systems it polls the word with short sleeps, which is slower.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory, self._me = memory, memory.me
        self._word, self._address = self._bell(memory.me)
        self._bells = {memory.me: (self._word, self._address)}
        self._futex = Futex.of_this_system()
        self._naps = 0

    def ring_for_call(self, calls_over: int) -> None:
        """Wake the processes that wait, or whose next call waits, until ``calls_over`` calls of this process have ended.

        The driver is woken last: a wake-up takes as long as a hundred lines of Python, and actors rarely wait for the driver.
        """
        fence()  # the results are written before the flags of waiting processes are read
        own, actors = self._memory.own, self._memory.actors()
        awaited, concerns = own.awaited[:actors].tolist(), own.concerns[:actors].tolist()
        for other in range(actors - 1, -1, -1):
            if 0 < awaited[other] <= calls_over or concerns[other] == calls_over:
                self.ring(other)

    def ring_members(self, members: Iterable[int]) -> None:
        """Wake the members of a group that wait for this process to arrive."""
        fence()
        gathering = self._memory.own.gathering
        for other in members:
            if gathering[other]:
                self.ring(other)

    def ring(self, other: int) -> None:
        """Wake one process; do nothing if it is awake or dead."""
        if other not in self._bells:
            self._bells[other] = self._bell(other)
        word, address = self._bells[other]
        word[0] = (word[0] + 1) & 0x7FFFFFFF
        if self._futex is not None:
            self._futex.wake(address)

    def await_calls(
        self, ready: Callable[[], bool], calls: Mapping[int, int], spin_s: float, deadline: float | None = None
    ) -> bool:
        """Return True when ``ready()`` is true, or False after ``deadline``.

        Parameters
        ----------
        ready : reads shared memory; it may raise.
        calls : for each process that can make it true, how many of its calls must have ended before that is possible.
        spin_s : seconds to poll before sleeping.
        deadline : seconds of the monotonic clock; default: none.
        """
        if _look(ready, spin_s):
            return True
        flags = [(self._memory.region(source).awaited, count) for source, count in calls.items()]
        return self._sleep(ready, flags, deadline)

    def await_members(
        self, ready: Callable[[], bool], check: Callable[[], None], members: Iterable[int], spin_s: float
    ) -> None:
        """Return when ``ready()`` is true, after members of a group arrived; ``check`` raises if that cannot happen."""
        if not _look(ready, spin_s):

            def ready_or_never() -> bool:
                if not ready():
                    try:
                        check()
                    except ActorLost:
                        if not ready():  # otherwise the member made it true just before its death
                            raise
                return ready()

            self._sleep(ready_or_never, [(self._memory.region(member).gathering, 1) for member in members], None)

    def _sleep(
        self, ready: Callable[[], bool], flags: Sequence[tuple[memoryview[int], int]], deadline: float | None
    ) -> bool:
        """Set the flags that request wake-ups, and check ``ready`` after each wake-up."""
        for row, value in flags:
            row[self._me] = value
        self._naps = 0
        try:
            while True:
                self._memory.own.sign()
                seen = self._word[0]
                fence()  # either the other process sees the flags, or this one sees that it is ready
                if ready():
                    return True
                left = _RECHECK_S if deadline is None else min(_RECHECK_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._rest(seen, left)
        finally:
            for row, _ in flags:
                row[self._me] = 0

    def _rest(self, seen: int, timeout_s: float) -> None:
        """Sleep until this process's word differs from ``seen``, at most ``timeout_s`` seconds. May return earlier."""
        if self._futex is None:
            self._naps += 1
            time.sleep(min(1e-5 * self._naps, _MAX_SLEEP_S, timeout_s))
            return
        self._futex.wait(self._address, seen, timeout_s)

    def _bell(self, other: int) -> tuple[memoryview[int], int]:
        region = self._memory.region(other)
        return region.bytes[BELL_AT : BELL_AT + 4].cast("i"), region.address + BELL_AT


def _look(ready: Callable[[], bool], spin_s: float) -> bool:
    """Poll ``ready`` for ``spin_s`` seconds. This does not yield: the scheduler could suspend it for a whole time slice."""
    if ready():
        return True
    until = time.monotonic() + spin_s
    while time.monotonic() < until:
        if ready():
            return True
    return False
