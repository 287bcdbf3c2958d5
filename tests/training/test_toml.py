"""The standard library's reader inverts the TOML writer."""

import json
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chimera.training.experiment.toml import dump_toml

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.dates(),
    st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=0)),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
documents = st.dictionaries(st.text(), st.dictionaries(st.text(), values, max_size=4), max_size=4)


@given(documents)
def test_reading_inverts_writing(tables):
    assert tomllib.loads(dump_toml(tables)) == tables


def test_numpy_scalars_and_paths_are_written_as_plain_values():
    written = dump_toml(
        {"t": {"lr": np.float64(0.1), "n": np.int64(3), "x": np.float32(0.5), "p": Path("a/b"), "l": (1, 2)}}
    )
    assert tomllib.loads(written) == {"t": {"lr": 0.1, "n": 3, "x": 0.5, "p": "a/b", "l": [1, 2]}}


def test_nan_is_written_and_read():
    assert np.isnan(tomllib.loads(dump_toml({"t": {"x": float("nan")}}))["t"]["x"])


def test_values_that_toml_cannot_hold_become_comments():
    written = dump_toml({"model": object(), "train": {"optimizer": print, "seed": 1, "day": date(2020, 1, 2)}})
    assert tomllib.loads(written) == {"train": {"seed": 1, "day": date(2020, 1, 2)}}
    assert "[model] was a Python object of type builtins.object" in written
    assert "optimizer was a Python object" in written


def test_none_is_left_out():
    assert tomllib.loads(dump_toml({"t": {"a": None, "b": {"c": None}}})) == {"t": {"b": {}}}


def test_the_timezone_is_kept():
    moment = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert tomllib.loads(dump_toml({"t": {"x": moment}}))["t"]["x"] == moment


def test_keys_that_are_numbers_become_texts_as_in_json():
    tables = {"model": {"config": {"id2label": {0: "no", 1: "yes"}, "sizes": [{2: 3}]}}}
    assert tomllib.loads(dump_toml(tables)) == json.loads(json.dumps(tables))
