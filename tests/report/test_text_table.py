"""Tables fit the terminal: no text is truncated, and the least important columns are left out and named."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from chimera.report.text_table import FILE_INSTEAD, Figures, TextColumn, TextTable
from terminal_kit import WIDTHS, check_table, lines_at, lines_in_pipe

FIGURES = TextTable(
    [
        TextColumn("cell", ["parameter-server", "all-reduce"]),
        *(
            TextColumn(name, ["12.5 kB", "1.25 MB"], importance, is_number=True)
            for importance, name in enumerate(("accuracy", "to target", "up", "fewer bytes", "rounds", "bits down"), 1)
        ),
    ]
)


@pytest.mark.parametrize("width", [*WIDTHS, 40, 30])
def test_columns_that_do_not_fit_are_left_out_by_importance_and_named(width: int) -> None:
    lines = lines_at(width, FIGURES)
    check_table(lines, FIGURES)
    assert ("not shown" in "".join(lines)) == (width < 80)


def test_columns_that_are_left_out_are_named_in_a_dim_line_with_advice() -> None:
    lines = lines_at(50, FIGURES)
    assert " ".join(lines[3:]) == "not shown: fewer bytes, rounds, bits down; widen the terminal or use --json "


def test_a_heading_may_take_two_lines_and_is_never_truncated() -> None:
    lines = lines_at(54, FIGURES)
    assert re.search(r"\bto +fewer\b", lines[0])
    assert re.search(r"\btarget +\w+ +bytes\b", lines[1])


def test_a_long_text_is_below_its_row_and_changes_no_other() -> None:
    reason = "ValueError: " + "the layer has 784 inputs and the data 64, " * 6
    rows = [TextColumn("job", ["1", "2", "3"]), TextColumn("state", ["done", "failed", "queued"], 1)]
    table = TextTable([*rows, TextColumn("reason", ["", reason, ""], 2, long=True)])
    lines = lines_at(80, table)
    assert lines[:3] == ["job  state", "1    done", "2    failed"]
    assert lines[3].startswith("    reason: ValueError: the layer")
    assert " ".join(" ".join(lines[3:-2]).split()) == f"reason: {reason}".strip()
    assert lines[-2] == "3    queued"
    short = TextTable([*rows, TextColumn("reason", ["", "no room", ""], 2, long=True)])
    assert [line.rstrip() for line in lines_at(80, short)][:3] == [
        "job  state   reason",
        "1    done",
        "2    failed  no room",
    ]


def test_a_pipe_receives_all_columns_with_one_line_per_row() -> None:
    reason = "the reason " * 40
    table = TextTable([*FIGURES.columns, TextColumn("reason", ["", reason], 9, long=True)])
    heading, first, second = lines_in_pipe(table)
    assert re.split("  +", heading) == [column.heading for column in table.columns]
    assert second.endswith(reason.strip())
    assert re.split("  +", first)[:2] == ["parameter-server", "12.5 kB"]


@given(
    width=st.integers(20, 160),
    name=st.text(st.sampled_from("abc=.-· "), min_size=1, max_size=120).filter(str.strip),
    figures=st.lists(st.sampled_from(["1", "12.5 kB", "3 min 05 s", "0.9512 ± 0.0013"]), min_size=1, max_size=12),
)
def test_no_line_is_too_long_and_no_key_loses_a_character_at_any_width(
    width: int, name: str, figures: list[str]
) -> None:
    columns = [TextColumn(f"figure {i}", [text], i + 1, is_number=True) for i, text in enumerate(figures)]
    lines = lines_at(width, TextTable([TextColumn("cell", [name]), *columns]))
    remaining = iter("".join(lines))
    assert all(character in remaining for character in name if character != " ")  # in this order


def test_a_key_that_takes_most_of_the_line_is_wrapped_between_its_words() -> None:
    name = "top-k:ratio=0.01:error_feedback=true · bandwidth_bytes_s=1.25e+07"
    lines = lines_at(80, TextTable([TextColumn("cell", [name]), *FIGURES.columns[1:]]))
    assert {"top-k:ratio=0.01:error_feedback=true", "bandwidth_bytes_s=1.25e+07"} <= set(" ".join(lines).split())
    assert "accuracy" in " ".join(lines)


def test_figures_side_by_side_break_between_and_never_within() -> None:
    parts = ["up 300.0 MB", "down 360.0 MB", "bits per element: up 3.2"]
    lines = lines_at(30, Figures(parts))
    assert [part for part in parts if any(part in line for line in lines)] == parts
    assert lines_at(80, Figures(parts))[0] == "  ".join(parts)


def test_control_characters_of_a_table_do_not_reach_the_terminal() -> None:
    lines = lines_at(80, TextTable([TextColumn("job", ["a\x1b[2Jb\nc"]), TextColumn("state", [Text("done")], 1)]))
    assert lines[1] == "a [2Jb c  done"


def test_a_command_without_json_gives_other_advice() -> None:
    lines = lines_at(50, TextTable(FIGURES.columns, instead=FILE_INSTEAD))
    assert " ".join(lines).rstrip().endswith("widen the terminal or write to a file")
