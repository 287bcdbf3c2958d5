"""The check of English reads the comments and visible texts of scripts and pages."""

from __future__ import annotations

from pathlib import Path

import english


def test_a_document_is_read_after_a_block_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n    code\n\nBetween.\n\n```\nmore code\n```\n\nAfter.\n")
    assert [piece.text.split() for piece in english.texts(page)] == [["Before.", "Between.", "After."]]


def test_comments_and_texts_of_a_script_are_read(tmp_path: Path) -> None:
    path = tmp_path / "page.js"
    path.write_text(
        "const key = 'id';\n// One comment.\nshow(`the run ${name.of} ends`, \"two words\");\n/* Another\none. */\n"
    )
    found = [(piece.line, piece.text.split()) for piece in english.texts(path)]
    assert found == [
        (2, ["One", "comment."]),
        (3, ["the", "run", "ends"]),
        (3, ["two", "words"]),
        (4, ["Another", "one."]),
    ]


def test_visible_texts_of_a_page_are_read(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        '<h1 class="not read">Title</h1>\n<!-- A comment. -->\n<style>p { color: red; }</style>'
        "<input placeholder=\"Your name\">\n<script>\n// Of the script.\nlet word = 'id';\n</script><p>The end.</p>"
    )
    found = [(piece.line, piece.text.strip()) for piece in english.texts(path)]
    assert found == [
        (1, "Title"),
        (2, "A comment."),
        (3, "Your name"),
        (5, "Of the script."),
        (7, "The end."),
    ]
