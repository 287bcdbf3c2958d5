"""Imports of large libraries."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from chimera.core.imports import import_all, without_gc


def test_no_garbage_is_collected_during_imports_and_broken_modules_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_while_imported.py").write_text("1 / 0\n")
    (tmp_path / "seen_while_imported.py").write_text("import gc\n\nENABLED = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_all(["broken_while_imported", "seen_while_imported"])
    assert not sys.modules.pop("seen_while_imported").ENABLED
    assert gc.isenabled()


def test_collection_that_was_disabled_stays_disabled() -> None:
    gc.disable()
    try:
        with without_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("frozen", [False, True], ids=["nothing frozen", "objects frozen"])
def test_new_objects_are_not_searched_by_the_next_collections_and_frozen_ones_stay_frozen(frozen: bool) -> None:
    script = f"""
import gc
from chimera.core.imports import without_gc
if {frozen}:
    gc.freeze()
before = gc.get_freeze_count()
with without_gc():
    made = [[] for _ in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() == before
oldest = {{id(each) for each in gc.get_objects(generation=2)}}
assert ({{id(each) for each in made}} <= oldest) == {not frozen}
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
