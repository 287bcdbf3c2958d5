"""The distribution: its wheel works alone and with each extra, and its public names are documented."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import bare_environment
import chimera
from chimera.cli.new import KINDS

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of the files under version control."""
    source = tmp_path_factory.mktemp("source")
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.mark.long
def test_the_wheel_has_types_and_templates_and_nothing_else_than_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"chimera/py.typed", "chimera/cli/templates/tabular/experiment.toml", "chimera/report/style.css"} <= set(
        names
    )
    assert {name.split("/")[0] for name in names} == {"chimera", f"chimera_dml-{chimera.__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def install_wheel(wheel: Path, folder: Path, *requirements: str) -> Path:
    """Create an environment with the wheel, and with the packages of requirements and no others; return its Python."""
    python = bare_environment.create(folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "chimera-source.pth").unlink()  # the checkout
    try:
        bare_environment.install(folder, *requirements)
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed: pip install {' '.join(map(repr, requirements))}")
    for link in packages.glob("*chimera_dml*"):  # of the environment that runs the tests
        link.unlink()
    zipfile.ZipFile(wheel).extractall(packages)
    where = run_in(python, folder, "-c", "import chimera; print(chimera.__file__)")
    assert Path(where.stdout.strip()) == packages / "chimera/__init__.py"
    return python


def run_in(python: Path, folder: Path, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """Run the Python of an environment in a folder, and check that it succeeds."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, *map(str, arguments)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("extra", ["", *sorted(EXTRAS.keys() - {"dev"})])
def test_the_demo_runs_from_the_wheel_with_each_extra_alone(wheel, tmp_path, extra):
    python = install_wheel(wheel, tmp_path / "environment", f"chimera-dml[{extra}]")
    done = run_in(python, tmp_path, "-m", "chimera", "demo", "--json", "--quiet")
    assert json.loads(done.stdout)["metrics"]["accuracy"] > 0.95


@pytest.fixture(scope="module")
def python_of_templates(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel, pytest and the extras of all kinds of projects."""
    extras = sorted({extra for kind in KINDS.values() for extra in kind.needs.values()})
    return install_wheel(wheel, tmp_path_factory.mktemp("templates"), f"chimera-dml[{','.join(extras)}]", "pytest")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_project_made_from_the_wheel_passes_its_test(python_of_templates, tmp_path, kind):
    run_in(python_of_templates, tmp_path, "-m", "chimera", "new", kind, "mine")
    done = run_in(
        python_of_templates, tmp_path / "mine", "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", tmp_path, tmp_path
    )
    assert re.search(r"\d passed", done.stdout)
    assert "skipped" not in done.stdout


def test_the_public_names_are_documented():
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(set(chimera.__all__) - {"__version__"})


def test_the_citation_has_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {chimera.__version__}\n" in text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell):
    environment = {
        **os.environ,
        "_CHIMERA_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "chimera tr",
        "COMP_CWORD": "1",
    }
    environment |= {"_TYPER_COMPLETE_ARGS": "chimera tr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-c", "from chimera.cli.main import main; main()"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "train" in done.stdout, done.stderr
