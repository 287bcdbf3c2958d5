"""The script of the accuracy table covers every codec and names missing ones."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chimera.codecs.codec import CODECS
from chimera.core.errors import ConfigurationError
from chimera.training.plugin import uplink_and_downlink

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "codec_accuracy.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("codec_accuracy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_registered_codec_is_in_the_table(script: Any) -> None:
    settings = script.settings_of([])
    assert settings[0] == script.BASELINE
    for setting in settings:
        for way in uplink_and_downlink(setting.codec):
            CODECS.create(*way)


def test_a_codec_missing_from_the_table_is_named(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(script.SETTINGS, "sign")
    with pytest.raises(ConfigurationError, match=r"^no settings for sign: add them to SETTINGS in codec_accuracy.py$"):
        script.settings_of([])


def test_an_unknown_codec_raises_a_one_line_error() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--only", "zip"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no such codec: zip; known: ")
    assert done.stderr.count("\n") == 1
