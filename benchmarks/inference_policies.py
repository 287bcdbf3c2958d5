"""Compare the policies of fair inference in virtual time, for docs/explanation/inference-policies.md.

python benchmarks/inference_policies.py [--picture docs/images/inference-policies.png]
"""

from __future__ import annotations

import argparse
import io
import math
import random
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.fairness import Progress, progress, rates, ratios
from chimera.inference.scheduling.scenario import Conditions, Fault, SimulatedJob
from chimera.inference.scheduling.simulation import Outcome, Simulation

ENDLESS = 10**9
UNTIL_S = 180.0
SETTLE_S = 2.0
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222")  # palette of Okabe and Ito, for colour-blind readers
ORDER = ("fair-share", "rate-ratio", "equal-split", "lowest-rate", "first-come")


def speeds() -> list[float]:
    draw = random.Random(1)
    return [draw.uniform(0.7, 1.3) for _ in range(10)]


def faults() -> list[Fault]:
    draw = random.Random(2)
    return [
        Fault(
            worker=draw.randrange(10), at_s=at_s, kind=draw.choice(("kill", "hang")), duration_s=draw.uniform(2.0, 6.0)
        )
        for at_s in np.arange(20.0, UNTIL_S, 5.0)
    ]


def jobs(times_s: tuple[float, ...], every_s: float, load_s: float = 0.0) -> list[SimulatedJob]:
    return [
        SimulatedJob(seconds=time_s, queries=ENDLESS, at_s=place * every_s, load_s=load_s)
        for place, time_s in enumerate(times_s)
    ]


SCENARIOS: Mapping[str, tuple[list[SimulatedJob], Conditions]] = {
    "two jobs": (jobs((0.01, 0.024), 30.0), Conditions(warm=True, until_s=UNTIL_S)),
    "five jobs come": (
        jobs((0.01, 0.024, 0.013, 0.02, 0.016), 20.0, load_s=2.0),
        Conditions(speeds=speeds(), until_s=UNTIL_S),
    ),
    "little memory, faults": (
        jobs((0.01, 0.024, 0.06), 20.0, load_s=2.0),
        Conditions(speeds=speeds(), keep_models=2, faults=faults(), until_s=UNTIL_S),
    ),
}


def row(scenario: str, policy: str, outcome: Outcome) -> str:
    """Return a row of the table: ratios of rates, shares of the workers' time, and waiting times of new jobs."""
    found = list(progress(outcome.history).values())
    computing, loading = outcome.shares()
    waits_s = max(job.first_s - job.since_s for job in found[1:])
    firsts_s = max(job.times_s[0] - job.since_s if len(job.times_s) else math.inf for job in found[1:])
    long, short = (ratios(found, window_s, end_s=outcome.end_s, settle_s=SETTLE_S) for window_s in (60.0, 10.0))
    figures = [
        _ratio(np.median(short)),
        _ratio(np.quantile(short, 0.95, method="higher")),
        _ratio(long.max()),
        f"{100 * computing:.1f} %",
        f"{100 * loading:.1f} %",
        _seconds(waits_s),
        _seconds(firsts_s),
    ]
    return " | ".join(["", scenario, f"`{policy}`", *figures, ""]).strip()


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else "∞"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if math.isfinite(value) else "never"


def draw(outcomes: Mapping[tuple[str, str], dict[str, Progress]], path: Path) -> None:
    """Draw the query rates of all jobs over time, in windows of 5 s; a row for each policy, a column for each scenario."""
    mpl.rcParams.update({"font.size": 8, "axes.prop_cycle": mpl.cycler(color=_COLOURS)})
    figure, axes = plt.subplots(
        len(ORDER), len(SCENARIOS), figsize=(9.5, 9.5), sharex=True, sharey="col", layout="constrained"
    )
    edges_s = np.arange(0.0, UNTIL_S - 5.0, 1.5)
    for down, policy in enumerate(ORDER):
        for across, scenario in enumerate(SCENARIOS):
            axis = axes[down, across]
            for job, given in zip(outcomes[scenario, policy].values(), SCENARIOS[scenario][0], strict=True):
                there = edges_s >= job.since_s
                label = f"{1000 * given.seconds:.0f} ms"
                speed = np.maximum(rates(job, edges_s[there], 5.0), 1.0)  # a job without progress is below the axis
                axis.plot(edges_s[there] + 2.5, speed, linewidth=1.1, label=label)
            axis.set_yscale("log")
            axis.set_ylim(20.0, 1500.0)
            axis.set_yticks([30.0, 100.0, 300.0, 1000.0], ["30", "100", "300", "1000"])
            axis.minorticks_off()
            axis.spines[["top", "right"]].set_visible(False)
            if not down:
                axis.set_title(scenario, fontsize=9)
            if policy == ORDER[-1]:
                axis.legend(
                    fontsize=7, frameon=False, ncols=2, title="a query takes", title_fontsize=7, loc="center right"
                )
            if not across:
                axis.set_ylabel(f"{policy}\nqueries / s")
    axes[-1, 0].set_xlabel("seconds")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(48).save(path, optimize=True)


def main() -> None:
    """Print the table; draw the picture if a path is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    print(
        "| scenario | policy | ratio of rates, median | 95 % | worst 60 s | computing | loading | waits | first result |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    outcomes = {}
    for scenario, (work, conditions) in SCENARIOS.items():
        for policy in ORDER:
            outcome = Simulation(POLICIES.create(policy), work, conditions).run()
            outcomes[scenario, policy] = progress(outcome.history)
            print(row(scenario, policy, outcome), flush=True)
    if given.picture:
        draw(outcomes, given.picture)


if __name__ == "__main__":
    main()
