"""The site of the documents: built by Sphinx, served on this machine, visited page by page in a browser."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from browser_kit import Tab

DOCS = Path(__file__).parents[2] / "docs"
CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")
WIDTHS = (1280, 400)
MIN_CONTRAST = 4.5
BUILD_LIMIT_S = 900  # most of it for the notebooks
NEEDED = ("furo", "myst_nb", "sphinx", "sphinx_copybutton")


def skip_without_sphinx() -> None:
    """Skip the tests of a module if the packages that build the site are missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'chimera-dml[docs]'", allow_module_level=True)


def build(source: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Build a site with the options of `make docs` and more, and return the ended process."""
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(out.with_name("doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, *more, str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Findings:
    """What one page contains, and what is wrong with it."""

    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    structure: list[str] = field(default_factory=list)
    overflow: list[str] = field(default_factory=list)
    contrast: list[str] = field(default_factory=list)


def visit(tab: Tab, root: str, page: str) -> Findings:
    """Open a page, and check it at each width and in both colour schemes."""
    tab.size(WIDTHS[0])
    tab.load(root + page)
    tab.evaluate(CHECKS)
    found = Findings(links=tab.evaluate("pageChecks.links()"), ids=set(tab.evaluate("pageChecks.ids()")))
    found.structure = tab.evaluate("pageChecks.structure()")
    for scheme in ("light", "dark"):
        tab.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        for width in WIDTHS:
            tab.size(width)
            where = f"at {width} px, {scheme}: "
            found.contrast += [where + each for each in tab.evaluate(f"pageChecks.contrast({MIN_CONTRAST})")]
            found.overflow += [where + each for each in tab.evaluate("pageChecks.overflow()")]
    found.console = tab.errors + tab.warnings
    found.elsewhere = [url for url in tab.requests if not url.startswith((root, "data:"))]
    return found
