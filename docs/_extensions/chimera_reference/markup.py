"""Conversion of the text of docstrings to MyST Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Link = Callable[[str], str]
"""Returns the Markdown of a name that stands between single backticks."""

DOCUMENT = re.compile(r"(?<![\w`/.])docs/([\w/-]+)\.md")
"""The path of a document of the project."""
_CODE = re.compile(r"(``.+?``|(?<!`)`[^`\n]+`(?!`))", re.DOTALL)
_MARKUP = re.compile(r"([\\*<>\[\]$~{}]|(?<!\w)_|_(?!\w))")


def code(name: str) -> str:
    """Return a name as code."""
    return f"`{name}`"


def inline(text: str, link: Link = code) -> str:
    """Return running text as Markdown: code stays code, names become links, and other characters lose their meaning."""
    parts = _CODE.split(text)
    return "".join(_plain(part) if place % 2 == 0 else _coded(part, link) for place, part in enumerate(parts))


def _plain(text: str) -> str:
    return DOCUMENT.sub(r"[docs/\1.md](../../\1.md)", _MARKUP.sub(r"\\\1", text))


def _coded(part: str, link: Link) -> str:
    if part.startswith("``"):
        inner = " ".join(part[2:-2].split())
        return f"`` {inner} ``" if "`" in inner else f"`{inner}`"
    return link(part[1:-1])


def cell(text: str, link: Link = code) -> str:
    """Return text as one cell of a table: one line, in which a bar has no meaning."""
    return inline(" ".join(text.split()), link).replace("|", r"\|")


def blocks(text: str, link: Link = code) -> str:
    """Return paragraphs, lists and literal blocks as Markdown."""
    return "\n\n".join(_block(block, link) for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip())


def _block(block: str, link: Link) -> str:
    if re.match(r" {4,}(?!-)", block):
        return "```text\n" + "\n".join(line[4:] for line in block.split("\n")) + "\n```"
    return re.sub(r"::$", ":", inline(block, link))


def contents(pages: Sequence[str]) -> str:
    """Return the hidden table of contents of a page that leads to other pages."""
    return "\n".join(["```{toctree}", ":hidden:", "", *pages, "```", ""])


def heading(level: int, text: str, *, anchor: str | None = None) -> str:
    """Return a heading, with a label for links if ``anchor`` is set."""
    label = f"({anchor})=\n" if anchor else ""
    return f"{label}{'#' * level} {text}\n"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of Markdown; its cells are Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


def fenced(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text.strip(chr(10))}\n```\n"
