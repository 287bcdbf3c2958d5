"""Fixtures of tests of federations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimera.web.logs import close_logs


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test in an empty folder without settings in the environment, and close the logs afterwards."""
    for name in [name for name in os.environ if name.startswith("CHIMERA_") and name != "CHIMERA_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
    close_logs()
