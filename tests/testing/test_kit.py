"""The conformance kit, run as by the author of a strategy: a correct strategy passes, and each kind of fault is found."""

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
"""Strategies: a correct one, and others with one fault each."""

import random
from itertools import count

from chimera.core.errors import ActorLost
from chimera.strategies.strategy import Round, Strategy


class Cyclic(Strategy):
    """Each round applies the gradient of one worker, in cyclic order."""

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
    """The current worker is stored in the strategy but not in checkpoints."""

    calls = 0

    def turn(self, round_):
        self.calls += 1
        return self.calls * (self.calls + 1) // 2


class HalfRemembering(Forgetful):
    """The current worker is part of the state but is not restored."""

    def state(self):
        return {"calls": self.calls}


class Unseeded(Cyclic):
    """The current worker is random, without a seed."""

    def turn(self, round_):
        return random.randrange(1000)


class Miscounting(Cyclic):
    """Declares that all workers compute a batch in each round."""

    def batches_per_round(self, workers):
        return workers


class Hiding(Cyclic):
    """Its rounds have no refs, which hides failures of its calls."""

    def round(self, cluster, done):
        return Round([])


class Swallowing(Cyclic):
    """Ignores the loss of an actor."""

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
    """Stops after five rounds."""

    def rounds(self, cluster):
        for _, each in zip(range(5), super().rounds(cluster)):
            yield each


class Chatty(Cyclic):
    """Prints."""

    def round(self, cluster, done):
        print("a round")
        return super().round(cluster, done)


class Nameless(Cyclic):
    """Has an unknown family."""

    family = "others"
'''

FOUND_BY = {
    "Forgetful": "test_a_resumed_run_equals_an_uninterrupted_one",
    "HalfRemembering": "test_its_state_is_serializable_and_restored",
    "Unseeded": "test_running_twice_in_virtual_time_gives_the_same_bits",
    "Miscounting": "test_it_counts_the_samples_that_workers_compute",
    "Hiding": "test_it_yields_rounds_and_prints_nothing",
    "Swallowing": "test_a_worker_that_is_killed_is_replaced",
    "Idle": "test_it_learns",
    "Ending": "test_it_yields_rounds_and_prints_nothing",
    "Chatty": "test_it_yields_rounds_and_prints_nothing",
    "Nameless": "test_class_attributes_are_valid",
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
def test_a_correct_strategy_passes(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "Cyclic")
    assert set(found.values()) == {"PASSED"}
    assert len(found) >= 11


@pytest.mark.takes("it starts pytest, which imports torch")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", FOUND_BY)
def test_a_fault_is_found_by_the_test_of_that_promise(tmp_path: Path, strategy: str) -> None:
    test = FOUND_BY[strategy]
    assert outcomes(tmp_path, strategy, "-k", test)[test] == "FAILED"


def test_the_plugin_imports_no_heavy_library() -> None:
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
def test_an_unknown_name_is_rejected(strategies: list[str], engines: list[str], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        check(strategies, engines)
