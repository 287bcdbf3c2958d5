"""Draw the diagrams of strategies from recorded runs in virtual time: docs/images/NAME.svg.

python docs/diagrams/draw.py              # all
python docs/diagrams/draw.py fed-avg      # some
"""

from __future__ import annotations

import argparse
from pathlib import Path

from diagrams import DIAGRAMS
from drawing import draw
from recording import record

IMAGES = Path(__file__).parents[1] / "images"


def svg(name: str) -> str:
    """Return a diagram as SVG."""
    diagram = DIAGRAMS[name]
    return draw(f"{diagram.strategy}: {diagram.title}", record(diagram.settings()), diagram.look())


def main() -> None:
    """Write the diagrams that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(DIAGRAMS), metavar="name", help="default: all")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in DIAGRAMS]:
        parser.error(f"unknown diagram {unknown[0]!r}; known: {', '.join(DIAGRAMS)}")
    for name in names:
        (IMAGES / f"{name}.svg").write_text(svg(name), encoding="utf-8")


if __name__ == "__main__":
    main()
