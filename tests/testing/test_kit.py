"""The conformance kit, as whoever writes a strategy starts it: a good one passes, and each kind of fault is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from chimera.testing.options import check

MINE = '''
"""Strategies: one that is right, and others each of which does one thing wrong."""

import random
from itertools import count

from chimera.core.errors import ActorLost
from chimera.strategies.strategy import Round, Strategy


class Cyclic(Strategy):
    """Each round applies the gradient of one worker, in turn."""

    family = "synchronous"

    def rounds(self, cluster):
        (server,) = cluster.servers(1)
        weights = [server.weights()]
        for round_ in count(cluster.round):
            worker = cluster.workers[self.turn(round_) % len(cluster.workers)]
            (gradient,) = worker.gradient(*cluster.addressed(worker, weights), returns=1)
            updated, done = server.update(gradient, returns=2)
            weights = [updated]
            yield self.round(cluster, done)

    def turn(self, round_):
        return round_

    def round(self, cluster, done):
        return Round([done])

    def batches_per_round(self, workers):
        return 1


class Forgetful(Cyclic):
    """Whose turn it is stands in the strategy, and in no checkpoint."""

    calls = 0

    def turn(self, round_):
        self.calls += 1
        return self.calls * (self.calls + 1) // 2


class HalfRemembering(Forgetful):
    """Whose turn it is stands in its state, which does not take it back."""

    def state(self):
        return {"calls": self.calls}


class Unseeded(Cyclic):
    """Whose turn it is, chance decides."""

    def turn(self, round_):
        return random.randrange(1000)


class Miscounting(Cyclic):
    """Says that all workers compute a batch in each round."""

    def batches_per_round(self, workers):
        return workers


class Hiding(Cyclic):
    """Lets nobody see what became of its calls."""

    def round(self, cluster, done):
        return Round([])


class Swallowing(Cyclic):
    """Takes a loss for an answer."""

    def round(self, cluster, done):
        try:
            cluster.get(done)
        except ActorLost:
            pass
        return Round([cluster.workers[0].step()])


class Idle(Cyclic):
    """Never steps."""

    def rounds(self, cluster):
        while True:
            yield Round([worker.samples() for worker in cluster.workers])


class Ending(Cyclic):
    """Decides by itself when to stop."""

    def rounds(self, cluster):
        for _, each in zip(range(5), super().rounds(cluster)):
            yield each


class Chatty(Cyclic):
    """Prints."""

    def round(self, cluster, done):
        print("a round")
        return super().round(cluster, done)


class Nameless(Cyclic):
    """Belongs nowhere."""

    family = "others"
'''

FOUND_BY = {
    "Forgetful": "test_resumed_it_ends_as_if_it_had_never_been_cut_off",
    "HalfRemembering": "test_its_state_is_plain_values_and_comes_back",
    "Unseeded": "test_twice_in_virtual_time_is_the_same_to_the_bit",
    "Miscounting": "test_it_counts_what_its_workers_compute",
    "Hiding": "test_it_yields_rounds_and_says_nothing",
    "Swallowing": "test_a_worker_that_is_killed_is_replaced",
    "Idle": "test_it_learns",
    "Ending": "test_it_yields_rounds_and_says_nothing",
    "Chatty": "test_it_yields_rounds_and_says_nothing",
    "Nameless": "test_it_says_what_it_is",
}


def outcomes(folder: Path, strategy: str, *options: str) -> dict[str, str]:
    """Run the kit on a strategy of `MINE` in virtual time, and return the outcome of each test."""
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    command = [
        "pytest",
        "-p",
        "chimera.testing",
        "--pyargs",
        "chimera.testing",
        f"--strategy=mine:{strategy}",
        *options,
    ]
    command += ["--engines", "simulated", "-m", "not long", "-rA", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=200
    )
    assert "Warning" not in done.stdout, done.stdout
    found = re.findall(r"^(PASSED|FAILED|SKIPPED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    assert all(outcome != "ERROR" for outcome, _ in found)
    result: dict[str, str] = {}
    for outcome, test in found:
        result[test] = "FAILED" if "FAILED" in (outcome, result.get(test)) else outcome
    return result


@pytest.mark.long
def test_a_strategy_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    told = outcomes(tmp_path, "Cyclic")
    assert set(told.values()) == {"PASSED"}
    assert len(told) >= 11


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", FOUND_BY)
def test_a_fault_is_found_by_the_test_of_that_promise(tmp_path: Path, strategy: str) -> None:
    test = FOUND_BY[strategy]
    assert outcomes(tmp_path, strategy, "-k", test)[test] == "FAILED"


def test_the_plugin_costs_a_run_of_pytest_next_to_nothing() -> None:
    code = "import sys; import chimera.testing; sys.exit(bool({'torch', 'ray', 'sklearn'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_other_run_of_pytest_loads_the_plugin(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "pytest11" not in project.get("entry-points", {})
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--strategy", "local-sgd"], cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --strategy" in ran.stderr


@pytest.mark.parametrize(
    ("strategies", "engines", "message"),
    [
        (["nowhere:Mine"], [], "cannot import 'nowhere'"),
        (["fed-avg", "fed-avgg"], [], "unknown strategy 'fed-avgg'; did you mean 'fed-avg'. known: .*fed-avg"),
        (["fed-avg"], ["simulated", "locl"], "unknown engine 'locl'; did you mean 'local'. known: .*local"),
    ],
)
def test_a_name_that_nobody_bears_is_refused(strategies: list[str], engines: list[str], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        check(strategies, engines)
