"""Checkpoints are written in the background, and are due by rounds or by seconds."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.stop_signals import Terminated, terminable
from chimera.training.artifacts.checkpoint import Checkpoints, Content, frozen
from chimera.training.artifacts.checkpoint_writer import CheckpointWriter
from chimera.training.progress.history import FILES, History
from training.conftest import Fit

LIMIT_S = 30.0


class Slow(Checkpoints):
    """Checkpoints on a disk that writes when `proceed` is set."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.proceed, self.written = threading.Event(), threading.Event()

    def write_content(self, round_: int, content: Content) -> str:
        assert self.proceed.wait(LIMIT_S)
        path = super().write_content(round_, content)
        self.written.set()
        return path


class Signalled(Slow):
    """A slow disk. The thread that writes receives SIGTERM as soon as the main thread waits for it."""

    def write_content(self, round_: int, content: Content) -> str:
        main = threading.main_thread().ident
        assert main is not None
        while sys._current_frames()[main].f_code.co_name not in ("join", "_wait_for_tstate_lock"):
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return super().write_content(round_, content)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A limit of the size of files, which has the effect of a full disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # else modules that are imported now would be cut
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_a_write_does_not_stop_the_caller_and_holds_the_state_of_its_call(tmp_path: Path) -> None:
    slow = Slow(str(tmp_path))
    state: dict[str, Any] = {"weights": np.ones(3), "clocks": {"worker 0": 1}}
    with CheckpointWriter(slow) as writer:
        writer.write(1, state)
        assert writer.busy
        state["weights"] += 1
        state["clocks"]["worker 0"] = 2
        slow.proceed.set()
    assert not writer.busy
    saved = slow.read_last()
    assert saved is not None
    assert saved["weights"].tolist() == [1, 1, 1]
    assert saved["clocks"] == {"worker 0": 1}


def test_arrays_that_cannot_change_are_not_copied() -> None:
    array = np.ones(3)
    array.flags.writeable = False
    assert next(iter(frozen({"a": array}).arrays.values())) is array


def test_a_failed_write_is_reported_by_the_next_one_and_keeps_older_checkpoints(
    tmp_path: Path, full_disk: None
) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.write(1, {"round": 1})
    writer = CheckpointWriter(checkpoints)
    writer.write(2, {"a": np.ones(100_000)})
    with pytest.raises(RunError, match=r"cannot be written: .*the last complete checkpoint is .*round-000000001"):
        writer.write(3, {})
    writer.finish()  # an error is raised once
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000001.safetensors"]


def test_an_error_of_the_run_names_a_failed_write_too(tmp_path: Path, full_disk: None) -> None:
    def run() -> None:
        with CheckpointWriter(Checkpoints(str(tmp_path))) as writer:
            writer.write(2, {"a": np.ones(100_000)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run()
    assert "cannot be written" in caught.value.__notes__[0]


def test_a_signal_that_another_thread_receives_ends_the_wait_for_a_write(tmp_path: Path) -> None:
    disk = Signalled(str(tmp_path))
    writer = CheckpointWriter(disk)
    with terminable():
        writer.write(1, {})
        with pytest.raises(Terminated):
            writer.finish()
    writer.check()  # a write that was not permitted in time has failed: the wait did not last so long
    disk.proceed.set()
    assert disk.written.wait(LIMIT_S)


def test_the_owner_can_end_the_wait_for_a_write(tmp_path: Path) -> None:
    def stop() -> None:
        raise Terminated

    slow = Slow(str(tmp_path))
    writer = CheckpointWriter(slow, stop)
    writer.write(1, {})
    with pytest.raises(Terminated):
        writer.finish()
    assert writer.busy
    slow.proceed.set()


def test_files_of_killed_writes_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "round-000000001.safetensors.part").write_bytes(b"half")
    Checkpoints(str(tmp_path)).write(2, {})
    assert [path.name for path in tmp_path.iterdir()] == ["round-000000002.safetensors"]


def written(monkeypatch: pytest.MonkeyPatch, fit: Fit, name: str, **options: Any) -> list[int]:
    """Return the rounds of all checkpoints of a run."""
    rounds = []
    write = Checkpoints.write_content

    def noted(self: Checkpoints, round_: int, content: Content) -> str:
        rounds.append(round_)
        return write(self, round_, content)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write_content", noted)
        fit(name, **options)
    return rounds


def test_checkpoints_by_virtual_seconds_are_written_at_the_same_rounds_each_time(
    monkeypatch: pytest.MonkeyPatch, fit: Fit
) -> None:
    plain = fit("plain", rounds=40)
    every = {"rounds": 40, "checkpoint_seconds": plain.cost.seconds / 4}
    rounds = written(monkeypatch, fit, "first", **every)
    assert 3 <= len(rounds) <= 5
    assert rounds == written(monkeypatch, fit, "second", **every)
    assert rounds[-1] == 40
    both = written(monkeypatch, fit, "both", checkpoint_every=30, **every)
    assert 30 in both


def test_checkpoints_by_seconds_change_no_weights_of_a_synchronous_strategy(fit: Fit) -> None:
    runs = [fit(name, rounds=20, **more) for name, more in (("plain", {}), ("often", {"checkpoint_seconds": 1e-9}))]
    plain, often = ((run.run_dir / "weights.safetensors").read_bytes() for run in runs)
    assert plain == often


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_seconds_between_checkpoints_must_be_above_zero(fit: Fit, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="checkpoint_seconds must be above 0 and finite"):
        fit(checkpoint_seconds=seconds)


def test_rows_of_a_run_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronize, order = os.fsync, list[str]()

    def note(file: int) -> None:
        order.append(Path(f"/proc/self/fd/{file}").readlink().name)
        synchronize(file)

    monkeypatch.setattr(os, "fsync", note)
    history = History(tmp_path)
    history.add_metrics({"round": 1})
    with CheckpointWriter(Checkpoints(str(tmp_path / "checkpoints")), before=history.synchronize) as writer:
        writer.write(1, {"files": history.sizes()})
    history.close()
    assert order == [*FILES, "round-000000001.safetensors.part", "checkpoints"]


def test_rows_that_cannot_be_written_to_the_disk_leave_no_checkpoint(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = CheckpointWriter(Checkpoints(str(tmp_path)), before=fail)
    writer.write(1, {})
    with pytest.raises(RunError, match=r"the checkpoint of round 1 cannot be written: .*No space left"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_a_run_with_the_file_and_the_remedy(fit: Fit, request: pytest.FixtureRequest) -> None:
    fit("before", rounds=1)  # it compiles what the other run needs
    request.getfixturevalue("full_disk")
    with pytest.raises(RunError, match=r"trace.jsonl cannot be written: .*; free some space and resume"):
        fit(rounds=200, evaluate_every=1000, log_every=4)


def test_after_a_failed_write_all_files_are_closed(tmp_path: Path, full_disk: None) -> None:
    history = History(tmp_path)
    with pytest.raises(RunError, match="cannot be written"):
        history.add_metrics({"a": "b" * 6000})
    history.close()
    assert all(file.closed for file in history._files.values())
