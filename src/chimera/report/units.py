"""Formatting of numbers: seconds, bytes and counts with units, and ticks at round values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TIME = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
_COUNTS = ((1e3, " (thousands)"), (1e6, " (millions)"), (1e9, " (billions)"))
_CHANGES_AT = {"min": 3.0, "h": 3.0, "B": 0.0}


def time_unit(largest_s: float) -> tuple[float, str]:
    """Return (seconds in a unit, its name) for an axis that ends at ``largest_s``."""
    return _unit(largest_s, _TIME)


def bytes_unit(largest: float) -> tuple[float, str]:
    """Return (bytes in a decimal unit, its name) for an axis that ends at ``largest`` bytes."""
    return _unit(largest, _BYTES)


def counts_unit(largest: float) -> tuple[float, str]:
    """Return (counts in a unit, suffix of the axis label) for an axis of counts that ends at ``largest``."""
    fitting = [unit for unit in _COUNTS if largest >= 10 * unit[0]]
    return fitting[-1] if fitting else (1.0, "")


def _unit(largest: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    fitting = [unit for unit in units if largest >= unit[0] * _CHANGES_AT.get(unit[1], 1.0)]
    return fitting[-1] if fitting else units[2 if units is _TIME else 0]


def clock(*virtual: bool) -> str:
    """Return the label of the time of these runs: real, virtual or both."""
    return "Time" if not any(virtual) else "Virtual time" if all(virtual) else "Time, real or virtual"


def format_duration(value: float, *, virtual: bool) -> str:
    """Return a duration of a run as `in_seconds` does, followed by "virtual" if it is."""
    return f"{in_seconds(value)} virtual" if virtual else in_seconds(value)


def in_seconds(value: float) -> str:
    """Return a duration: ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if not math.isfinite(value):
        return str(value)
    if value >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours:,} h {minutes:02d} min"
    if value >= 180:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds:02d} s"
    factor, unit = time_unit(value) if value < 1 else (1.0, "s")
    return f"{significant(value / factor, 3)} {unit}"


def in_bytes(value: float) -> str:
    """Return an amount of data in decimal units: ``1.23 GB``."""
    factor, unit = bytes_unit(value)
    return f"{significant(value / factor, 3)} {unit}"


def number(value: Any, digits: int = 4) -> str:
    """Return an integer with thousands separators, or a float with ``digits`` significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return significant(value, digits)


def significant(value: float, digits: int) -> str:
    """Return ``value`` with ``digits`` significant digits, no exponent between 1e-4 and 1e9, no trailing zeros."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return _exponential(value, digits)
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def linear_ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` ticks in [low, high] at steps of 1, 2, 2.5 or 5 times a power of ten, whole if ``whole``."""
    if not high > low:
        return [low]
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for step in (power * m for m in (1, 2, 2.5, 5, 10, 20, 50, 100)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most and (not whole or step == round(step)):
            break
    return [round(i * step, 12 - math.floor(math.log10(step))) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten in [low, high], thinned to ``most``; with 2 and 5 times them if ``most`` allows."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first + 1) / most))
    decades = [10.0**p for p in range(first, last + 1) if p % stride == 0]
    fine = [d * m for d in decades for m in (1, 2, 5)] if stride == 1 else decades
    inside = [[t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)] for ticks in (fine, decades)]
    return inside[0] if len(inside[0]) <= most else inside[1]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the ticks' values, short and with the same number of decimals: ``0.25``, ``12,000``, ``1e-6``."""
    if any(tick and not 1e-4 <= abs(tick) < 1e6 for tick in ticks):
        return [_exponential(tick) for tick in ticks]
    plain = [f"{tick:.9f}".rstrip("0") for tick in ticks]
    decimals = max((len(text.partition(".")[2]) for text in plain), default=0)
    return [f"{tick:,.{decimals}f}" for tick in ticks]


def log_tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the values of ticks on a logarithmic axis, each in its shortest form."""
    return [tick_labels([tick])[0] for tick in ticks]


def _exponential(value: float, digits: int = 4) -> str:
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if value else "0"
