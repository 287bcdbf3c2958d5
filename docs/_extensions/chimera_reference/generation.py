"""All generated pages of the reference, as text."""

from __future__ import annotations

from pathlib import Path

from chimera_reference import api, commands, errors, experiment_file, glossary, plugins

FOLDER = "reference/generated"
"""The folder of the pages, below that of the documents."""


def pages(docs: Path) -> dict[str, str]:
    """Return the text of each page by file name; ``docs`` is the folder of the documents."""
    made: dict[str, str] = {}
    for part in (experiment_file.pages(), plugins.pages(), commands.pages(), api.pages(), errors.pages()):
        made |= part
    return made | glossary.pages(docs)


def write(docs: Path) -> list[Path]:
    """Write each page whose text has changed, remove pages that no longer exist, and return the paths of all pages."""
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = pages(docs)
    for old in folder.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in made]
