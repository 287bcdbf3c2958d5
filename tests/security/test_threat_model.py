"""Each claim of the threat model names an existing test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tests_named_in_the_threat_model_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert len(named) >= 8
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_links_in_documents_resolve() -> None:
    for name in ("SECURITY.md", "docs/explanation/threat-model.md", "docs/explanation/privacy.md"):
        file = ROOT / name
        for target in re.findall(r"\]\(([^)#]+\.md)", file.read_text()):
            assert (file.parent / target).is_file(), f"{name} links to {target}"
