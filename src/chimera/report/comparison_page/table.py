"""The results of a comparison as a table: for the terminal, for text files, and for the HTML page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chimera.report.comparison_page.names import WORKERS
from chimera.report.safe_text import safe_text
from chimera.report.units import clock, in_bytes, in_seconds, number, significant

if TYPE_CHECKING:
    from chimera.report.text_table import TextTable

_METRICS = (2, 6, 12, 12)  # importance of the first metrics; others are left out
_FIRST_METRICS = ("accuracy", "loss")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes
    ----------
    heading : heading of the column.
    meaning : explanation of the heading.
    texts : one for each row; empty if unknown.
    importance : as in `TextColumn`: columns with larger numbers are left out first on a narrow terminal.
    """

    heading: str
    meaning: str
    texts: list[str]
    importance: int
    is_number: bool = True
    long: bool = False


def metric_names(comparison: Mapping[str, Any]) -> list[str]:
    """Return the metrics of the rows: those of the target, accuracy and loss first."""
    found = dict.fromkeys(name for row in comparison["rows"] for name in row["metrics"])
    first = [name for name in (*(comparison.get("target") or {}), *_FIRST_METRICS) if name in found]
    return list(dict.fromkeys([*first, *found]))


def columns(comparison: Mapping[str, Any]) -> list[Column]:
    """Return the columns that are not empty; number and name of the cell come first."""
    rows: Sequence[Row] = comparison["rows"]
    target = comparison.get("target") or {}
    wanted = ", ".join(f"{name} {number(value)}" for name, value in target.items())
    found = [
        Column("#", "the number of the cell in the charts", [str(i + 1) for i in range(len(rows))], 0),
        Column("cell", "the settings that vary", [row["cell"] for row in rows], 0, is_number=False),
        *(_metric(name, rows, _METRICS[place]) for place, name in enumerate(metric_names(comparison)[: len(_METRICS)])),
        *(_speed_up(rows, wanted) if target and WORKERS in comparison["varied"] else ()),
        _column("up", "sent by all workers", rows, "bytes_up", in_bytes, 7),
        _column("down", "received by all workers", rows, "bytes_down", in_bytes, 11),
    ]
    for direction, importance in (("up", 15), ("down", 16)):
        meaning = f"measured bits per element sent {direction}"
        found.append(
            _column(
                f"bits {direction}",
                meaning,
                rows,
                f"bits_per_element_{direction}",
                lambda bits: significant(bits, 3),
                importance,
            )
        )
    meaning = "32 bits per element, divided by the bits per element sent up"
    found.append(_column("ratio", meaning, rows, "compression_ratio", _times, 13))
    found += [
        _column("rounds", "updates of the global model", rows, "rounds", lambda value: number(round(value)), 14),
        _seconds("time", "of training", rows, "seconds", 5),
    ]
    if target:
        found.append(_seconds("to target", f"until {wanted} on the test set", rows, "seconds_to_target", 3, "never"))
    if len(rows) > 1:
        sooner = "to target" if target else "time"
        found.append(_column("fewer bytes", "up and down, against the baseline", rows, "times_fewer_bytes", _times, 8))
        found.append(_column("sooner", f"{sooner}, against the baseline", rows, "times_sooner", _times, 9))
    states = [str(row["state"]) for row in rows]
    if any(state != "finished" for state in states):
        found.append(Column("state", "", states, 1, is_number=False))
    found.append(Column("error", "", [row.get("error") or "" for row in rows], 17, is_number=False, long=True))
    return [found[0], *(column for column in found[1:] if any(column.texts))]


def baseline_note(comparison: Mapping[str, Any]) -> str:
    """Return a sentence that names the baseline of ratios; empty if there is only one cell."""
    if len(comparison["rows"]) < 2:
        return ""
    if not comparison["varied"]:
        return f"Ratios are relative to {comparison['rows'][0]['cell']}."
    (key, values), *others = comparison["varied"].items()
    return f"Ratios are relative to {key} = {values[0]}{', all else equal' if others else ''}."


