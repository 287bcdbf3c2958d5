"""DiLoCo and an exchange in each step, for the GPT of examples/diloco_gpt.toml: perplexity over bytes and over virtual time.

    python benchmarks/diloco_gpt.py --out runs/diloco_gpt --picture docs/images/diloco-gpt.png

The script runs ``chimera compare`` with each strategy over links of 100 Mbit/s and 1 Gbit/s, and ``streaming-diloco`` also with
a codec of 3 bits. This takes about 30 minutes of one core. Finished runs in ``--out`` are not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

EXPERIMENT = Path(__file__).parents[1] / "examples" / "diloco_gpt.toml"
LINKS = {"100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6}
BANDWIDTH = "engine.network.bandwidth_bytes_s"
COMPARISONS = {  # evaluated every 50 steps
    "all-reduce": ("--vary", "strategy=all-reduce", "--set", "train.evaluate_every=50"),
    "diloco": ("--vary", "strategy=diloco:local_steps=50", "--set", "train.evaluate_every=1"),
    "streaming-diloco": (
        *("--set", "strategy=streaming-diloco", "--set", "train.evaluate_every=5"),
        *("--vary", "codec=identity,qsgd:levels=3"),
    ),
}
TITLES = {
    "all-reduce": "all-reduce",
    "diloco,local_steps=50": "diloco, H = 50",
    "identity": "streaming-diloco, H = 50",
    "qsgd,levels=3": "streaming-diloco, H = 50, 3 bits",
}


class Curve(NamedTuple):
    """The evaluations of a run: gigabytes of messages, virtual seconds and perplexity, a row for each."""

    rows: list[tuple[float, float, float]]


def compare(name: str, out: Path) -> None:
    """Run the missing runs of a comparison."""
    bandwidths = ",".join(f"{each:g}" for each in LINKS.values())
    command = [sys.executable, "-m", "chimera", "compare", str(EXPERIMENT), *COMPARISONS[name]]
    command += ["--vary", f"{BANDWIDTH}={bandwidths}", "--jobs", "1", "--out", str(out / name)]
    if (out / name).exists():
        command.append("--resume")
    subprocess.run(command, check=True)


def curve(folder: Path) -> Curve:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if "perplexity" in row]
    return Curve([((r["bytes_up"] + r["bytes_down"]) / 1e9, r["seconds"], r["perplexity"]) for r in evaluated])


def curves(out: Path) -> dict[tuple[str, str], Curve]:
    """Return the curve of each run, by the titles of its strategy and its link."""
    found = {}
    for folder in sorted(path for name in COMPARISONS for path in (out / name).iterdir() if path.is_dir()):
        strategy, _, bandwidth = folder.name.partition(f"--{BANDWIDTH.rpartition('.')[2]}=")
        link = next(title for title, value in LINKS.items() if value == float(bandwidth))
        found[TITLES[strategy], link] = curve(folder)
    return found


def draw(runs: dict[tuple[str, str], Curve], picture: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for place, title in enumerate(TITLES.values()):
        style = {"color": f"C{place}", "lw": 1.4, "marker": ".", "ms": 4}
        for panel, (link, column) in zip(panels, (("1 Gbit/s", 0), ("100 Mbit/s", 1), ("1 Gbit/s", 1)), strict=True):
            rows = [row for row in runs[title, link].rows if row[column] > 0]
            panel.loglog(
                [r[column] for r in rows], [r[2] for r in rows], label=title if panel is panels[0] else None, **style
            )
    panels[0].set(xlabel="Messages (GB)", ylabel="Perplexity, held-out text")
    panels[1].set(xlabel="Virtual time (s), 100 Mbit/s")
    panels[2].set(xlabel="Virtual time (s), 1 Gbit/s")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/diloco_gpt"))
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    for name in COMPARISONS:
        compare(name, arguments.out)
    runs = curves(arguments.out)
    print(
        "| | GB of messages | "
        + " | ".join(f"virtual time, {link}" for link in LINKS)
        + " | perplexity |\n|---|---|---|---|---|"
    )
    for title in TITLES.values():
        last = {link: runs[title, link].rows[-1] for link in LINKS}
        size, _, perplexity = last["1 Gbit/s"]
        times = " | ".join(f"{last[link][1]:,.0f} s" for link in LINKS)
        print(f"| {title} | {size:.2f} | {times} | {perplexity:.0f} |")
    if arguments.picture:
        draw(runs, arguments.picture)


if __name__ == "__main__":
    main()
