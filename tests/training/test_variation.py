"""The grammar of ``--vary``."""

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.training.comparison.grid import grid_of
from chimera.training.comparison.variation import read_variations, split
from chimera.training.experiment.experiment import Experiment

WORDS = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
OPTIONS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
PLAIN = NUMBERS | TEXTS
VALUES = PLAIN | st.lists(PLAIN, max_size=3)
PLUGINS = st.tuples(WORDS, st.dictionaries(OPTIONS, VALUES, max_size=3))


def written(value: object) -> str:
    """Return a TOML value; JSON is valid TOML for the values drawn here."""
    return json.dumps(value, ensure_ascii=False)


def experiment(**tables: object) -> Experiment:
    return Experiment({"data": "digits", "model": "mlp", **tables}, "small.toml")


@given(key=st.sampled_from(["codec", "strategy", "engine"]), plugins=st.lists(PLUGINS, min_size=1, max_size=4))
def test_variations_written_by_the_grammar_are_parsed(key, plugins):
    text = ",".join(":".join([name, *(f"{k}={written(v)}" for k, v in options.items())]) for name, options in plugins)
    (variation,) = read_variations([f"{key}={text}"])
    assert variation.key == key
    read = [(choice.value, dict(choice.options or {})) for choice in variation.choices]
    assert read == [(name if not_a_value(name) else read[i][0], options) for i, (name, options) in enumerate(plugins)]


def not_a_value(name: str) -> bool:
    return name not in ("true", "false", "inf", "nan")


@given(values=st.lists(VALUES, min_size=1, max_size=5))
def test_values_of_other_keys_are_toml(values):
    (variation,) = read_variations([f"train.batch_size={','.join(map(written, values))}"])
    assert [choice.value for choice in variation.choices] == values
    assert all(choice.options is None for choice in variation.choices)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_rejected(text):
    with contextlib.suppress(ConfigurationError):
        read_variations([text])


@given(st.lists(st.text(st.characters(exclude_characters="\"'[]{}(),"), max_size=6), min_size=1))
def test_splitting_inverts_joining(parts):
    assert split(",".join(parts), ",") == parts


def test_a_plain_name_stays_a_string_and_a_name_with_options_becomes_a_table_below_other_keys_too():
    (variation,) = read_variations(["train.optimizer=sgd,adam:lr=0.01,{name='sgd',lr=0.1}"])
    cells = grid_of(experiment(), [variation])
    optimizers = [cell.experiment.tables["train"]["optimizer"] for cell in cells]
    assert optimizers == ["sgd", {"name": "adam", "lr": 0.01}, {"name": "sgd", "lr": 0.1}]


def test_options_extend_those_of_the_same_plug_in_only():
    given = experiment(strategy={"name": "parameter-server", "shards": 2, "quorum": 0.5})
    cells = grid_of(given, read_variations(["strategy=parameter-server,parameter-server:shards=3,fed-buff:buffer=2"]))
    assert [dict(cell.experiment.tables["strategy"]) for cell in cells] == [
        {"name": "parameter-server", "shards": 2, "quorum": 0.5},
        {"name": "parameter-server", "shards": 3, "quorum": 0.5},
        {"name": "fed-buff", "buffer": 2},
    ]


def test_keys_of_engine_tables_may_omit_the_table():
    cells = grid_of(experiment(engine="simulated"), read_variations(["engine.bandwidth_bytes_s=12.5e6,125e6"]))
    assert [cell.experiment.tables["engine"]["network"]["bandwidth_bytes_s"] for cell in cells] == [12.5e6, 125e6]
    assert cells[0].label == "bandwidth_bytes_s=12.5e6"


def test_a_factory_in_a_file_is_a_name_with_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (cell,) = grid_of(experiment(), read_variations(["codec=mine.py:Codec:levels=4"]))
    assert cell.experiment.tables["codec"] == {"name": f"{tmp_path / 'mine.py'}:Codec", "levels": 4}


