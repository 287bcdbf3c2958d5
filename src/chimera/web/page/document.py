"""The document of a page: markup, styles and scripts in one file, and the policy that allows no others."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

_SHARED = "chimera.web.page"
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
    '<link rel="icon" href="data:,">\n'
)


@dataclass(frozen=True)
class Document:
    """A page as it is sent. It has no data: its script requests them with the token.

    Attributes
    ----------
    content : the HTML.
    policy : its content security policy, which allows the styles and scripts of this document by their hashes.
    """

    content: bytes
    policy: str


def document(package: str, title: str, *, scripts: Sequence[str], shared: Sequence[str] = ("base.js",)) -> Document:
    """Return the page of a package: its ``body.html``, ``page.css`` and scripts, after the shared style and scripts.

    Parameters
    ----------
    package : name of the package with the files.
    title : title of the document.
    scripts : names of the package's scripts, in order.
    shared : names of the shared scripts, in order. All scripts have one global scope.
    """
    styles = [_read(_SHARED, "base.css"), _read(package, "page.css")]
    codes = [*(_read(_SHARED, name) for name in shared), *(_read(package, name) for name in scripts)]
    head = _HEAD.format(title=html.escape(title)) + "".join(f"<style>{style}</style>\n" for style in styles)
    body = _read(package, "body.html") + "".join(f"<script>{code}</script>\n" for code in codes)
    policy = (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(codes)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Document(f"{head}</head>\n<body>\n{body}</body>\n</html>\n".encode(), policy)


def _read(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
