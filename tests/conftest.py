"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import settings

import sampling
from scheduling import SHARED, Turns

for package in (
    "federation",
    "codecs_kit",
    "model_parallel_kit",
    "embedding_kit",
    "inference_kit",
    "inference",
    "jobs",
):
    pytest.register_assert_rewrite(package)  # so that what fails in a kit says what was found

settings.register_profile("shared-machine", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("shared-machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that runs this in the background has all ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_S = 3.0
"""A test of the default run that takes longer has a marker ``takes`` with the reason."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one process more than there are cores: a fifth of the time, tests wait for processes, sockets and timeouts."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Pause the garbage collector, and freeze what imports and collection made: no cycles end among a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Turns:
    """Return the scheduling of tests under ``-n``."""
    return Turns(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave combinations of parameters to the long run; order the files of a run with a time limit by the day."""
    sampling.mark(items)
    for item in items:
        if reason := item.get_closest_marker("takes"):
            item.user_properties.append(("takes", reason.args[0]))
        elif shared := SHARED.search(item.nodeid):
            item.user_properties.append(("takes", f"it starts processes of {shared.group()}"))
    if "CHIMERA_TESTS_UNTIL" in os.environ:
        items[:] = sampling.order_of_files(items, sampling.today())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the seconds of each folder, and slow tests without the marker ``takes``, if ``--durations`` is set."""
    if config.option.durations is None:
        return
    reports = [one for found in terminalreporter.stats.values() for one in found if hasattr(one, "duration")]
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds["/".join(report.nodeid.split("::")[0].split("/")[1:2])] += report.duration
    terminalreporter.section("seconds by folder")
    terminalreporter.write_line(", ".join(f"{name} {spent:.0f}" for name, spent in seconds.most_common() if spent >= 1))
    for report in reports:
        if report.when == "call" and report.duration > SLOW_S and "takes" not in dict(report.user_properties):
            terminalreporter.write_line(
                f"took {report.duration:.1f} s, and no marker 'takes' gives a reason: {report.nodeid}"
            )


def pytest_runtest_setup() -> None:
    """Skip tests after the time CHIMERA_TESTS_UNTIL (seconds since 1970); the summary lists the skipped tests."""
    if time.time() > float(os.environ.get("CHIMERA_TESTS_UNTIL", "inf")):
        pytest.skip("the time that CHIMERA_TESTS_UNTIL gives is over: run it without that, as 'make test-long' does")


@pytest.fixture
def fake_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return with the fake device available in all threads, see `fake_device`; without it if the test runs on a GPU."""
    from fake_device import in_all_threads

    on_gpu = request.node.callspec.params.get("device") == "cuda"  # where the fake device would replace the GPU
    with nullcontext() if on_gpu else in_all_threads(monkeypatch):
        yield
