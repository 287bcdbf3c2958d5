"""Links from pages to files of the repository that are not pages.

A page links to such a file by a relative path, so that the link works in a repository browser. On the site, a link to a
file such as ``../../examples/digits.toml`` downloads the file; MyST does this. Markdown files of the top folder are
included in pages of ``docs/project``, and links to them lead there. Where the text of a link is the name of a page's
file, the site shows the title of the page or section.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
}
PARTS = {"decisions/README": "0*", "reference/generated/cli": "cli-*", "reference/generated/api": "api-*"}
"""Pages whose files cannot list the pages below them: written by hand in another form, or generated."""
_NAMED_BY_FILE = re.compile(r"\[[\w./-]+\.md\](?=\([\w./-]+\.md[#)])")
_LINK = re.compile(r"\]\(((?:\.\./)+[A-Z]+\.md)(?=[#)])")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions of this module to the events of Sphinx."""
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True}


def adapt(app: Sphinx, document: str, source: list[str]) -> None:
    """Replace links to Markdown files of the top folder and names of files, and add the navigation of parts."""
    folder = (Path(app.srcdir) / document).parent
    top = Path(app.srcdir).parent

    def page(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link[1]))
        if path.parent != top or path.name not in PAGES:
            return link[0]
        return f"]({os.path.relpath(Path(app.srcdir) / PAGES[path.name], folder)}"

    source[0] = _NAMED_BY_FILE.sub("[]", _LINK.sub(page, source[0]))
    if document in PARTS:
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{PARTS[document]}\n```\n"
