"""Places in installed packages and in the folder of data: found without running code, and mistakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chimera.core.errors import ConfigurationError
from chimera.core.named_places import located
from chimera.training.experiment.paths import anchored


def test_a_place_in_a_package_is_found_without_running_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "brings_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    assert located("package:brings_weights/a/b.gguf") == package / "a" / "b.gguf"
    assert located("package:brings_weights") == package
    assert "brings_weights" not in sys.modules


def test_a_place_in_the_data_is_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_DATA", str(tmp_path))
    assert located("data:text/a.txt.gz") == tmp_path / "text" / "a.txt.gz"
    for path in ("data:../a", "data:/etc/passwd"):
        with pytest.raises(ConfigurationError, match=r"is outside \$CHIMERA_DATA"):
            located(path)
    monkeypatch.delenv("CHIMERA_DATA")
    with pytest.raises(ConfigurationError, match=r"in \$CHIMERA_DATA, which is not set: set it, or write a path"):
        located("data:text/a.txt.gz")


def test_other_paths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of")
    assert [located("a/b"), located("~/c")] == [Path("a/b"), Path("/home/of/c")]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("package:nowhere_at_all/a", "no installed package 'nowhere_at_all'"),
        ("package:typing/a", "no installed package 'typing'"),  # a module has no folder
        ("package:os.path/a", "no installed package 'os.path'"),
        ("package:/a", "no installed package ''"),
        ("package:json/../os.py", "is outside the folder of the package 'json'"),
        ("package:json//etc", "is outside the folder of the package 'json'"),
    ],
)
def test_mistakes_are_one_line(path: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        located(path)
    assert "\n" not in str(caught.value)


def test_an_experiment_file_in_another_folder_names_the_same_place(tmp_path: Path) -> None:
    model = {"name": "huggingface", "path": "package:json/decoder.py", "tokenizer": "package:json"}
    tables = {"model": model, "data": {"name": "text-blocks", "path": "data:text.txt"}}
    assert anchored(tables, tmp_path, ["model", "data"]) == tables
