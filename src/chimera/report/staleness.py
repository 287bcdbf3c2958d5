"""Staleness of the applied gradients: the histogram of an asynchronous run, as a chart of the report."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from chimera.core.counted import counted
from chimera.report.run_files import RunFiles
from chimera.report.units import linear_ticks, number, significant, tick_labels

X_LABEL = "Updates between reading the weights and applying the gradient"
Y_LABEL = "Gradients"
_WIDTH, _HEIGHT = 560, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 42
_MAX_BARS = 60


def histogram(run: RunFiles) -> dict[int, int]:
    """Return the number of gradients by staleness in updates, in order; empty if the run has no valid histogram."""
    found = run.summary.get("staleness")
    if not isinstance(found, Mapping):
        return {}
    pairs = [(str(age), count) for age, count in found.items()]
    if not all(age.isdecimal() and isinstance(count, int) and count >= 0 for age, count in pairs):
        return {}
    return {int(age): count for age, count in sorted(pairs, key=lambda pair: int(pair[0]))}


def staleness(run: RunFiles) -> str:
    """Return the chart and a summary as HTML; empty if there is no histogram."""
    counts = {age: count for age, count in histogram(run).items() if count}
    if not counts:
        return ""
    total = sum(counts.values())
    mean = sum(age * count for age, count in counts.items()) / total
    note = (
        f"{counted(total, 'gradient')}, {significant(mean, 3)} updates old on average, at most {number(max(counts))}."
    )
    return f"<figure class='staleness'>{_chart(counts, note)}</figure><p class='note'>{note}</p>"


def _chart(counts: Mapping[int, int], note: str) -> str:
    width = -(-(max(counts) + 1) // _MAX_BARS)  # ages in one bar
    bars = [0] * (max(counts) // width + 1)
    for age, count in counts.items():
        bars[age // width] += count
    bottom, right, high = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, max(bars) * 1.06
    step = (right - _LEFT) / max(len(bars), 8)
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(note)}">']
    ticks = linear_ticks(0, high, 6, whole=True)
    for tick, name in zip(ticks, tick_labels(ticks), strict=True):
        at = bottom - tick / high * (bottom - _TOP)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 7}" y="{at + 3.8:.1f}" text-anchor="end">{name}</text>')
    for place, count in enumerate(bars):
        first, last = place * width, place * width + width - 1
        ages = f"{first}" if width == 1 else f"{first} to {last}"
        title = f"{ages} {'update' if ages == '1' else 'updates'} old: {counted(count, 'gradient')}"
        left, tall = _LEFT + place * step, count / high * (bottom - _TOP)
        parts.append(
            f'<rect class="column" x="{left + step * 0.1:.1f}" y="{bottom - tall:.1f}" width="{step * 0.8:.1f}" '
            f'height="{tall:.1f}"><title>{title}</title></rect>'
        )
    ticks = linear_ticks(0, max(max(counts), 1), 9, whole=True)
    for tick, name in zip(ticks, tick_labels(ticks), strict=True):
        at = _LEFT + (tick + 0.5) / width * step
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{name}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{X_LABEL}</text>')
    parts.append(f'<text class="label" transform="translate(12 {(_TOP + bottom) / 2}) rotate(-90)" ')
    parts.append(f'text-anchor="middle">{Y_LABEL}</text>')
    return "".join([*parts, "</svg>"])
