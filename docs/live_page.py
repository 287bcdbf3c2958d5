"""Draw the picture of the live page: two simulated runs side by side, with a headless Chromium.

    python docs/live_page.py

Write docs/images/live-page.png.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from chimera.training.experiment.experiment import Experiment
from chimera.web.live.server import Followed, LivePage

PICTURE = Path(__file__).parent / "images" / "live-page.png"
SIZE = "1280,1500"
EXPERIMENT = """
data = "digits"
model = "mlp"
strategy = "{strategy}"
engine = "simulated"
[train]
workers = 6
rounds = 60
seed = 1
"""


def main() -> None:
    """Train two runs, and write the picture of their page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for strategy in ("parameter-server", "ring-all-reduce"):
            file, run = Path(folder) / f"{strategy}.toml", Path(folder) / strategy
            file.write_text(EXPERIMENT.format(strategy=strategy), "utf-8")
            Experiment.load(file).trainer(callbacks=[], out=run, resume=False).fit()
            runs.append(Followed(strategy, run))
        page = LivePage(runs)
        page.start()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=6000"]
        picture = [f"--user-data-dir={folder}/browser", f"--window-size={SIZE}", f"--screenshot={PICTURE}"]
        try:
            subprocess.run([browser, *flags, *picture, page.link], check=True, capture_output=True, timeout=100)
        finally:
            page.close(0)


if __name__ == "__main__":
    main()
