"""A run as a small piece of HTML for notebooks: a table of its figures, and its learning curves."""

from __future__ import annotations

import base64
import importlib.resources
from pathlib import Path

from chimera.report import svg
from chimera.report.curves import Panel, panels
from chimera.report.html import cards
from chimera.report.run_files import read_run
from chimera.report.safe_text import safe_text

_MAX_CHARTS = 3


def run_card(folder: Path) -> str:
    """Return the table and the curves of the run in a folder as HTML text.

    Raises
    ------
    ConfigurationError : ``folder`` is not the folder of a run.
    """
    run = read_run(folder)
    rows = "".join(
        f'<tr><th style="text-align: left">{safe_text(label)}</th><td style="text-align: left">{safe_text(value)}</td></tr>'
        for label, value, _ in cards(run)
    )
    charts = "".join(_image(row[0]) for row in panels(run)[:_MAX_CHARTS])
    return (
        f"<p><b>{safe_text(run.name)}</b> <code>{safe_text(folder)}</code></p>"
        f'<div style="display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start">'
        f"<table><tbody>{rows}</tbody></table><div>{charts}</div></div>"
    )


def _image(panel: Panel) -> str:
    """Return a chart as an image, so that its style does not apply to the rest of the page."""
    style = importlib.resources.files("chimera.report").joinpath("style.css").read_text(encoding="utf-8")
    own = "svg { background: var(--card); font-family: system-ui, sans-serif; }"
    drawn = svg.chart(panel).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="400" height="236" ', 1)
    opening, bracket, rest = drawn.partition(">")
    text = f"{opening}{bracket}<style><![CDATA[{style}{own}]]></style>{rest}"
    data = base64.b64encode(text.encode()).decode()
    label = safe_text(f"{panel.y_label} over {panel.x_label}")
    title = safe_text(f"{panel.y_label}: {', '.join(curve.label for curve in panel.curves)}")
    image = f'<img alt="{label}" width="400" height="236" src="data:image/svg+xml;base64,{data}">'
    return (
        f'<figure style="display: inline-block; margin: 0 8px 8px 0"><figcaption>{title}</figcaption>{image}</figure>'
    )