def test_the_grid_is_the_ordered_product_with_unique_folder_names():
    vary = {
        "strategy": ["parameter-server", "all-reduce"],
        "train.batch_size": [16, 32],
        "model": ["mlp:hidden=[8, 8]"],
    }
    cells = grid_of(experiment(), read_variations(vary), seeds=[1, 2])
    assert [(cell.settings["strategy"], cell.settings["train.batch_size"], cell.seed) for cell in cells] == [
        (strategy, size, seed)
        for strategy in ("parameter-server", "all-reduce")
        for size in ("16", "32")
        for seed in (1, 2)
    ]
    assert len({cell.name for cell in cells}) == 8
    assert all(re.fullmatch(r"[\w.=+,-]+", cell.name) for cell in cells)
    assert cells[0].experiment.tables["train"] == {"batch_size": 16, "seed": 1}


def test_seeds_and_repetitions_exclude_each_other():
    with pytest.raises(ConfigurationError, match=r"--repeat sets train\.seed, so --vary cannot vary it"):
        grid_of(experiment(), read_variations(["train.seed=1,2"]), seeds=[0, 1])


def test_keys_with_one_last_part_are_told_apart_in_labels_and_folders():
    vary = [
        "train.optimizer.lr=0.1",
        "strategy.server_optimizer.lr=0.2",
        "train.seed=3",
        "data.seed=4",
        "train.epochs=5",
    ]
    (cell,) = grid_of(experiment(strategy="fed-avg"), read_variations(vary))
    assert cell.label == "optimizer.lr=0.1 · server_optimizer.lr=0.2 · train.seed=3 · data.seed=4 · epochs=5"
    assert cell.name == "optimizer.lr=0.1--server_optimizer.lr=0.2--train.seed=3--data.seed=4--epochs=5"


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=4, unique=True))
def test_folder_names_are_portable(names):
    cells = grid_of(experiment(), read_variations({"train.name": names}))
    assert len({cell.name.lower() for cell in cells}) == len(names)
    assert all(re.fullmatch(r"[\w=+,][\w.=+,-]{0,130}", cell.name, re.ASCII) for cell in cells)


def test_objects_can_vary_too():
    first, second = object(), object()
    cells = grid_of(experiment(), read_variations({"codec": ["identity", first, second]}))
    assert [cell.experiment.tables["codec"] for cell in cells] == [{"name": "identity"}, first, second]


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        (["codec"], "write KEY=VALUE,VALUE"),
        (["codec="], "write KEY=VALUE,VALUE"),
        (["=identity"], "write KEY=VALUE,VALUE"),
        (["codec=identity,,identity"], "a value is missing"),
        (["model=mlp:hidden=[8,16"], "']' is missing"),
        (["model=mlp:hidden=8]"], "']' closes nothing"),
        (["model=mlp:activation='tanh"], '"\'" is missing'),
        (["codec=identity", "codec=identity"], "'codec' is given twice"),
        (["codec=identity,identity"], "the same cell"),
        (["train.batch_size=64,16,64"], "the same cell"),
        (["codec=identity:a=1:a=2"], "'a' of 'identity' is given twice"),
        (["codec=identity:a=1:b"], "'b' is no option of 'identity'"),
        (["codec=3:a=1"], "'3' is not the name of a plug-in"),
        (["codek=identity"], "there is no table [codek]; did you mean 'codec'?"),
        (["codek.a=1"], "there is no table [codek]; did you mean 'codec'?"),
        (["epochs=1,2"], "'epochs' belongs to the table [train]: train.epochs"),
        (["train.epoch=1,2"], "[train] has no key 'epoch'; did you mean 'epochs'?"),
        ({"codec": "identity"}, "is not a list of values"),
        ({"codec": []}, "the list of values is empty"),
        ([3], "3 cannot be used"),
    ],
    ids=str,
)
def test_an_invalid_variation_is_named(vary, said):
    with pytest.raises(ConfigurationError) as caught:
        grid_of(experiment(), read_variations(vary))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
