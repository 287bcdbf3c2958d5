"""The site builds without a warning, and each page is right in a browser: wide and narrow, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from browser_kit import Tab, browser
from docs.site_kit import CHECKS, DOCS, MIN_CONTRAST, Findings, build, served, skip_without_sphinx, visit

skip_without_sphinx()
pytestmark = pytest.mark.long

HOSTS = {
    "docs.ray.io", "docs.vllm.ai", "filesystem-spec.readthedocs.io", "github.com", "huggingface.co", "keepachangelog.com",
    "semver.org",
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site") / "html"
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def root(site: Path) -> Iterator[str]:
    """Return the address at which the site is served."""
    with served(site) as address:
        yield address


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """Return the tab of a browser."""
    with browser(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(site: Path, root: str, tab: Tab) -> dict[str, Findings]:
    """Return what a visit of each page of the site found."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return {name: visit(tab, root, name) for name in names if not name.startswith("_static/")}


def test_each_document_has_a_page(pages: dict[str, Findings]) -> None:
    folders = ("tutorials", "how-to", "explanation", "reference", "decisions", "project")
    documents = {path.relative_to(DOCS) for folder in folders for path in (DOCS / folder).rglob("*.md")}
    assert len(documents) > 100
    assert {path.with_suffix(".html").as_posix() for path in documents} <= pages.keys()


@pytest.mark.parametrize("kind", ["console", "elsewhere", "structure", "overflow", "contrast"])
def test_each_page_is_right_in_a_browser(pages: dict[str, Findings], kind: str) -> None:
    problems = {page: found[:10] for page, findings in pages.items() if (found := getattr(findings, kind))}
    assert not problems, "\n".join(f"{page}: {each}" for page, found in problems.items() for each in found)


def test_each_link_within_the_site_leads_to_a_file_and_an_element_of_it(
    pages: dict[str, Findings], site: Path, root: str
) -> None:
    broken = set()
    for page, findings in pages.items():
        for link in findings.links:
            url, anchor = urldefrag(link)
            target = unquote(url.removeprefix(root).partition("?")[0])
            if not url.startswith(root):
                continue
            if not (site / target).is_file():
                broken.add(f"{page}: there is no {target}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
                broken.add(f"{page}: {target} has no #{anchor}")
    assert not broken, "\n".join(sorted(broken))


def test_links_to_other_sites_are_well_formed_and_of_listed_hosts(pages: dict[str, Findings], root: str) -> None:
    others = {link for findings in pages.values() for link in findings.links if not link.startswith(root)}
    parts = {link: urlsplit(link) for link in others}
    wrong = [link for link, part in parts.items() if part.scheme != "https" or part.netloc != part.hostname]
    assert not wrong, "a link is not a plain https address"
    unknown = {str(part.hostname) for part in parts.values()} - HOSTS
    assert not unknown, "a link names a host that is not in HOSTS: check its spelling, and add it"


def found_on(tab: Tab) -> list[str]:
    """Return what is wrong with the page as it is now."""
    tab.evaluate(CHECKS)
    checks = ("structure()", "overflow()", f"contrast({MIN_CONTRAST})")
    return [problem for check in checks for problem in tab.evaluate(f"pageChecks.{check}")]


def test_the_search_finds_a_page_without_a_network(tab: Tab, root: str) -> None:
    tab.size(1280)
    tab.load(root + "index.html")
    tab.click_on("input.sidebar-search")
    tab.type("straggler")
    tab.press("Enter")
    results = "document.querySelectorAll('#search-results li > a')"
    summary = "document.querySelector('#search-results li p')"  # a part of the page, which is read after the list
    found = tab.until(
        f"location.pathname.endsWith('search.html') && {summary} && [...{results}].map(each => each.href)"
    )
    assert any("redundant-work.html" in link for link in found)
    assert found_on(tab) == []
    assert tab.errors + tab.warnings == []
    assert [url for url in tab.requests if not url.startswith((root, "data:"))] == []


def test_a_button_changes_the_colour_scheme(tab: Tab, root: str) -> None:
    tab.size(1280)
    tab.load(root + "index.html")
    background = "getComputedStyle(document.body).backgroundColor"
    colours = []
    for _ in range(3):  # light, dark, and what the system prefers
        colours.append(tab.evaluate(background))
        tab.click_on(".content-icon-container .theme-toggle")
    assert len(set(colours)) == 2
    tab.evaluate("localStorage.clear()")


BAD_PAGE = """<!doctype html><html><title></title><body style="margin: 0; background: #fff">
<h1>One</h1><h1>Two</h1><h3>Three</h3><p style="color: #999">grey</p><p style="opacity: 0.5">pale</p>
<img src="absent.png"><img src="absent.png" alt="absent.png"><button></button>
<div style="width: 1300px">wide</div><script>console.warn("careful"); undefined_name()</script>
<script src="http://127.0.0.1:1/elsewhere.js"></script></body></html>"""


def test_the_checks_find_what_is_wrong_with_a_page(tmp_path: Path, tab: Tab) -> None:
    (tmp_path / "bad.html").write_text(BAD_PAGE, encoding="utf-8")
    with served(tmp_path) as address:
        found = visit(tab, address, "bad.html")
    assert {"the page has no language", "the page has no title", "2 headings h1", "h3 after h1: Three"} <= set(
        found.structure
    )
    assert [each for each in found.structure if "no text for the image" in each] == [
        "no text for the image absent.png"
    ] * 2
    assert "no label for button" in found.structure
    assert {each.rpartition(": ")[2] for each in found.contrast} == {"grey", "pale"}
    assert len(found.overflow) == 4
    assert any("careful" in each for each in found.console)
    assert any("undefined_name" in each for each in found.console)
    assert found.elsewhere == ["http://127.0.0.1:1/elsewhere.js"]


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, str]], tuple[int, str]]:
    """Return a function that builds a site of given pages with the settings of the real one: exit code and warnings."""

    def made(pages: dict[str, str]) -> tuple[int, str]:
        folder = tmp_path_factory.mktemp("small") / "docs"
        folder.mkdir()
        shutil.copy(DOCS / "conf.py", folder)
        for name in ("_extensions", "_static", "_templates"):
            shutil.copytree(DOCS / name, folder / name)
        (folder / "extra.toml").touch()
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
        without_reference = "extensions=myst_nb,sphinx_copybutton,repository_links"
        done = build(folder, folder.parent / "out" / "html", "-D", without_reference)
        return done.returncode, done.stderr

    return made


LIST = "# Title\n\n```{toctree}\nother\n```\n\n"


def test_a_right_link_builds_and_each_broken_one_fails(small_site) -> None:
    right = "[a](other.md) [b](other.md#a-part) [c](extra.toml)\n"
    other = "# Other\n\n## A part\n"
    assert small_site({"index.md": LIST + right, "other.md": other}) == (0, "")
    wrong = "[a](absent.md)\n\n[b](other.md#no-part)\n\n[c](#nothing)\n\n![d](absent.png)\n\n[e](absent.toml)\n"
    code, warnings = small_site({"index.md": LIST + wrong, "other.md": other, "alone.md": "# Alone\n"})
    assert code == 1
    for each in ("absent.md", "no-part", "nothing", "absent.png", "absent.toml", "alone.md"):
        assert each in warnings


NOTEBOOK = """---
file_format: mystnb
kernelspec:
  name: python3
---
# Title

```{code-cell}
1 / 0
```
"""


def test_a_failing_cell_of_a_notebook_fails_the_build(small_site) -> None:
    code, warnings = small_site({"index.md": NOTEBOOK})
    assert code != 0
    assert "ZeroDivisionError" in warnings
