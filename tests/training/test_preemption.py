"""SIGTERM and SIGUSR1 stop a run after a checkpoint, from which it resumes with the same result."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from chimera.core.stop_signals import Terminated, ignore_stop_signals, terminable
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.run import interrupt
from chimera.training.run.interrupt import Interrupt

SCRIPT = Path(__file__).with_name("preempted.py")
ROUNDS, LIMIT_S = 22, 120
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'chimera-dml[ray]'"
)
ENGINES = ["simulated", "local", pytest.param("ray", marks=needs_ray)]
Train = Callable[..., "subprocess.CompletedProcess[str]"]


def train(
    out: Path, engine: str, at: str = "never", how: str = "SIGTERM", **more: Any
) -> subprocess.CompletedProcess[str]:
    given = {
        "out": str(out),
        "engine": engine,
        "strategy": "all-reduce",
        "rounds": ROUNDS,
        "at": at,
        "how": how,
        **more,
    }
    command = [sys.executable, str(SCRIPT), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(out) in " ".join(p.info["cmdline"] or [])]
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """The weights of runs that were left alone."""

    @cache
    def weights(engine: str, strategy: str = "all-reduce", readers: int = 0) -> bytes:
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert train(folder, engine, strategy=strategy, options=reading(readers)).returncode == 0
        return weights_of(folder)

    return weights


def reading(readers: int) -> dict[str, Any]:
    """Return the options of a run whose workers have so many reading processes."""
    return {"loader": {"workers": readers}} if readers else {}


def weights_of(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def rounds_of(folder: Path) -> list[int]:
    """Return the rounds of the checkpoints, oldest first."""
    return [int(path[-21:-12]) for path in Checkpoints(str(folder / "checkpoints")).paths()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_first_signal_is_noted_and_a_second_one_raises(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    with Interrupt() as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)  # an echo of the first
        assert stop.requested == number
        monkeypatch.setattr(interrupt, "ECHO_S", -1.0)
        with pytest.raises(Terminated, match=f"ended by {number.name}"):
            signal.raise_signal(number)
        with pytest.raises(Terminated):
            stop.check()
    assert signal.getsignal(number) is before


class Signals:
    """An object whose finalizer receives SIGTERM."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_second_signal_in_a_finalizer_raises_at_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: discarded.append(each.exc_type))
    monkeypatch.setattr(interrupt, "ECHO_S", -1.0)
    with Interrupt() as stop:
        signal.raise_signal(signal.SIGTERM)
        stop.check_second()
        Signals()
        assert discarded == [Terminated]
        with pytest.raises(Terminated, match="ended by SIGTERM"):
            stop.check_second()


def test_ctrl_c_ends_a_preempted_run_at_once() -> None:
    with Interrupt():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as caught:
            signal.raise_signal(signal.SIGINT)
    assert caught.type is KeyboardInterrupt


def test_a_process_that_ignores_the_signals_ignores_them_in_a_run() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        ignore_stop_signals([*before])
        with terminable(), Interrupt() as stop:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
        assert stop.requested is None
        asleep = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
        assert asleep.stdout is not None
        asleep.stdout.readline()
        asleep.terminate()
        assert asleep.wait(LIMIT_S) == -signal.SIGTERM  # child processes do not inherit it
        asleep.stdout.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_program_that_does_not_catch_the_exception_exits_with_143() -> None:
    program = (
        "import signal\nfrom chimera.core.stop_signals import terminable\n"
        "with terminable():\n    signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_a_handler_that_python_has_not_set_hides_no_exception() -> None:
    """Python cannot restore such a handler: the attempt raised TypeError in place of the exception of the block."""
    program = (
        "import faulthandler, signal, sys\n"
        "faulthandler.register(signal.SIGUSR1)\n"
        "del sys.modules['_signal']\nimport _signal\n"  # reads the handlers again, as if Python had started now
        "assert signal.getsignal(signal.SIGUSR1) is None\n"
        "from chimera.core.stop_signals import terminable\n"
        "with terminable():\n"
        "    raise SystemExit('the exception of the block')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the exception of the block\n")


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
def test_a_preempted_and_resumed_run_has_the_same_weights(
    tmp_path: Path, whole: Callable[..., bytes], engine: str, strategy: str, how: str
) -> None:
    folder = tmp_path / "run"
    stopped = train(folder, engine, "round", how, strategy=strategy)
    assert stopped.returncode == 143, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert rounds_of(folder)[-1] == 6
    assert train(folder, engine, strategy=strategy).returncode == 0
    assert weights_of(folder) == whole(engine, strategy)


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("readers", [0, 1])
def test_actors_survive_a_signal_to_all_processes_until_there_is_a_checkpoint(
    tmp_path: Path, whole: Callable[..., bytes], how: str, readers: int
) -> None:
    folder, options = tmp_path / "run", reading(readers)
    stopped = train(folder, "local", "round", how, all=True, options=options)
    assert stopped.returncode == (143 if how == "SIGTERM" else -signal.SIGINT), stopped.stderr
    assert rounds_of(folder)[-1] == 6
    assert "lost" not in (folder / "events.jsonl").read_text()
    assert train(folder, "local", options=options).returncode == 0
    assert weights_of(folder) == whole("local", readers=readers)


@pytest.mark.long
@pytest.mark.parametrize("at", ["evaluation", "write"])
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_signal_during_an_evaluation_or_a_write_loses_nothing(
    tmp_path: Path, whole: Callable[..., bytes], engine: str, at: str
) -> None:
    folder = tmp_path / "run"
    stopped = train(folder, engine, at)
    assert stopped.returncode == 143, stopped.stderr
    assert rounds_of(folder)[-1] >= (9 if at == "evaluation" else 4)
    assert not list((folder / "checkpoints").glob("*.part"))
    assert train(folder, engine).returncode == 0
    assert weights_of(folder) == whole(engine)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_before_the_first_round_ends_the_run_at_once(tmp_path: Path, engine: str) -> None:
    stopped = train(tmp_path / "run", engine, "start")
    assert stopped.returncode == 143, stopped.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize("at", ["write", "finalizer"])
def test_a_second_signal_does_not_wait_for_the_write(tmp_path: Path, engine: str, at: str) -> None:
    stopped = train(tmp_path / "run", engine, at, twice=True)
    assert stopped.returncode == 143, stopped.stderr
    assert rounds_of(tmp_path / "run") == []
    assert train(tmp_path / "run", engine).returncode == 0
