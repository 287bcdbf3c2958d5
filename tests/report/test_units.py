from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.report.units import (
    bytes_unit,
    in_bytes,
    in_seconds,
    linear_ticks,
    log_ticks,
    number,
    significant,
    tick_labels,
    time_unit,
)

POSITIVE = st.floats(1e-6, 1e12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0 s"),
        (2.5e-6, "2.5 µs"),
        (0.158, "158 ms"),
        (12.34, "12.3 s"),
        (179.6, "180 s"),
        (245, "4 min 05 s"),
        (7800, "2 h 10 min"),
        (86400 * 2, "48 h 00 min"),
    ],
)
def test_durations(value, shown):
    assert in_seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0 B"), (999, "999 B"), (4000, "4 kB"), (1.234e9, "1.23 GB"), (5e15, "5,000 TB")]
)
def test_amounts_of_data(value, shown):
    assert in_bytes(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (60000, "60,000"),
        (0.95444, "0.9544"),
        (1234567.8, "1,234,568"),
        (0.5, "0.5"),
        (1e-7, "1e-7"),
        (True, "True"),
        (float("nan"), "not finite"),
        ("epochs", "epochs"),
        (0.0, "0"),
    ],
)
def test_numbers(value, shown):
    assert number(value) == shown


@given(POSITIVE)
def test_a_formatted_number_equals_the_number_up_to_its_digits(value):
    assert float(significant(value, 4).replace(",", "")) == pytest.approx(value, rel=6e-4)


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e9), st.integers(3, 12))
def test_ticks_are_few_evenly_spaced_within_the_axis_and_have_different_labels(low, length, most):
    ticks = linear_ticks(low, low + length, most)
    assert 1 <= len(ticks) <= most
    tolerance = 1e-6 * length + 1e-9 * abs(low)
    assert all(low - tolerance <= tick <= low + length + tolerance for tick in ticks)
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps) if steps else [], rel=1e-3)
    assert len(tick_labels(ticks)) == len(ticks)


@given(st.floats(1e-12, 1e6), st.floats(1.3, 1e30), st.integers(4, 10))
def test_ticks_of_a_logarithmic_axis_are_few_and_ascending(low, ratio, most):
    ticks = log_ticks(low, low * ratio, most)
    assert len(ticks) <= most
    assert ticks == sorted(ticks)


def test_ticks_of_a_count_are_whole_numbers():
    assert linear_ticks(0, 1.02, 6, whole=True) == [0, 1]
    assert linear_ticks(0, 1.02, 6) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert linear_ticks(0, 12, 6, whole=True) == [0, 5, 10]


def test_tick_labels_share_their_decimals():
    assert tick_labels([0.5, 1.0, 1.5]) == ["0.5", "1.0", "1.5"]
    assert tick_labels([0, 10000, 20000]) == ["0", "10,000", "20,000"]
    assert tick_labels([0, 1e-6, 2e-6]) == ["0", "1e-6", "2e-6"]


def test_an_axis_unit_leaves_readable_ticks():
    assert time_unit(90)[1] == "s"
    assert time_unit(1000)[1] == "min"
    assert time_unit(0)[1] == "s"
    assert bytes_unit(2.5e6) == (1e6, "MB")
