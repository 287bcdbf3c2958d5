"""The sources use nothing of the standard library that a patch release after 3.11.0 has brought; mypy sees to later series."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEYWORDS = {
    ("extract", "filter"), ("extractall", "filter"), ("unpack_archive", "filter"),  # 3.11.4
    ("getaddresses", "strict"), ("parseaddr", "strict"),  # 3.11.10
}  # fmt: skip
NAMES = {
    "tar_filter", "data_filter", "fully_trusted_filter", "extraction_filter", "errorlevel_filter", "FilterError",  # 3.11.4
    "SetReparseDeferralEnabled", "GetReparseDeferralEnabled",  # 3.11.8
}  # fmt: skip
WORDS = NAMES | {name for name, _ in KEYWORDS}


def later(source: str) -> list[str]:
    """Return the features of a source that need a patch release of Python 3.11, with their lines."""
    if not any(name in source for name in WORDS):
        return []  # parsing all of them takes seconds
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            found += [f"{node.lineno}: {name}({word.arg}=)" for word in node.keywords if (name, word.arg) in KEYWORDS]
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            found.append(f"{node.lineno}: {node.attr}")
    return found


def test_the_sources_use_what_3_11_0_has() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert wanted == ">=3.11"
    files = sorted((ROOT / "src").rglob("*.py"))
    assert files
    assert [f"{file}:{line}" for file in files for line in later(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "source", ["tar.extractall(folder, filter='data')", "tar.extract(one, filter=None)", "tarfile.data_filter"]
)
def test_what_came_later_is_found(source: str) -> None:
    assert later(source)
