"""The figures of a comparison as a table: for the terminal, for text files, and for the page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chimera.report.comparison_names import WORKERS
from chimera.report.units import in_bytes, in_seconds, number, significant

if TYPE_CHECKING:
    from rich.table import Table

_MOST_METRICS = 4
_FIRST_METRICS = ("accuracy", "loss")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its heading, what the heading means, and a text for each row, empty where nothing is known."""

    heading: str
    meaning: str
    texts: list[str]
    is_number: bool = True


def metric_names(comparison: Mapping[str, Any]) -> list[str]:
    """Return the metrics of the rows: those of the target, accuracy and loss first."""
    found = dict.fromkeys(name for row in comparison["rows"] for name in row["metrics"])
    first = [name for name in (*(comparison.get("target") or {}), *_FIRST_METRICS) if name in found]
    return list(dict.fromkeys([*first, *found]))


def columns(comparison: Mapping[str, Any]) -> list[Column]:
    """Return the columns that have something to say, the number and the name of the cell first."""
    rows: Sequence[Row] = comparison["rows"]
    target = comparison.get("target") or {}
    wanted = ", ".join(f"{name} {number(value)}" for name, value in target.items())
    found = [
        Column("#", "the number of the cell in the pictures", [str(i + 1) for i in range(len(rows))]),
        Column("cell", "what varies", [row["cell"] for row in rows], is_number=False),
    ]
    found += [
        *(_metric(name, rows) for name in metric_names(comparison)[:_MOST_METRICS]),
        *(_speed_up(rows, wanted) if target and WORKERS in comparison["varied"] else ()),
        _column("up", "sent by all workers", rows, "bytes_up", in_bytes),
        _column("down", "received by all workers", rows, "bytes_down", in_bytes),
    ]
    for way in ("up", "down"):
        meaning = f"bits of an element of what went {way}, measured"
        found.append(
            _column(f"bits {way}", meaning, rows, f"bits_per_element_{way}", lambda bits: significant(bits, 3))
        )
    meaning = "32 bits an element, over those that were sent up"
    found.append(_column("ratio", meaning, rows, "compression_ratio", _times))
    found += [
        _column("rounds", "updates of the global model", rows, "rounds", lambda value: number(round(value))),
        _seconds("time", "of training", rows, "seconds"),
    ]
    if target:
        found.append(_seconds("to target", f"time until {wanted} on the test set", rows, "seconds_to_target", "never"))
    if len(rows) > 1:
        sooner = "to target" if target else "time"
        found.append(_column("fewer bytes", "up and down, against the baseline", rows, "times_fewer_bytes", _times))
        found.append(_column("sooner", f"{sooner}, against the baseline", rows, "times_sooner", _times))
    found.append(Column("state", "", [_state(row) for row in rows], is_number=False))
    if all(text == "finished" for text in found[-1].texts):
        del found[-1]
    return [found[0], *(column for column in found[1:] if any(column.texts))]


def baseline_told(comparison: Mapping[str, Any]) -> str:
    """Return a sentence that says what ratios are against; nothing where there is one cell."""
    if len(comparison["rows"]) < 2:
        return ""
    if not comparison["varied"]:
        return f"Ratios are against {comparison['rows'][0]['cell']}."
    (key, values), *others = comparison["varied"].items()
    return f"Ratios are against {key} = {values[0]}{', all else equal' if others else ''}."


def as_rich(comparison: Mapping[str, Any]) -> Table:
    """Return the table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    found = columns(comparison)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in found:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_number,
        )
    for texts in zip(*(column.texts for column in found), strict=True):
        table.add_row(*(Text(text) for text in texts))
    return table


def as_text(comparison: Mapping[str, Any]) -> str:
    """Return the table as lines of text, as wide as they are."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=10_000, color_system=None, force_terminal=False).print(as_rich(comparison))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _column(heading: str, meaning: str, rows: Sequence[Row], key: str, write: Any) -> Column:
    return Column(heading, meaning, ["" if row.get(key) is None else write(row[key]) for row in rows])


def _metric(name: str, rows: Sequence[Row]) -> Column:
    texts = []
    for row in rows:
        value, spread = row["metrics"].get(name), row.get("metrics_spread", {}).get(name)
        text = "" if name not in row["metrics"] else "not finite" if value is None else _cell(value)
        texts.append(f"{text} ± {significant(spread, 2)}" if text and spread else text)
    return Column(name.replace("_", " "), "on the test set", texts)


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else number(float(value))


def _speed_up(rows: Sequence[Row], wanted: str) -> list[Column]:
    """Return how many samples each worker read until the target, and how many times fewer that are than of the fewest."""
    keys = ("samples_per_worker_to_target", "speed_up")
    samples, speed_ups = ([row.get(key, "") for row in rows] for key in keys)
    spreads = [row.get("speed_up_spread") for row in rows]
    return [
        Column(
            "samples per worker to target",
            f"until {wanted} on the test set",
            ["never" if value is None else number(round(value)) if value else "" for value in samples],
        ),
        Column(
            "speed-up",
            "times fewer samples per worker to target than with the fewest workers, all else equal",
            [
                f"{_times(value)}{f' ± {significant(spread, 2)}' if spread else ''}" if value else ""
                for value, spread in zip(speed_ups, spreads, strict=True)
            ],
        ),
    ]


def _seconds(heading: str, meaning: str, rows: Sequence[Row], key: str, none: str = "") -> Column:
    """Return a column of durations; virtual ones are marked where there are real ones as well."""
    mixed = len({row["virtual"] for row in rows}) > 1
    all_virtual = not mixed and bool(rows[0]["virtual"])
    texts = []
    for row in rows:
        value, spread = row.get(key), row.get(f"{key}_spread")
        text = (none if row["state"] == "finished" else "") if value is None else in_seconds(value)
        text += f" ± {in_seconds(spread)}" if value is not None and spread else ""
        texts.append(f"{text} v" if mixed and row["virtual"] and value is not None else text)
    virtual = "virtual " if all_virtual and heading == "time" else ""
    return Column(f"{virtual}{heading}", f"{meaning}{', virtual' if all_virtual else ''}", texts)


def _state(row: Row) -> str:
    state = str(row["state"])
    return f"{state}: {row['error']}" if row.get("error") else state


def _times(value: float) -> str:
    return f"{significant(value, 3)}×"
