"""Picture of a report for the first tutorial: ``python docs/report_picture.py``.

It trains the experiment of the tutorial, takes a picture of the top of the report in headless Chromium, and writes
``docs/images/first-run-report.png``. It needs Chromium and Pillow.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import chimera

TARGET = Path(__file__).parent / "images" / "first-run-report.png"
WIDTH, HEIGHT = 1100, 1732  # pixels: down to the end of the timeline
COLOURS = 64
BROWSER = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
OFFLINE = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        run = chimera.train(
            {"name": "mlp", "hidden": [64]},
            "digits",
            strategy="parameter-server",
            workers=4,
            batch_size=16,
            rounds=200,
            evaluate_every=20,
            optimizer={"name": "adam", "lr": 3e-3},
            seed=1,
            out=f"{folder}/first",
            progress=False,
        )
        picture = Path(folder, "report.png")
        subprocess.run(
            [
                BROWSER,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *OFFLINE),
                f"--user-data-dir={folder}/browser",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={picture}",
                Path(run.report).absolute().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=100,
        )
        with Image.open(picture) as image:
            image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(TARGET, optimize=True)


if __name__ == "__main__":
    main()
