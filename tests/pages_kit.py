"""Blocks of code in the pages of the documentation, and the comments that say how a test executes them.

A comment stands on lines of its own before a block and is invisible on the page:

- ``<!-- not executed: REASON -->``: the block is not executed.
- ``<!-- setup: CODE -->``: Python code that provides what the block assumes, such as files.
- ``<!-- check: CODE -->``, after a block: Python code that asserts what the block did. ``shown`` is its output.
- ``<!-- executed with: WORDS -->``: settings that make a block small. For TOML, ``KEY=VALUE`` words as of ``--set``, or other
  keys of a model for inference. For commands, words that are added to each ``chimera train``, ``compare``, ``submit``,
  ``embed`` and ``infer up``.
- ``<!-- foreground: COMMAND, ready at: TEXT -->``: a command that stays in the foreground, and a text of its output that shows
  that it is ready. It is ended after the block.
- ``<!-- in another terminal: COMMAND, ready at: TEXT -->``: the same for a command that is started before the block. With
  ``from here on`` after the name of either comment, the command is ended after the last block of the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_TESTED = (
    "docs/decisions", "docs/benchmarks.md", "docs/reproductions.md",  # reports of what was measured once
    "docs/reference/generated",  # written by the build of the site; tests/docs/test_reference.py checks it
    "docs/how-to/command-line.md", "docs/how-to/compare.md",  # tests/cli/test_readme.py executes them
)  # fmt: skip
COMMANDS = re.compile(
    r"(\$ )?(cd|chimera|cp|curl|docker|export|kill|make|mpiexec|pip|pytest|python|ray|sqlite3|srun|tail|tensorboard|\. )\b|\. "
)
_BLOCK = re.compile(
    r"<!--(?P<comment>.*?)-->"
    r"|^```(?P<language>[\w{}.-]*)[^\n]*\n(?P<fenced>.*?)^```"
    r"|(?<=\n\n)(?P<indented>(?:^ {4}[^\n]*\n)+)",  # a blank line separates commands and their output
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """A block of code of a page.

    Parameters
    ----------
    line : line of the page on which its text begins.
    kind : ``python``, ``toml``, ``shell``, ``output``, or the language of a block that is only shown.
    comments : comments of the block, by name.
    """

    line: int
    kind: str
    text: str
    comments: dict[str, list[str]] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the block is not executed; empty if it is."""
        return "; ".join(self.comments.get("not executed", []))

    @property
    def file(self) -> str:
        """The name of the file that the first line of the block names; empty if there is none."""
        found = re.match(r"# ([\w/.-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else ""


def pages() -> list[str]:
    """Return the pages whose blocks are executed, relative to the checkout. Notebooks are executed where the site is built."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [
        name for name in found if not name.startswith(NOT_TESTED) and "_build" not in name and not is_notebook(name)
    ]


def is_notebook(name: str) -> bool:
    """Return whether the front matter of a page says that the page is a notebook of MyST."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text.startswith("---\n") and "mystnb" in text.partition("\n---\n")[0]


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, each with the comments before it."""
    comments: dict[str, list[str]] = {}
    last = comments  # the comments of the block before
    for found in _BLOCK.finditer(text):
        if found["comment"] is not None:
            name, _, value = found["comment"].partition(":")
            place = last if name.strip() == "check" else comments
            place.setdefault(name.strip(), []).append(textwrap.dedent(value).strip())
            continue
        if found["fenced"] is not None:
            start, body, kind = found.start("fenced"), found["fenced"], _kind(found["language"])
        else:
            start, body = found.start("indented"), re.sub(r"^ {4}", "", found["indented"], flags=re.MULTILINE)
            kind = "shell" if COMMANDS.match(_first_line(body)) else "shown"
            if not body.strip() or re.match(r" {4}\s*([-*] |\d+\. )", found["indented"]):
                continue
        yield Block(text.count("\n", 0, start) + 1, kind, body, comments)
        last, comments = comments, {}


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block. If some lines begin with ``$``, the others are output."""
    lines = [line for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines() if line.strip()]
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if not line.startswith("#")]


def _kind(language: str) -> str:
    if language in ("sh", "bash", "console", "shell"):
        return "shell"
    return {"text": "output", "": "shown"}.get(language, language)


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
