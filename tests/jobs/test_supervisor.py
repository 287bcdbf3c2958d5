"""Starts of the processes of a cluster when the system refuses them."""

from __future__ import annotations

import os

import pytest

from chimera.jobs import supervisor
from chimera.jobs.supervisor import Child


def test_a_refused_start_is_tried_again(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    child, clock = Child("worker 0", lambda: None), [100.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    with monkeypatch.context() as short:
        short.setattr(os, "fork", refuse)
        child.start(lambda: None)
    assert child.pid == 0
    said = capfd.readouterr()
    assert "worker 0 cannot be started: Resource temporarily unavailable" in said.out + said.err
    monkeypatch.setattr(os, "fork", lambda: 7)
    child.start(lambda: None)
    assert child.pid == 0  # it pauses
    clock[0] += 3600
    child.start(lambda: None)
    assert child.pid == 7
