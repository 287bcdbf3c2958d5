"""The diagrams of strategies: each strategy has one on a page, and the files are those that the code draws."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chimera.strategies.strategy import STRATEGIES

pytest.importorskip("torch", reason="the diagrams record runs of torch models: pip install 'chimera-dml[train]'")
DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "diagrams"))

from diagrams import DIAGRAMS  # noqa: E402 - the folder is not a package
from draw import IMAGES, svg  # noqa: E402
from drawing import KINDS, STYLE  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "explanation").glob("*.md")))


@pytest.mark.parametrize("strategy", [entry.name for entry in STRATEGIES.entries()])
def test_a_strategy_has_a_diagram_on_a_page(strategy):
    names = [name for name, diagram in DIAGRAMS.items() if diagram.strategy == strategy]
    shown = [name for name in names if re.search(rf"!\[[^\]]{{20,}}\]\(\.\./images/{re.escape(name)}\.svg\)", PAGES)]
    assert names
    assert shown == names, "show each diagram of the strategy in docs/explanation, with an alternative text"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_what_its_run_draws(name):
    if DIAGRAMS[name].privacy:
        pytest.importorskip("cryptography", reason="masks need pip install 'chimera-dml[privacy]'")
    drawn = svg(name)
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == drawn, f"run python docs/diagrams/draw.py {name}"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_small_and_has_a_title_and_a_description(name):
    text = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert len(text) < 30_000
    assert root.findtext(f"{SVG}title").startswith(DIAGRAMS[name].strategy)
    assert "from left to right" in root.findtext(f"{SVG}desc")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "a diagram loads nothing"


def luminance(color: str) -> float:
    """Return the relative luminance of a color, as WCAG 2 defines it."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", STYLE.split("@media"), ids=["light", "dark"])
def test_texts_and_arrows_have_contrast(palette):
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", palette))
    for behind in ("page", "box", "servers"):
        assert contrast(colors["text"], colors[behind]) >= 4.5
    for kind in KINDS:
        assert contrast(colors[kind], colors["page"]) >= 4.5
    for edge in ("edge", "rim"):
        assert contrast(colors[edge], colors["page"]) >= 3
