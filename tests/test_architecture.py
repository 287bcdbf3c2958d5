"""docs/architecture.md names the packages that there are, in the layers that the import contract has."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "chimera"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def packages(folder):
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def table(heading):
    """Return the names in backticks in the first column of a table."""
    rows = TEXT.partition(f"| {heading} | content |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return {name for row in rows for name in re.findall(r"`([^`]*)`", row.split("|")[1])}


def test_its_tables_list_every_package_and_no_other():
    assert {name.rstrip("/") for name in table("package of `src/chimera`")} == packages(SOURCE)
    listed = table("package of `training`")
    assert {name.rstrip("/") for name in listed if name.endswith("/")} == packages(SOURCE / "training") | {
        "worker/extensions"
    }
    assert {name for name in listed if name.endswith(".py")} <= {path.name for path in SOURCE.glob("training/*.py")}


@pytest.mark.parametrize("package", ["inference", "jobs"])
def test_the_row_of_a_package_lists_its_sub_packages(package):
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{package}/` |"))
    assert set(re.findall(r"`([a-z_]+)/`", row.split("|")[2])) == packages(SOURCE / package)


def test_its_layers_are_those_of_the_import_contract():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    drawn = re.findall(r"^    [ └─]*([a-z]+(?: · [a-z]+)*)(?:   |$)", TEXT.partition("## 2. Layers")[2], re.MULTILINE)
    assert [set(line.split(" · ")) for line in drawn[: len(contract)]] == [
        set(re.findall(r"\w+", layer)) for layer in contract
    ]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", TEXT))))
def test_its_files_exist(path):
    assert (SOURCE / path).is_file()


def test_it_has_at_most_two_hundred_lines():
    assert len(TEXT.splitlines()) <= 200


def test_the_index_lists_every_decision_with_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for record in sorted(folder.glob("0*.md")):
        number, _, title = record.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(": ")
        assert number == record.name[:4]
        assert f"| [{number}]({record.name}) | {title} |" in index
