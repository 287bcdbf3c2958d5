"""Texts on a run: its final figures, its events, durations and rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.filesize import decimal

from chimera.core.counted import counted
from chimera.report.unigram_baseline import unigram_baseline
from chimera.training.progress.callback import Event

_EVALUATED = "clients_evaluated_on"


def _packing(summary: Mapping[str, Any]) -> str:
    """Return the bits per element of messages as text; empty unless a codec compressed some."""
    found = [(direction, summary.get(f"bits_per_element_{direction}")) for direction in ("up", "down")]
    compressed = [f"{direction} {bits:.3g}" for direction, bits in found if bits is not None and bits != 32]
    return f"  bits per element: {', '.join(compressed)}" if compressed else ""


def _trained(summary: Mapping[str, Any]) -> str:
    rounds, samples = counted(summary["rounds"], "round"), counted(summary["samples"], "sample")
    return f"{rounds}  {summary['epochs']:.2f} epochs  {samples}"


def outcome(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the final figures of a run's summary as pairs of name and text."""
    metrics = "  ".join(f"{name} {measure(value)}" for name, value in summary["metrics"].items())
    known, virtual = unigram_baseline(summary), bool(summary.get("virtual_time"))
    rows = [
        ("metrics", metrics or "none"),
        *([("unigram", f"{known.unigram:.4f}: the {known.metric} is {known.difference()}")] if known else []),
        ("trained", _trained(summary)),
        (
            "time",
            f"{seconds(summary['seconds'], virtual=virtual)}  {summary['samples_per_second']:,.0f} {per_second(virtual)}",
        ),
        *_tokens(summary, virtual=virtual),
        ("traffic", f"up {decimal(summary['bytes_up'])}  down {decimal(summary['bytes_down'])}{_packing(summary)}"),
        ("workers", f"{summary['workers']} on {summary['engine']}"),
        *_privacy(summary),
        *([("clients", f"evaluated on {summary[_EVALUATED]}")] if _EVALUATED in summary else []),
        ("stopped by", str(summary["stopped_by"])),
        *([("model", f"the best one, of round {summary['kept_round']:,}")] if "kept_round" in summary else []),
    ]
    for what in ("rejected_gradients", "lost_rounds", "lost_workers"):
        if summary.get(what):
            rows.insert(5, (what.replace("_", " "), f"{summary[what]:,}"))
    return rows


def _tokens(summary: Mapping[str, Any], *, virtual: bool) -> list[tuple[str, str]]:
    """Return tokens and FLOPs of a model that reports them; empty for other models."""
    if "tokens" not in summary:
        return []
    found = f"{summary['tokens']:,}  {summary['tokens_per_second']:,.0f} {per_second(virtual, 'tokens')}"
    used = f"  MFU {summary['mfu']:.1%}{' virtual' if virtual else ''}" if "mfu" in summary else ""
    return [("tokens", f"{found}  {summary['flops']:.3g} FLOPs by formula{used}")]


def _privacy(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the privacy guarantee of a private run, and what it does not cover; empty for other runs."""
    privacy = summary.get("privacy", {})
    outside = [("not covered", "; ".join(privacy["outside"]))] if "outside" in privacy else []
    return [("privacy", str(privacy["guarantee"])), *outside] if privacy else []


def event_line(event: Event, *, virtual: bool = False) -> str:
    """Return an event as one line; ``virtual`` marks its time as virtual."""
    what = "  ".join(part for part in (event.event, event.actor, event.detail) if part)
    return f"{seconds(event.seconds, virtual=virtual)}  round {event.round}  {what}"


def measure(value: float) -> str:
    """Return a loss or a metric with four decimals, or with four digits if these would show nothing or too many of it."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def seconds(value: float, *, virtual: bool = False) -> str:
    """Return a duration in seconds as ms, s or h:mm:ss, marked if it is virtual."""
    minutes, rest = divmod(int(value), 60)
    whole = f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    text = f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 60 else whole
    return f"{text} virtual" if virtual else text


def per_second(virtual: bool, of: str = "samples") -> str:
    """Return the unit of a rate."""
    return f"{of}/s, virtual" if virtual else f"{of}/s"
