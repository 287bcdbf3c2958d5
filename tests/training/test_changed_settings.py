"""A run that resumes reports the settings that are not those of its beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.training.artifacts.changed_settings import changed_settings


def notices(out: Path, **options: Any) -> list[str]:
    """Train or resume, and return the lines about changed settings."""
    found: list[str] = []

    class Notices(chimera.Callback):
        def on_notice(self, notice: str) -> None:
            found.extend([notice] if "settings" in notice else [])

    given = {"workers": 2, "batch_size": 16, "rounds": 2, "engine": "simulated", "seed": 1, "out": out, **options}
    chimera.train({"name": "mlp", "hidden": [4]}, "digits", callbacks=[Notices()], **given)
    return found


def test_changed_settings_are_reported_when_a_run_resumes(tmp_path: Path) -> None:
    assert notices(tmp_path / "run") == []
    assert notices(tmp_path / "run", resume=True) == []
    found = notices(tmp_path / "run", resume=True, rounds=4, batch_size=8)
    assert found == ["resumes with other settings: train.batch_size 16 → 8, train.rounds 2 → 4"]


def test_options_of_another_strategy_are_listed_and_long_lists_are_cut() -> None:
    before = '[strategy]\nname = "fed-avg"\nlocal_steps = 5\n'
    assert changed_settings(before, '[strategy]\nname = "all-reduce"\n') == (
        'strategy.name "fed-avg" → "all-reduce", strategy.local_steps 5 → not set'
    )
    many = "\n".join(f"key{number} = {number}" for number in range(20))
    assert changed_settings("", many).endswith("12 more")


@pytest.mark.parametrize("before", ["\x1b[31m", "[[[", "a = "])
def test_a_file_that_is_no_toml_is_not_compared(before: str) -> None:
    assert changed_settings(before, "a = 1") == ""


@given(st.text(), st.text())
def test_another_users_file_writes_no_control_characters(key: str, value: str) -> None:
    quoted = "".join(f"\\U{ord(each):08x}" for each in key if not 0xD800 <= ord(each) < 0xE000)
    text = "".join(f"\\U{ord(each):08x}" for each in value if not 0xD800 <= ord(each) < 0xE000)
    found = changed_settings(f'"{quoted}" = "{text}"', "a = 1")
    assert found.replace("→", "").isascii()
    assert found.isprintable()
