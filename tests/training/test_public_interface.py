"""Tests of all documented kinds of data, hooks and outputs, through the public interface."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDClassifier

import chimera
from chimera.core.errors import ConfigurationError, DataError, RunError
from chimera.data.dataset import Dataset
from chimera.data.split import Split

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"], index=RNG.permutation(80) + 1000).assign(
    label=np.array(["no", "yes"])[Y]
)


def fit(folder: Path, data: Any, model: Any = "mlp", **options: Any) -> chimera.Run:
    given: dict[str, Any] = {"engine": "simulated", "workers": 2, "batch_size": 8, "rounds": 4, "out": folder / "run"}
    return chimera.train(model, data, **given | options)


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, with factories."""
    (tmp_path / "users_factories.py").write_text(
        textwrap.dedent(
            """
            import numpy as np
            import pandas as pd
            from chimera.data.split import Split
            X = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
            def pair(rows=80):
                return X[:rows], (X[:rows, 0] > 0).astype(int)
            def parts():
                return (X[:60], (X[:60, 0] > 0).astype(int)), (X[60:], (X[60:, 0] > 0).astype(int))
            def frame():
                return pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=X[:, 0] > 0)
            def split():
                return Split.of(pair())
            def nothing():
                return None
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "users_factories"
    sys.modules.pop("users_factories", None)


def files(folder: Path) -> dict[str, Path]:
    FRAME.to_csv(folder / "rows.csv", index=False)
    FRAME.to_csv(folder / "rows.csv.gz", index=False)
    np.savez(folder / "rows.npz", inputs=X, targets=Y)
    np.savez(folder / "parts.npz", x_train=X[:60], y_train=Y[:60], x_test=X[60:], y_test=Y[60:])
    return {name: folder / name for name in ("rows.csv", "rows.csv.gz", "rows.npz", "parts.npz")}


SOURCES: dict[str, Any] = {
    "arrays": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "float16": (X.astype(np.float16), Y),
    "whole numbers": ((X * 10).astype(np.int32), Y),
    "truth values": (X > 0, Y.astype(bool)),
    "texts as classes": (X, np.array(["no", "yes"])[Y]),
    "values": (X, X[:, 0] * 2),
    "a frame": FRAME,
    "a frame and a series": (FRAME[["a", "b", "c"]], FRAME["label"]),
    "a frame with a text column": FRAME.assign(kind=np.where(X[:, 1] > 0, "p", "q"))[["kind", "a", "label"]],
    "two parts": ((X[:60], Y[:60]), (X[60:], Y[60:])),
    "a data set": Dataset.of((X, Y)),
    "a split": Split.of((X, Y)),
}


@pytest.mark.parametrize("source", SOURCES)
def test_training_accepts_every_kind_of_data(tmp_path: Path, source: str) -> None:
    run = fit(tmp_path, SOURCES[source])
    assert run.cost.rounds == 4
    assert np.isfinite(run.metrics["loss"])
    assert (run.run_dir / "experiment.toml").is_file()


def test_training_accepts_read_only_arrays_and_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    inputs, targets = X.copy(), Y.copy()
    inputs.flags.writeable = targets.flags.writeable = False
    tensors = torch.tensor(X), torch.tensor(Y)
    sources = (inputs, targets), tensors, torch.utils.data.TensorDataset(*tensors)
    losses = [fit(tmp_path / str(i), source).metrics["loss"] for i, source in enumerate(sources)]
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.npz", "parts.npz"])
def test_training_accepts_every_kind_of_file(tmp_path: Path, name: str) -> None:
    path = files(tmp_path)[name]
    kind = "npz" if name.endswith(".npz") else "csv"
    assert fit(tmp_path, {"name": kind, "path": str(path)}).cost.rounds == 4
    assert fit(tmp_path / "object", path).cost.rounds == 4


@pytest.mark.parametrize("factory", ["pair", "parts", "frame", "split"])
def test_data_of_a_factory_are_read_like_given_data(tmp_path: Path, importable: str, factory: str) -> None:
    assert fit(tmp_path, f"{importable}:{factory}").cost.rounds == 4
    assert f"{importable}:{factory}" in (tmp_path / "run" / "experiment.toml").read_text()


def test_a_factory_accepts_options_and_must_return_data(tmp_path: Path, importable: str) -> None:
    assert fit(tmp_path, {"name": f"{importable}:pair", "rows": 40}).cost.rounds == 4
    with pytest.raises(DataError, match="not a data set") as caught:
        fit(tmp_path / "other", f"{importable}:nothing")
    assert "\n" not in str(caught.value)


BROKEN: dict[str, tuple[Any, str]] = {
    "unequal lengths": ((X, Y[:-1]), "80 inputs but 79 targets"),
    "nothing": ((X[:0], Y[:0]), "empty"),
    "one row": ((X[:1], Y[:1]), "one sample alone"),
    "NaN": ((np.where(np.eye(80, 3, dtype=bool), np.nan, X), Y), "NaN or infinite"),
    "NaN in a frame": (FRAME.assign(b=np.nan), "'b'"),
    "objects": ((np.array([[object()]] * 80), Y), "objects"),
    "a column of objects": (FRAME.assign(b=[object()] * 80), "'b'"),
    "an array alone": (X, "no targets"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_unusable_data_raise_a_one_line_error(tmp_path: Path, kind: str) -> None:
    data, said = BROKEN[kind]
    with pytest.raises(ConfigurationError, match=said) as caught:
        fit(tmp_path, data)
    assert "\n" not in str(caught.value)


def test_training_accepts_every_kind_of_model(tmp_path: Path) -> None:
    nn = pytest.importorskip("torch").nn
    models = "mlp", {"name": "mlp", "hidden": [4]}, nn.Linear(3, 2), lambda: nn.Linear(3, 2), SGDClassifier()
    for number, model in enumerate(models):
        assert fit(tmp_path / str(number), (X, Y), model).cost.rounds == 4


class Raising(chimera.Callback):
    def __init__(self, hook: str, error: Exception) -> None:
        def hooked(*_: Any) -> None:
            raise error

        setattr(self, hook, hooked)


HOOKS = ["on_start", "on_progress", "on_model", "on_event", "on_end"]
LOSS = {"faults": ["kill worker 1 at step 2"]}


@pytest.mark.parametrize("hook", HOOKS)
def test_an_exception_in_a_callback_ends_the_run_and_names_the_callback(tmp_path: Path, hook: str) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fit(tmp_path, (X, Y), callbacks=[Raising(hook, ZeroDivisionError("x"))], **LOSS)
    assert caught.value.__notes__ == [f"raised by the callback Raising in {hook}"]
    assert (tmp_path / "run" / "experiment.toml").is_file()


@pytest.mark.parametrize("hook", HOOKS)
def test_stop_iteration_in_a_callback_is_raised(tmp_path: Path, hook: str) -> None:
    with pytest.raises(RunError, match=f"the callback Raising in {hook} raised StopIteration"):
        fit(tmp_path, (X, Y), callbacks=[Raising(hook, StopIteration())], **LOSS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"), ("JPG", b"\xff\xd8")]
)
def test_a_plot_has_the_format_of_its_suffix(tmp_path: Path, ending: str, begins: bytes) -> None:
    run = fit(tmp_path, (X, Y))
    assert run.plot(tmp_path / f"x.{ending}").read_bytes().startswith(begins)
    for unknown in ("x.doc", "x"):
        with pytest.raises(ConfigurationError, match=r"no format known by its ending; known: \.png") as caught:
            run.plot(tmp_path / unknown)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / unknown).exists()


def test_a_run_gives_its_weights_history_summary_and_report(tmp_path: Path) -> None:
    run = fit(tmp_path, FRAME)
    assert run.save().stat().st_size
    assert run.plot().name == "plot.png"
    assert len(run.history)
    assert run.summary()["rounds"] == 4
    assert (run.run_dir / "report.html").is_file()


PLUGINS = """
import numpy as np
from chimera.codecs.codec import Codec
from chimera.codecs.identity import Identity
from chimera.strategies.single_worker import SingleWorker

class Mine(SingleWorker):
    '''A strategy of the user's (from no paper).'''

class Packed(Identity):
    '''A codec of the user's (from no paper).'''

def halves(labels, world_size, rng):
    return np.array_split(np.arange(len(labels)), world_size)

def halves_by_name():
    return halves

def share_right(targets, predictions):
    return float((np.asarray(targets) == np.asarray(predictions)).mean())

def squares(outputs, targets):
    import torch
    return ((outputs - torch.nn.functional.one_hot(targets, outputs.shape[1])) ** 2).mean()

def network():
    from torch import nn
    return nn.Linear(3, 2)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """The path of a file with plug-ins of the user's, and its module."""
    file = tmp_path / "users_plugins.py"
    file.write_text(PLUGINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    yield str(file), importlib.import_module("users_plugins")
    sys.modules.pop("users_plugins", None)


@pytest.mark.parametrize("by", ["path", "module", "object"])
def test_custom_plug_ins_are_accepted_by_path_and_as_objects(tmp_path: Path, plugins: tuple[str, Any], by: str) -> None:
    file, module = plugins
    place = {"path": file, "module": "users_plugins"}.get(by)

    def named(name: str) -> Any:
        return f"{place}:{name}" if place else getattr(module, name)

    mine = named("Mine") if place else module.Mine()
    assert fit(tmp_path / "strategy", (X, Y), strategy=mine, workers=1).cost.rounds == 4
    parts = named("halves_by_name") if place else module.halves
    parted = fit(tmp_path / "partition", (X, Y), partition=parts)
    assert parted.cost.rounds == 4
    if place:
        packed = fit(tmp_path / "codec", (X, Y), codec=named("Packed"), strategy="parameter-server")
        assert packed.cost.rounds == 4
    modelled = fit(tmp_path / "model", (X, Y), model=named("network"))
    assert modelled.cost.rounds == 4


def test_custom_metrics_and_losses_are_accepted_as_functions_and_by_path(
    tmp_path: Path, plugins: tuple[str, Any]
) -> None:
    from chimera.models.torch_model import TorchModel

    file, module = plugins
    for number, (loss, metric) in enumerate(
        [(module.squares, module.share_right), (f"{file}:squares", f"{file}:share_right")]
    ):
        model = TorchModel(module.network, loss=loss, metrics={"mine": metric}, task="classification", seed=1)
        run = fit(tmp_path / str(number), (X, Y), model=model)
        assert 0 <= run.metrics["mine"] <= 1


def test_a_categorical_column_is_read_as_strings(tmp_path: Path) -> None:
    frame = FRAME.assign(label=FRAME["label"].astype("category"), colour=pd.Categorical(["red", "blue"] * 40))
    run = fit(tmp_path, frame, model="logistic-regression")
    assert run.cost.rounds == 4


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_the_repr_of_a_run_is_one_line_and_marks_virtual_time(tmp_path: Path, engine: str) -> None:
    run = fit(tmp_path, (X, Y), engine=engine)
    assert "\n" not in str(run)
    assert ("virtual" in str(run)) == run.cost.virtual_time == (engine == "simulated")
    for told in (f"<Run {run.run_dir}: ", f"2 workers on {engine}", "4 rounds", "accuracy ", "stopped by rounds"):
        assert told in repr(run)
