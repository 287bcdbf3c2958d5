"""Ends of processes, descriptions of exits, and pauses between the starts of a process."""

import subprocess
import sys

from chimera.core.processes import RestartPause, describe_exit


def test_an_exit_is_described_by_its_code_or_signal() -> None:
    assert [describe_exit(code) for code in (0, 3, -9)] == [
        "exited with code 0", "exited with code 3", "was killed by SIGKILL"
    ]  # fmt: skip


ENDING = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
from chimera.core.processes import end_process

class LeftByTheTeardown:
    def __del__(self):
        print("torn down")

held = LeftByTheTeardown()
pool = ThreadPoolExecutor(1)
going = threading.Event()
pool.submit(lambda: (going.wait(), print("pool")))
atexit.register(lambda: print("handler"))
forever = threading.Event()
threading.Thread(target=forever.wait, daemon=DAEMON).start()
going.set()
FREE
end_process(7)
"""


def ending(*, daemon: bool) -> tuple[int, list[str]]:
    text = ENDING.replace("DAEMON", str(daemon)).replace("FREE", "" if daemon else "forever.set()")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.split("\n")[:-1]


def test_a_process_with_a_daemon_thread_ends_without_a_teardown_of_the_interpreter() -> None:
    assert ending(daemon=True) == (7, ["pool", "handler"])


def test_a_process_without_daemon_threads_ends_as_usual() -> None:
    assert ending(daemon=False) == (7, ["pool", "handler", "torn down"])


def test_pauses_double_after_short_runs_and_end_with_a_long_run() -> None:
    pause, now_s, pauses = RestartPause(), 100.0, list[float]()
    for run_s in (*[0.5] * 9, 2.0, 0.5):
        assert pause.is_over(now_s)
        pause.start(now_s)
        now_s += run_s
        pause.exit(now_s)
        pauses.append(
            next(wait for wait in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0) if pause.is_over(now_s + wait))
        )
        now_s += 10.0
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.0, 0.1]


def test_short_runs_that_are_not_over_at_once_pause_from_the_third_on() -> None:
    pause, now_s, seen = RestartPause(short_run_s=10.0, max_pause_s=0.3), 100.0, list[tuple[int, float]]()
    for run_s in (5.0, 5.0, 5.0, 5.0, 5.0, 10.0, 5.0):
        pause.start(now_s)
        now_s += run_s
        pause.exit(now_s)
        seen.append((pause.short_runs, pause.pause_s))
    assert seen == [(1, 0.0), (2, 0.0), (3, 0.1), (4, 0.2), (5, 0.3), (0, 0.0), (1, 0.0)]
