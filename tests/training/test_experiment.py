"""Tests of experiment files: they are complete, can be written again, and give one-line errors."""

import inspect
import tomllib
from pathlib import Path

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError
from chimera.training.experiment.experiment import PLUGINS, TABLES, Experiment
from chimera.training.trainer import Trainer

FILE = """
strategy = "all-reduce"

[data]
name = "digits"

[model]
name = "mlp"
hidden = [8]

[train]
workers = 2
rounds = 3
optimizer = "sgd"

[codec]
name = "identity"

[codec.downlink]
name = "identity"
"""
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment.load(write(tmp_path, FILE))


def test_a_plain_name_is_read_as_a_table_with_that_name(experiment):
    assert experiment.tables["strategy"] == {"name": "all-reduce"}


def test_sub_tables_are_options(experiment):
    assert experiment.tables["codec"] == {"name": "identity", "downlink": {"name": "identity"}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_written_experiment_is_complete_and_reads_back_equal(path, tmp_path):
    experiment = Experiment.load(path)
    written = experiment.to_toml()
    again = Experiment.load(write(tmp_path, written))
    assert again.to_toml() == written
    for name, table in experiment.tables.items():
        assert again.tables[name].items() >= table.items()
    defaults = inspect.signature(Trainer).parameters
    for key in ("workers", "batch_size", "seed"):
        assert again.tables["train"][key] == experiment.tables["train"].get(key, defaults[key].default)
    assert set(again.tables) >= {name for name in PLUGINS if isinstance(defaults[name].default, str)}


def test_trainer_arguments_and_a_file_give_the_same_experiment(experiment):
    of = Experiment.of(
        data="digits",
        model={"name": "mlp", "hidden": [8]},
        strategy="all-reduce",
        codec={"name": "identity", "downlink": {"name": "identity"}},
        workers=2,
        rounds=3,
        epochs=None,
        optimizer="sgd",
        resume=True,
    )
    assert of.tables == experiment.tables


def test_an_importable_function_is_written_by_its_name_and_another_object_as_a_comment():
    experiment = Experiment.of(data="digits", model=write, engine=object())
    assert experiment.tables["model"] == {"name": f"{write.__module__}:write"}
    assert "# [engine] was a Python object" in experiment.to_toml()
    assert "engine" not in tomllib.loads(experiment.to_toml())


def test_numpy_scalars_are_written_as_numbers():
    of = Experiment.of(data="digits", model="mlp", workers=np.int64(3), target={"accuracy": np.float32(0.5)})
    assert of.tables["train"] == {"workers": 3, "target": {"accuracy": 0.5}}


@pytest.mark.parametrize(
    ("setting", "table", "expected"),
    [
        ("strategy.quorum=0.5", "strategy", {"name": "all-reduce", "quorum": 0.5}),
        ("strategy = parameter-server", "strategy", {"name": "parameter-server"}),
        ("strategy=all-reduce", "strategy", {"name": "all-reduce"}),
        ('model.name="cnn"', "model", {"name": "cnn", "hidden": [8]}),
        ("model.hidden=[16, 16]", "model", {"name": "mlp", "hidden": [16, 16]}),
        ("model=cnn", "model", {"name": "cnn"}),
        ("model=mlp", "model", {"name": "mlp", "hidden": [8]}),
        ("engine.network.latency_s=1e-3", "engine", {"name": "local", "network": {"latency_s": 1e-3}}),
        ("codec.downlink=none", "codec", {"name": "identity", "downlink": "none"}),
        ("model.bias=False", "model", {"name": "mlp", "hidden": [8], "bias": False}),
        ("model.bias=True", "model", {"name": "mlp", "hidden": [8], "bias": True}),
        ("strategy.quorum=.5", "strategy", {"name": "all-reduce", "quorum": 0.5}),
        ("strategy.quorum=-2.e-3", "strategy", {"name": "all-reduce", "quorum": -0.002}),
        ("data.note=.", "data", {"name": "digits", "note": "."}),
        ("data.note=1.5.2", "data", {"name": "digits", "note": "1.5.2"}),
        ("data.note=a=b", "data", {"name": "digits", "note": "a=b"}),
    ],
)
def test_settings_change_one_value(experiment, setting, table, expected):
    changed = experiment.with_settings([setting])
    assert changed.tables[table] == expected
    assert {k: v for k, v in changed.tables.items() if k != table} == {
        k: v for k, v in experiment.tables.items() if k != table
    }


def test_settings_of_train_can_be_set_and_later_settings_win(experiment):
    train = experiment.with_settings(
        ["train.workers=3", "train.optimizer.lr=0.5", "train.target.accuracy=0.9", "train.workers=4"]
    ).tables["train"]
    assert train["workers"] == 4
    assert train["optimizer"] == {"name": "sgd", "lr": 0.5}
    assert train["target"] == {"accuracy": 0.9}


def test_an_option_of_the_default_optimizer_can_be_set_where_the_file_names_none(tmp_path):
    bare = Experiment.load(write(tmp_path, FILE.replace('optimizer = "sgd"', "")))
    changed = bare.with_settings(["train.optimizer.lr=0.5"])
    assert changed.trainer(out=tmp_path / "run").optimizers == "optimizer: adam (lr 0.5) on workers"


def test_settings_do_not_change_the_original_experiment(experiment):
    before = experiment.to_toml()
    experiment.with_settings(["codec.downlink.name=x", "train.workers=7"])
    assert experiment.to_toml() == before


def test_a_key_of_an_engine_table_may_omit_the_table(experiment):
    fast = experiment.with_settings(["engine=simulated", "engine.bandwidth_bytes_s=1e9", "engine.seed=2"])
    assert fast.tables["engine"] == {"name": "simulated", "network": {"bandwidth_bytes_s": 1e9}, "seed": 2}


def test_changing_the_engine_drops_its_options(experiment):
    slow = experiment.with_settings(["engine=simulated", "engine.network.latency_s=1.0"])
    assert slow.with_table("engine", "simulated").tables["engine"]["network"] == {"latency_s": 1.0}
    assert slow.with_table("engine", "local").tables["engine"] == {"name": "local"}


def test_relative_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    text = FILE.replace(
        'name = "digits"',
        'name = "csv"\npath = "data/x.csv"\ntest_path = "/y.csv"\ncache_path = "s3://b/z"\nlog_path = ["a", "/b"]',
    )
    text = text.replace('strategy = "all-reduce"', 'strategy = { name = "fed-avg", aggregation = "rules.py:Rule" }')
    text = text.replace('optimizer = "sgd"', 'optimizer = { name = "steps.py:Own", lr = 0.1 }')
    path = write(tmp_path, text.replace('name = "mlp"', 'name = "nets.py:build"'))
    monkeypatch.chdir(tmp_path.parent)
    tables = Experiment.load(path.relative_to(tmp_path.parent)).tables
    assert tables["data"]["path"] == str(tmp_path / "data/x.csv")
    assert tables["data"]["test_path"] == "/y.csv"
    assert tables["data"]["cache_path"] == "s3://b/z"
    assert tables["data"]["log_path"] == [str(tmp_path / "a"), "/b"]
    assert tables["model"]["name"] == f"{tmp_path / 'nets.py'}:build"
    assert tables["strategy"]["aggregation"] == f"{tmp_path / 'rules.py'}:Rule"
    assert tables["train"]["optimizer"] == {"name": f"{tmp_path / 'steps.py'}:Own", "lr": 0.1}


def test_a_path_may_be_a_name_of_the_hub_where_no_file_has_this_name(tmp_path):
    (tmp_path / "org" / "here").mkdir(parents=True)
    text = FILE.replace('name = "digits"', 'name = "csv"\npath = "org/there"')
    for path, wanted in (
        ("org/here", str(tmp_path / "org/here")),
        ("org/there", "org/there"),
        ("a/b/c", str(tmp_path / "a/b/c")),
    ):
        own = f'name = "huggingface"\ntask = "causal-lm"\npath = "{path}"\ntokenizer = "{path}"'
        tables = Experiment.load(write(tmp_path, text.replace('name = "mlp"\nhidden = [8]', own))).tables
        assert (tables["model"]["path"], tables["model"]["tokenizer"]) == (wanted, wanted)
        assert tables["data"]["path"] == str(tmp_path / "org/there")


def test_relative_paths_on_the_command_line_are_relative_to_the_working_directory(experiment, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert experiment.with_settings(["data.path=x.csv"]).tables["data"]["path"] == str(tmp_path / "here/x.csv")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rounds = 3", "round = 3"), "[train] has no key 'round'; did you mean 'rounds'? keys: "),
        (("rounds = 3", "lr = 0.1"), "[train] has no key 'lr': set train.optimizer.lr"),
        (("rounds = 3", 'loss = "mse"'), "[train] has no key 'loss': set model.loss"),
        (("rounds = 3", "callbacks = 3"), "[train] has no key 'callbacks'"),
        (("workers = 2", 'workers = "two"'), "[train] workers = 'two' cannot be used: Expected int, got str"),
        (("[codec]\n", "[codecs]\n"), "there is no table [codecs]; did you mean 'codec'? tables: data, model, train"),
        (("strategy =", "workers ="), "'workers' belongs to the table [train]: train.workers"),
        (('name = "digits"', ""), '[data] needs name = "...", a string; found nothing'),
        (('name = "digits"', "name = 3"), '[data] needs name = "...", a string; found 3'),
        (('"all-reduce"', "3"), "strategy = 3 is neither a name nor a table"),
        (('[model]\nname = "mlp"\nhidden = [8]', ""), "the table [model] is missing"),
        (("workers = 2", "workers 2"), ":12:9: not valid TOML: "),
        (("hidden = [8]", "hidden = [8"), ": not valid TOML: "),
    ],
)
def test_an_error_names_the_file_and_the_allowed_values(tmp_path, change, said):
    assert change[0] in FILE
    path = write(tmp_path, FILE.replace(*change, 1))
    with pytest.raises(ConfigurationError) as caught:
        Experiment.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert said in message
    assert "\n" not in message


