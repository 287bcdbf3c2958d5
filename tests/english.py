"""Check the English of the project against docs/style.md, or draw sentences from it for a second reader.

    python tests/english.py                 # report words to avoid; exit code 1 if there are any
    python tests/english.py --draw 50 --seed 1

Documents, comments, docstrings, messages, help texts and the texts of pages are read; code, code blocks and names in backticks
are not.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "style.md"
READ = ("*.py", "*.md", "*.toml", "*.js", "*.html", "Makefile")
CODE = re.compile(r"`[^`]*`|https?://\S+|\{[^{}]*\}")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"])|\n\s*\n")
OF_SCRIPTS = re.compile(
    r"//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|(?P<quote>[\"'`])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)", re.S
)
OF_PAGES = re.compile(
    r"<!--(?P<comment>.*?)-->|<script[^>]*>(?P<script>.*?)</script>|<style.*?</style>|>(?P<text>[^<>]+)(?=<)"
    r"|\b(?:alt|title|placeholder|aria-label|content)=\"(?P<attribute>[^\"]*)\"",
    re.S,
)


class Piece(NamedTuple):
    """A text that a person reads, and where it begins."""

    path: Path
    line: int
    text: str


def avoided() -> list[tuple[re.Pattern[str], str]]:
    """Return each pattern of the style guide's table of words to avoid, and what to write."""
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    for avoid, write in rows:
        for words in re.findall(r"`([^`]*)`", avoid):
            pattern = r"\s+".join(re.escape(word).replace(r"\*", r"\w*") for word in words.split())
            found.append((re.compile(rf"\b{pattern}\b", re.IGNORECASE), write))
    return found


def texts(path: Path) -> Iterator[Piece]:
    """Return the texts of a file that a person reads, with code blocks and names in backticks blanked."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _of_python(path, source)
    elif path.suffix == ".md":
        blank = re.sub(
            r"```.*?```|^ {4}[^\n]*$", lambda match: re.sub(r"[^\n]", " ", match[0]), source, flags=re.S | re.M
        )
        yield Piece(path, 1, blank)
    elif path.suffix == ".js":
        yield from _of_script(path, source)
    elif path.suffix == ".html":
        yield from _of_page(path, source)
    else:
        for number, line in enumerate(source.splitlines(), 1):
            if line.lstrip().startswith("#"):
                yield Piece(path, number, line.lstrip("# "))


def _of_python(path: Path, source: str) -> Iterator[Piece]:
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield Piece(path, first, "\n".join(comment))
                comment = []
            first = first if comment else token.start[0]
            last = token.start[0]
            comment.append(token.string.lstrip("#: "))
        elif token.type == tokenize.STRING or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            text = re.sub(r"^[rbfuRBFU]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string)
            if " " in text.strip():
                yield Piece(path, token.start[0], text)
    if comment:
        yield Piece(path, first, "\n".join(comment))


def _of_script(path: Path, source: str, first: int = 1) -> Iterator[Piece]:
    """Return the comments of a script, and its texts of several words."""
    for found in OF_SCRIPTS.finditer(source):
        comment, text = found["line"] or found["block"], found["text"]
        if comment or (text and re.search(r"[A-Za-z] [A-Za-z]", text)):
            # `${...}` is code; the rest of a template is text.
            yield Piece(
                path, first + source.count("\n", 0, found.start()), re.sub(r"\$\{[^{}]*\}", " ", comment or text)
            )


def _of_page(path: Path, source: str) -> Iterator[Piece]:
    """Return the visible texts of a page, its comments, and the texts of its scripts."""
    for found in OF_PAGES.finditer(source):
        line = 1 + source.count("\n", 0, found.start())
        if found["script"] is not None:
            yield from _of_script(path, found["script"], line)
        elif text := (found["comment"] or found["text"] or found["attribute"] or "").strip():
            yield Piece(path, line, text)


def files() -> Iterator[Path]:
    """Return the files under version control that hold English."""
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name not in ("docs/style.md", "LICENSE") and (ROOT / name).is_file():
            yield ROOT / name


def check() -> int:
    """Print each use of a word to avoid; return how many there are."""
    rules, found = avoided(), 0
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        for piece in texts(path):
            text = CODE.sub(lambda match: " " * len(match[0]), piece.text)
            for pattern, write in rules:
                for match in pattern.finditer(text):
                    line = piece.line + text.count("\n", 0, match.start())
                    print(f"{name}:{line}: avoid {match[0]!r}: {write}")
                    found += 1
    return found


def draw(count: int, seed: int) -> None:
    """Print sentences drawn at random from all that a person reads in the package, the documents and the README."""
    sentences = []
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(("tests/", "benchmarks/", "CHANGELOG")):
            for piece in texts(path):
                parts = (re.sub(r"\s+", " ", part).strip() for part in SENTENCE.split(piece.text))
                sentences += [(name, piece.line, part) for part in parts if len(part.split()) >= 5]
    for name, line, sentence in random.Random(seed).sample(sentences, count):
        print(f"{name}:{line}\n    {sentence}")


def main() -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draw", type=int, metavar="N", help="print N sentences instead")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    if chosen.draw:
        draw(chosen.draw, chosen.seed)
        return 0
    return 1 if check() else 0


if __name__ == "__main__":
    sys.exit(main())
