"""Draw pictures of examples: the first timeline of the report of each run, with a headless Chromium.

    python docs/diagrams/timelines.py pipeline hybrid split_learning coding

For each name, run examples/NAME.toml and write docs/images/NAME.png.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from chimera.training.experiment.experiment import Experiment

DOCS = Path(__file__).parents[1]
PIXELS_PER_LANE, OTHER_PIXELS = 22, 125


def timeline(report: str) -> tuple[str, int]:
    """Return a page with only the legend and the first timeline of a report, and the number of lanes of the timeline."""
    head, _, body = report.partition("<body")
    legend = re.search(r"<p class='legend'>(?=<span><i class=\"compute).*?</p>", body, re.DOTALL)
    figure = re.search(r'<figure class="timeline">.*?</figure>', body, re.DOTALL)
    assert legend is not None
    assert figure is not None
    section = f"<section style='margin:0;border:0'>{legend.group()}{figure.group()}</section>"
    return f"{head}<body style='margin:0'>{section}</body></html>", figure.group().count('class="lane"')


def draw(name: str, browser: str) -> None:
    """Run an example and write its picture."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        Experiment.load(DOCS.parent / "examples" / f"{name}.toml").trainer(callbacks=[], out=run, resume=False).fit()
        page, lanes = timeline((run / "report.html").read_text("utf-8"))
        file = Path(folder) / "timeline.html"
        file.write_text(page, "utf-8")
        size = f"900,{lanes * PIXELS_PER_LANE + OTHER_PIXELS}"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/browser",
        ]
        picture = [f"--window-size={size}", f"--screenshot={DOCS / 'images' / name.replace('_', '-')}.png"]
        subprocess.run([browser, *flags, *picture, file.as_uri()], check=True, capture_output=True, timeout=60)


def main() -> None:
    """Draw the timelines of the examples named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("examples", nargs="+")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    arguments = parser.parse_args()
    if browser is None:
        parser.error("no Chromium was found on the path")
    for name in arguments.examples:
        draw(name, browser)


if __name__ == "__main__":
    main()