def test_truncated_toml_names_its_last_line(tmp_path):
    path = write(tmp_path, 'strategy = """\nall\nreduce')
    with pytest.raises(ConfigurationError, match=r"experiment\.toml:3:7: not valid TOML"):
        Experiment.load(path)


def test_a_missing_or_binary_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there is no experiment file '.*absent\.toml'"):
        Experiment.load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"binary\.toml' cannot be read"):
        Experiment.load(tmp_path / "binary.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Experiment.load(tmp_path)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("strategy.shards", "write KEY=VALUE, such as strategy.shards=2"),
        ("=3", "write KEY=VALUE"),
        ("strategy..shards=3", "write KEY=VALUE"),
        ("epochs=3", "'epochs' belongs to the table [train]: train.epochs"),
        ("stategy.shards=3", "there is no table [stategy]; did you mean 'strategy'?"),
        ("train.workers.x=3", "train.workers is not a table"),
        ("train.epoch=3", "did you mean 'epochs'?"),
        ("data.drop=[id,city]", "--set 'data.drop=[id,city]': '[id,city]' is not valid TOML: write texts in quotes"),
        ("model.hidden=[64", "is not valid TOML"),
        ("train.workers=many", "workers = 'many' cannot be used: Expected int, got str"),
    ],
)
def test_an_invalid_setting_is_named(experiment, setting, said):
    with pytest.raises(ConfigurationError) as caught:
        experiment.with_settings([setting])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tables_match_the_architecture():
    assert set(TABLES) == {*PLUGINS, "train"}
    assert set(PLUGINS) <= set(inspect.signature(Trainer).parameters)
