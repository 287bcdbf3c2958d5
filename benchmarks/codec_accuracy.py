"""Cost of each codec in accuracy: `examples/mnist.toml` with all codecs, and with error feedback if the paper has it.

The script uses `chimera compare` on the engine ``simulated``: the updates equal those of ``local`` to the bit, and runs do not
affect one another. It prints a table in Markdown, and writes it into the folder of the runs. MNIST is read from
``$CHIMERA_DATA``, or downloaded once::

    python benchmarks/codec_accuracy.py [--seeds 3] [--only sign top-k ...] [--out runs/codec-accuracy] [--resume]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chimera.codecs.codec import CODECS
from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.data.split import DATASETS
from chimera.training.comparison.execution import compare
from chimera.training.comparison.figures import Row
from chimera.training.experiment.experiment import Experiment

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.toml"
GOAL_POINTS = 1.0  # below identity
FEEDBACK = {"error_feedback": True}
AS_IN_THE_FILE = "Adam"
OPTIMIZERS: dict[str, dict[str, Any] | None] = {
    AS_IN_THE_FILE: None,
    "SGD with momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
    "SGD": {"name": "sgd", "lr": 0.1},
    "SGD of rate 0.5": {"name": "sgd", "lr": 0.5},
}


class Setting(NamedTuple):
    """A codec of the comparison, and the optimizer with which it is trained.

    Attributes
    ----------
    codec : table of the codec in the experiment.
    optimizer : optimizer of the server, a key of `OPTIMIZERS`.
    """

    codec: Mapping[str, Any]
    optimizer: str = AS_IN_THE_FILE

    @property
    def options(self) -> str:
        """The options in the form of an experiment file."""
        return ", ".join(f"{key} = {_toml(value)}" for key, value in self.codec.items() if key != "name")


BASELINE = Setting({"name": "identity"})
SETTINGS: dict[str, list[Setting]] = {  # by the name of the registered codec
    "identity": [BASELINE, *(Setting({"name": "identity"}, on) for on in ("SGD with momentum", "SGD of rate 0.5"))],
    "cast": [Setting({"name": "cast"}), Setting({"name": "cast", "to": "bf16"})],
    "int8": [Setting({"name": "int8"}), Setting({"name": "int8", "block": 256, "stochastic": True})],
    "natural": [Setting({"name": "natural"})],
    "nonuniform": [Setting({"name": "nonuniform"})],
    "qsgd": [Setting({"name": "qsgd"}), Setting({"name": "qsgd", "norm": "l2"})],
    "terngrad": [Setting({"name": "terngrad"})],
    "sign": [Setting({"name": "sign", **FEEDBACK})],
    "onebit": [Setting({"name": "onebit"})],
    "binary": [Setting({"name": "binary", **FEEDBACK})],
    # The papers of the sparse codecs train with SGD: Adam cancels elements that are rarely sent and then large.
    "top-k": [
        Setting({"name": "top-k", "ratio": 0.03, **FEEDBACK}),
        Setting({"name": "top-k", **FEEDBACK}, "SGD with momentum"),
    ],
    "threshold": [Setting({"name": "threshold", "value": 0.005, **FEEDBACK})],
    # With elements that are ten messages old, momentum diverges; the paper with a memory, Stich et al. 2018, uses plain SGD.
    "random-k": [
        Setting({"name": "random-k", "ratio": 0.5, **FEEDBACK}),
        Setting({"name": "random-k", "ratio": 0.1, **FEEDBACK}, "SGD of rate 0.5"),
    ],
    "dgc": [Setting({"name": "dgc"}, "SGD")],  # each worker has the momentum
    "powersgd": [Setting({"name": "powersgd"})],
    "adaptive": [Setting({"name": "adaptive"})],
    "rows": [Setting({"name": "rows"})],
    # The codecs of weights compress the downlink.
    "delta": [Setting({"name": "identity", "downlink": {"name": "delta", "codec": "int8"}})],
    "loss-aware": [Setting({"name": "identity", "downlink": {"name": "loss-aware", "bits": bits}}) for bits in (4, 2)],
    "error-feedback": [Setting({"name": "error-feedback", "codec": "int8"})],
    "lossless": [Setting({"name": "lossless", "codec": "terngrad"})],
    "layer-wise": [Setting({"name": "layer-wise", "default": "sign", "layers": {"*.bias": "identity"}, **FEEDBACK})],
}


def settings_of(only: Sequence[str]) -> list[Setting]:
    """Return the settings to compare, the baseline first.

    Raises
    ------
    ConfigurationError : a registered codec has no settings here, or settings have no codec.
    """
    registered = [entry.name for entry in CODECS.entries()]
    if missing := [name for name in registered if name not in SETTINGS]:
        raise ConfigurationError(f"no settings for {', '.join(missing)}: add them to SETTINGS in {Path(__file__).name}")
    if unknown := [name for name in (*SETTINGS, *only) if name not in registered]:
        raise ConfigurationError(f"no such codec: {', '.join(unknown)}; known: {', '.join(registered)}")
    return [each for name in SETTINGS if not only or name in (*only, "identity") for each in SETTINGS[name]]


def run_all(settings: Iterable[Setting], seeds: int, out: Path, *, resume: bool) -> dict[str, list[Row]]:
    """Return the runs of each setting, by its `repr`; run one comparison for each optimizer."""
    DATASETS.create("mnist")  # before the runs, so that a missing data set is one error, and no two runs download it
    example = Experiment.load(EXAMPLE).with_settings(["engine=simulated"])
    runs: dict[str, list[Row]] = {}
    for name, optimizer in OPTIMIZERS.items():
        group = [each for each in settings if each.optimizer == name]
        if not group:
            continue
        experiment = example if optimizer is None else example.with_value(("train", "optimizer"), optimizer)
        folder = out / name.replace(" ", "-").lower()
        found = compare(experiment, {"codec": [s.codec for s in group]}, repeat=seeds, out=folder, resume=resume)
        if not found.finished:
            sys.exit(f"error: some runs did not finish, see {folder}; continue with --resume --out {out}")
        for i, each in enumerate(group):  # the seeds of a cell are consecutive
            runs[repr(each)] = found.runs[i * seeds : (i + 1) * seeds]
    return runs


def lines_of(settings: Iterable[Setting], runs: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the table in Markdown."""
    identity = _median(runs[repr(BASELINE)], "accuracy")
    lines = ["| codec | options | accuracy | points below | bits per element | ratio |", "|---|---|---|---|---|---|"]
    for each in settings:
        group = runs[repr(each)]
        accuracy, up, down = (_median(group, k) for k in ("accuracy", "bits_per_element_up", "bits_per_element_down"))
        points = 100 * (identity - accuracy)
        missed = ", goal missed" if points > GOAL_POINTS else ""
        bits, ratio = (f"{up:.3g}", 32 / up) if down == 32 else (f"{up:.3g} up, {down:.3g} down", 64 / (up + down))
        options = f"`{each.options}`" if each.options else ""
        options += f"{', ' if options else ''}on {each.optimizer}" if each.optimizer != AS_IN_THE_FILE else ""
        cells = (
            f"`{each.codec['name']}`",
            options,
            f"{100 * accuracy:.2f} %",
            f"{points:.2f}{missed}",
            bits,
            f"{ratio:.3g}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(group: Sequence[Row], key: str) -> float:
    return statistics.median(run["metrics"].get(key, run.get(key)) for run in group)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{key}" = {_toml(each)}' for key, each in value.items()) + " }"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="codecs to compare with identity")
    parser.add_argument("--out", type=Path, default=Path("runs/codec-accuracy"), help="folder of the runs")
    parser.add_argument("--resume", action="store_true", help="continue the runs in that folder")
    options = parser.parse_args()
    try:
        settings = settings_of(options.only)
        runs = run_all(settings, options.seeds, options.out, resume=options.resume)
    except ChimeraError as error:
        sys.exit(f"error: {error}")
    table = "\n".join(lines_of(settings, runs))
    (options.out / "accuracy.md").write_text(table + "\n", encoding="utf-8")
    print(
        f"{table}\n\nMedians of {options.seeds} seeds; points are below `identity` on {AS_IN_THE_FILE}. See {options.out}"
    )


if __name__ == "__main__":
    main()
