"""The page of the glossary, from the tables of the style guide and the architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from chimera_reference.markup import heading

_ROW = re.compile(r"^\| (?P<term>[^|`]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE)
_TERM = re.compile(r"^`(?P<term>[^`]+)` (?P<meaning>.+)$", re.DOTALL)


def terms(docs: Path) -> dict[str, str]:
    """Return the meaning of each term, or of several with the same meaning, in alphabetical order.

    The terms are those of the glossary in ``style.md`` and of the vocabulary in ``architecture.md``. The glossary counts where
    both have a term.
    """
    found = dict(_of_style(docs / "style.md"))
    known = {each.strip() for term in found for each in term.split(",")}
    found |= {term: meaning for term, meaning in _of_architecture(docs / "architecture.md") if term not in known}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _of_style(path: Path) -> Iterator[tuple[str, str]]:
    section = path.read_text(encoding="utf-8").partition("\n## Glossary\n")[2].partition("\n## ")[0]
    for row in _ROW.finditer(section):
        if row["term"].strip() not in ("term", "---"):
            yield row["term"].strip(), row["meaning"].strip()


def _of_architecture(path: Path) -> Iterator[tuple[str, str]]:
    section = path.read_text(encoding="utf-8").partition("\n## 1. Vocabulary\n")[2].partition("\n## ")[0]
    for piece in section.partition(". Classes have")[0].split(" ·"):
        if found := _TERM.match(piece.strip()):
            yield found["term"], " ".join(found["meaning"].split())


def pages(docs: Path) -> dict[str, str]:
    """Return the text of the page, by file name."""
    lines = [
        heading(1, "Glossary", anchor="reference-glossary"),
        "This page defines the terms that the documents, the errors and the code use.\n",
        "```{glossary}",
    ]
    for term, meaning in terms(docs).items():
        lines += [*(each.strip() for each in term.split(",")), f"  {meaning[0].upper()}{meaning[1:]}.", ""]
    return {"glossary.md": "\n".join([*lines, "```\n"])}
