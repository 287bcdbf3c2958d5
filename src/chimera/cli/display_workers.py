"""Workers in the live view: their states, their rates, and the fill of their queues."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from rich.text import Text

from chimera.training.progress.callback import Progress
from chimera.training.progress.peak import utilisation

DOTS = 32  # more workers than this are counted, not drawn
NAMED = 8  # for more workers or queues than this, show minimum, median and maximum

_COLOURS = {"running": "green", "lost": "red"}
_BAR, _LABEL, _GAP = 8, 10, 3  # widths


class Rate:
    """Samples, tokens and FLOPs per second over the last 20 progress reports."""

    def __init__(self) -> None:
        self._reports: deque[Progress] = deque(maxlen=20)

    def add(self, progress: Progress) -> None:
        """Record a progress report."""
        self._reports.append(progress)

    @property
    def samples_per_second(self) -> float | None:
        """The rate of all workers between the first and the last report kept."""
        if not self._lasted():
            return None
        return (self._reports[-1].samples - self._reports[0].samples) / self._lasted()

    @property
    def tokens_per_second(self) -> float | None:
        """The rate of tokens between the same reports; None before the second, and if the model does not report its tokens."""
        if not self._lasted() or not self._reports[-1].tokens:
            return None
        return (self._reports[-1].tokens - self._reports[0].tokens) / self._lasted()

    @property
    def mfu(self) -> float | None:
        """The model FLOP utilisation between the same reports, 1 at the peak; None if FLOPs or peak are not known."""
        if not self._lasted():
            return None
        done = self._reports[-1].flops - self._reports[0].flops
        return utilisation(done, self._lasted(), self._reports[-1].peak_flops)

    @property
    def by_worker(self) -> dict[str, float]:
        """The rate of each worker between the same reports; empty before the second."""
        if not self._lasted():
            return {}
        few, many = self._reports[0].samples_by_worker, self._reports[-1].samples_by_worker
        return {name: (samples - few.get(name, 0)) / self._lasted() for name, samples in many.items()}

    def _lasted(self) -> float:
        return self._reports[-1].seconds - self._reports[0].seconds if self._reports else 0.0


def workers_text(workers: Mapping[str, str], *, unicode: bool = True) -> Text:
    """Return a dot for each worker, coloured by its state, and the count of each state; no dots above `DOTS`."""
    states = list(workers.values())
    text = Text("workers ", style="dim")
    if len(states) <= DOTS:
        for state in states:
            text.append("●" if unicode else "o", style=_COLOURS.get(state, "yellow"))
        text.append(" ")
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys([*_COLOURS, *states]) if state in states]
    return text.append("  ".join(counts), style="default")


def rates_of_workers(progress: Progress, rate: Rate, width: int) -> Text | None:
    """Return samples per second of each running worker; None with fewer than two workers."""
    known = rate.by_worker
    rates = {name: known.get(name, 0.0) for name, state in progress.workers.items() if state == "running"}
    if len(progress.workers) < 2 or not any(rates.values()):
        return None
    if len(rates) > NAMED:
        return _laid_out("samples/s", [_summed_up("a worker", list(rates.values()), ",.0f")], width)
    digits = max(len(f"{value:,.0f}") for value in rates.values())
    cells = [Text.assemble((f"{name} ", "dim"), f"{value:>{digits},.0f}") for name, value in rates.items()]
    return _laid_out("samples/s", cells, width)


def queues(fill: Mapping[str, float], width: int, *, unicode: bool = True) -> Text | None:
    """Return a bar for the fill of each queue; workers wait for an empty one. None without queues."""
    if not fill:
        return None
    if len(fill) > NAMED:
        return _laid_out("queues", [_summed_up(f"of {len(fill)}", list(fill.values()), ".0%")], width)
    longest = max(map(len, fill))
    cells = [Text.assemble((f"{name:<{longest}} ", "dim"), *_bar(share, unicode)) for name, share in fill.items()]
    return _laid_out("queues", cells, width)


def _bar(share: float, unicode: bool) -> list[tuple[str, str]]:
    done = min(max(share, 0.0), 1.0)
    full = round(done * _BAR)
    line, rest = ("━", "─") if unicode else ("#", "-")
    return [(line * full, "cyan"), (rest * (_BAR - full), "bar.back"), (f" {done:4.0%}", "default")]


def _summed_up(of_what: str, values: list[float], form: str) -> Text:
    low, middle, high = min(values), statistics.median(values), max(values)
    text = Text.assemble((f"{of_what}  ", "dim"))
    for name, value in (("min", low), ("median", middle), ("max", high)):
        text.append(f"{name} ", style="dim").append(f"{value:{form}}{' ' * _GAP if name != 'max' else ''}")
    return text


def _laid_out(label: str, cells: Sequence[Text], width: int) -> Text:
    """Return the cells behind a label, in columns, on as many lines as they need; faster than a table of rich."""
    each = max(cell.cell_len for cell in cells)
    in_line = max((width - _LABEL + _GAP) // (each + _GAP), 1)
    text = Text(f"{label:<{_LABEL}}", style="dim", no_wrap=True, overflow="ellipsis")
    for place, cell in enumerate(cells):
        if place:
            text.append("\n" + " " * _LABEL if place % in_line == 0 else " " * _GAP)
        text.append(Text(style="not dim").append_text(cell))
        text.append(" " * (each - cell.cell_len))
    return text
