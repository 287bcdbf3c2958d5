"""Descriptions of exits, and pauses between the starts of a process."""

from chimera.core.processes import RestartPause, describe_exit


def test_an_exit_is_described_by_its_code_or_signal() -> None:
    assert [describe_exit(code) for code in (0, 3, -9)] == [
        "exited with code 0", "exited with code 3", "was killed by SIGKILL"
    ]  # fmt: skip


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
