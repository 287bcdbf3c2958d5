"""MyST reads a line that begins with ``%`` as a comment, also within a paragraph, and leaves it out of the page."""

from __future__ import annotations

import english
from pages_kit import ROOT


def test_no_line_of_a_document_is_a_comment() -> None:
    pages = [*(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 100
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line}"
        for page in pages
        for piece in english.texts(page)
        for number, line in enumerate(piece.text.splitlines(), piece.line)
        if line.lstrip().startswith("%")
    ]
    assert not found
