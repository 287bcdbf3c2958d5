"""The tables of ``slow_links.py``."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from slow_links_network import Link

LOSS_STEPS = 20
Found = Mapping[tuple[Link, str, str], list[dict[str, Any]]]
"""Measurements by link, network and variant."""
Training = Mapping[tuple[str, str], dict[str, Any]]
"""Measurements of the runs to the target, by network and hook."""


def show_training(training: Training, target: float) -> None:
    """Print the losses at equal steps, and the steps to the target."""
    for network in dict.fromkeys(network for network, _ in training):
        own = {hook: told for (name, hook), told in training.items() if name == network}
        end = min(len(told["losses"]) for told in own.values())
        print(f"\n{network}: mean loss of steps {end - LOSS_STEPS + 1} to {end}, and steps to {target:.0%}")
        for hook, told in own.items():
            loss = statistics.mean(told["losses"][end - LOSS_STEPS : end])
            print(f"{hook:22}{loss:10.3f}{told.get('steps_to_target', 'not reached'):>14}", flush=True)


def show_ddp(link: Link, network: str, hooks: list[str], found: Found, training: Training) -> None:
    """Print the speed, bytes and time to the target of each hook."""
    print(f"\n{network}, {link}: DDP")
    print(f"{'':22}{'samples/s':>11}{'of plain':>10}{'spread':>8}{'kB/step':>10}{'to target, s':>14}")
    plain = [told["samples_s"] for told in found[link, network, "plain"]]
    for hook in hooks:
        told = found[link, network, hook]
        speeds = [each["samples_s"] for each in told]
        median, spread = _summary(speeds)
        ratio = statistics.median(a / b for a, b in zip(speeds, plain, strict=True))
        steps = training.get((network, hook), {}).get("steps_to_target")
        target = f"{steps * statistics.median(each['step_s'] for each in told):.1f}" if steps else "-"
        sent = statistics.median(each["bytes"] for each in told) / 1000
        print(f"{hook:22}{median:11,.0f}{ratio:10.2f}{spread:8.0%}{sent:10,.1f}{target:>14}")


def show_ray(network: str, found: Found, predicted: Mapping[tuple[Link, str], float]) -> None:
    """Print the speed of each strategy on Ray, and the prediction."""
    print(f"\n{network}: Chimera on Ray, samples/s, and the prediction of the engine simulated")
    print(f"{'':54}{'Ray':>9}{'spread':>8}{'predicted':>11}{'Ray/predicted':>15}{'kB/round':>10}")
    for (link, strategy), prediction in predicted.items():
        told = found[link, network, strategy]
        median, spread = _summary([each["samples_s"] for each in told])
        row = told[0]["row"]
        sent = (row["bytes_up"] + row["bytes_down"]) / row["round"] / 1000
        name = f"{link}: {strategy}"
        print(f"{name:54}{median:9,.0f}{spread:8.0%}{prediction:11,.0f}{median / prediction:15.2f}{sent:10,.1f}")


def _summary(values: list[float]) -> tuple[float, float]:
    """Return the median, and the spread relative to it."""
    median = statistics.median(values)
    return median, (max(values) - min(values)) / median