def as_rich(comparison: Mapping[str, Any]) -> TextTable:
    """Return the table for a terminal."""
    from chimera.report.text_table import TextColumn, TextTable

    return TextTable(
        [
            TextColumn(column.heading, column.texts, column.importance, long=column.long, is_number=column.is_number)
            for column in columns(comparison)
        ]
    )


def as_text(comparison: Mapping[str, Any]) -> str:
    """Return the table as lines of text, without a limit on their width."""
    from rich.console import Console

    from chimera.report.text_table import print_table

    text = io.StringIO()
    # In a notebook rich would display the table itself, and write nothing to the file.
    console = Console(file=text, color_system=None, force_terminal=False, force_jupyter=False)
    print_table(as_rich(comparison), console)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_html(comparison: Mapping[str, Any]) -> str:
    """Return the table as HTML for notebooks, with a tooltip on each heading."""
    found = columns(comparison)
    head = "".join(f'<th title="{safe_text(each.meaning)}">{safe_text(each.heading)}</th>' for each in found)
    lines = (
        "".join(f"<td>{safe_text(each.texts[place])}</td>" for each in found)
        for place in range(len(comparison["rows"]))
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    note = safe_text(baseline_note(comparison))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{note}</p>"


def _column(heading: str, meaning: str, rows: Sequence[Row], key: str, write: Any, importance: int) -> Column:
    return Column(heading, meaning, ["" if row.get(key) is None else write(row[key]) for row in rows], importance)


def _metric(name: str, rows: Sequence[Row], importance: int) -> Column:
    texts = []
    for row in rows:
        value, spread = row["metrics"].get(name), row.get("metrics_spread", {}).get(name)
        text = "" if name not in row["metrics"] else "not finite" if value is None else _cell(value)
        texts.append(f"{text} ± {significant(spread, 2)}" if text and spread else text)
    return Column(name.replace("_", " "), "on the test set", texts, importance)


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else number(float(value))


def _speed_up(rows: Sequence[Row], wanted: str) -> list[Column]:
    """Return the columns of samples per worker to the target and of the speed-up over the fewest workers."""
    keys = ("samples_per_worker_to_target", "speed_up")
    samples, speed_ups = ([row.get(key, "") for row in rows] for key in keys)
    spreads = [row.get("speed_up_spread") for row in rows]
    return [
        Column(
            "samples per worker to target",
            f"until {wanted} on the test set",
            ["never" if value is None else number(round(value)) if value else "" for value in samples],
            10,
        ),
        Column(
            "speed-up",
            "times fewer samples per worker to target than with the fewest workers, all else equal",
            [
                f"{_times(value)}{f' ± {significant(spread, 2)}' if spread else ''}" if value else ""
                for value, spread in zip(speed_ups, spreads, strict=True)
            ],
            4,
        ),
    ]


def _seconds(heading: str, meaning: str, rows: Sequence[Row], key: str, importance: int, none: str = "") -> Column:
    """Return a column of durations. If all are virtual, the heading states it; if only some are, their texts do."""
    virtual = [bool(row["virtual"]) for row in rows]
    texts = []
    for row in rows:
        value, spread = row.get(key), row.get(f"{key}_spread")
        text = (none if row["state"] == "finished" else "") if value is None else in_seconds(value)
        text += f" ± {in_seconds(spread)}" if value is not None and spread else ""
        marked = row["virtual"] and not all(virtual) and value is not None
        texts.append(f"{text} virtual" if marked else text)
    heading = heading if not all(virtual) else "virtual time" if heading == "time" else f"{heading} (virtual)"
    return Column(heading, f"{clock(*virtual)} {meaning}", texts, importance)


def _times(value: float) -> str:
    return f"{significant(value, 3)}×"
