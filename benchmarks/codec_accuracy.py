"""What each codec costs in accuracy: `examples/mnist.toml` with every registered codec, each with error feedback where its paper has it.

The comparison is that of `chimera compare`, on the engine ``simulated``, where the same updates are made to the same bits as on
``local`` and cells do not disturb one another. It prints a table in Markdown, and writes it into the folder of the comparison. MNIST
is read from ``$CHIMERA_DATA``, or downloaded once::

    python benchmarks/codec_accuracy.py [--seeds 3] [--only sign top-k ...] [--out DIR] [--resume]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.codecs.codec import CODECS
from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.data.dataset import DATASETS
from chimera.training.comparison.comparison import compare
from chimera.training.comparison.figures import Row
from chimera.training.experiment import Experiment

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.toml"
GOAL_POINTS = 1.0  # below identity
FEEDBACK = {"error_feedback": True}
SETTINGS: dict[str, list[dict[str, Any]]] = {  # by the name of the registered codec that is looked at
    "identity": [{"name": "identity"}],
    "cast": [{"name": "cast"}, {"name": "cast", "to": "bf16"}],
    "int8": [{"name": "int8"}, {"name": "int8", "block": 256, "stochastic": True}],
    "natural": [{"name": "natural"}],
    "nonuniform": [{"name": "nonuniform"}],
    "qsgd": [{"name": "qsgd"}],
    "terngrad": [{"name": "terngrad"}],
    "sign": [{"name": "sign", **FEEDBACK}],
    "onebit": [{"name": "onebit"}],
    "binary": [{"name": "binary", **FEEDBACK}],
    "top-k": [{"name": "top-k", **FEEDBACK}, {"name": "top-k", "sampled": True, **FEEDBACK}],
    "threshold": [{"name": "threshold", **FEEDBACK}],
    "random-k": [{"name": "random-k", **FEEDBACK}],
    "dgc": [{"name": "dgc"}],
    "powersgd": [{"name": "powersgd"}],
    "error-feedback": [{"name": "error-feedback", "codec": "terngrad"}],
    "lossless": [{"name": "lossless", "codec": "qsgd"}],
    "layer-wise": [{"name": "layer-wise", "default": "sign", "layers": {"*.bias": "identity"}, **FEEDBACK}],
}


def tables_of(only: Sequence[str]) -> list[dict[str, Any]]:
    """Return the codecs to compare, identity first.

    Raises
    ------
    ConfigurationError : a registered codec has no settings here, or settings have no codec.
    """
    registered = [entry.name for entry in CODECS.entries()]
    if missing := [name for name in registered if name not in SETTINGS]:
        raise ConfigurationError(
            f"no settings for {', '.join(missing)}: add an entry to SETTINGS in {Path(__file__).name}"
        )
    if unknown := [name for name in (*SETTINGS, *only) if name not in registered]:
        raise ConfigurationError(f"no such codec: {', '.join(unknown)}; known: {', '.join(registered)}")
    return [table for name in SETTINGS if not only or name in (*only, "identity") for table in SETTINGS[name]]


def options_of(table: Mapping[str, Any]) -> str:
    """Return a codec's options as the experiment file would have them."""
    return ", ".join(f"{key}={_plain(value)}" for key, value in table.items() if key != "name")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_plain(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines_of(tables: Sequence[Mapping[str, Any]], runs: Sequence[Row]) -> list[str]:
    """Return the table in Markdown; ``runs`` are in the order of ``tables``, all seeds of one together."""
    each = len(runs) // len(tables)
    groups = [runs[i * each : (i + 1) * each] for i in range(len(tables))]
    identity = _median(groups[0], "accuracy")
    lines = [
        "| codec | options | accuracy | points below `identity` | bits per element | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for table, group in zip(tables, groups, strict=True):
        accuracy, up, down = (
            _median(group, key) for key in ("accuracy", "bits_per_element_up", "bits_per_element_down")
        )
        points = 100 * (identity - accuracy)
        bits = f"{up:.3g}" if down == 32 else f"{up:.3g} up, {down:.3g} down"
        ratio = f"{64 / (up + down):.3g} both ways" if down != 32 else f"{32 / up:.3g}"
        late = " (goal missed)" if points > GOAL_POINTS else ""
        told = f"`{options_of(table)}`" if len(table) > 1 else ""
        lines.append(
            f"| `{table['name']}` | {told} | {100 * accuracy:.2f} % | {points:+.2f}{late} | {bits} | {ratio} |"
        )
    return lines


def _median(group: Sequence[Row], key: str) -> float:
    return statistics.median(run["metrics"][key] if key in run["metrics"] else run[key] for run in group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="codecs to compare with identity")
    parser.add_argument("--out", type=Path, help="folder of the comparison")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    try:
        tables = tables_of(options.only)
        experiment = Experiment.load(EXAMPLE).with_settings(["engine=simulated"])
        DATASETS.create("mnist")  # here, so that one message says what is missing, and no two cells download it
        found = compare(experiment, {"codec": tables}, repeat=options.seeds, out=options.out, resume=options.resume)
    except ChimeraError as error:
        sys.exit(f"error: {error}")
    if not found.finished:
        sys.exit(
            f"error: not every run came to its end; see {found.folder}, and go on with --resume --out {found.folder}"
        )
    table = "\n".join(lines_of(tables, found.runs))
    (found.folder / "codec_accuracy.md").write_text(table + "\n", encoding="utf-8")
    print(f"{table}\n\nMedians of {options.seeds} seeds. {found.folder}: the table, a page, and the report of each run")


if __name__ == "__main__":
    main()
