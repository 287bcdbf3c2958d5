"""A trained model leaves Chimera and comes back: `run.save`, plain torch, Hugging Face, `chimera.load`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.linear_model import Perceptron, SGDClassifier
from torch import nn

import chimera
from chimera.core.errors import CodeRefusedError, ConfigurationError
from chimera.inference.models.chimera import ChimeraRun
from training.conftest import Fit

WORDS = np.random.default_rng(0).integers(0, 16, (60, 5))
X = torch.from_numpy(np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32))


class Tied(nn.Module):
    """Predicts a word by the transposed embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(words.long()).mean(1))


@pytest.fixture
def tied(fit: Fit) -> chimera.Run:
    return fit(model=Tied(), data=(WORDS, WORDS[:, 0]), rounds=3)


def test_tied_weights_load_in_plain_torch(tied: chimera.Run, tmp_path: Path) -> None:
    path = tied.save(tmp_path / "tied.safetensors")
    module = Tied()
    module.load_state_dict(safetensors.torch.load_file(path))
    assert torch.equal(module.head.weight, tied.model.embed.weight)


def test_a_folder_needs_a_model_that_writes_one(tied: chimera.Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder: give the path of a file"):
        tied.save(tmp_path)


@pytest.fixture(scope="module")
def pretrained() -> Callable[[], Any]:
    """A small model of Hugging Face with tied weights."""
    transformers = pytest.importorskip("transformers")

    class TinyConfig(transformers.PretrainedConfig):
        model_type = "tiny-of-tests"

    class Tiny(transformers.PreTrainedModel):
        config_class = TinyConfig
        _tied_weights_keys = {"head.weight": "embed.weight"}  # noqa: RUF012 - as in transformers

        def __init__(self, config: TinyConfig) -> None:
            super().__init__(config)
            self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16, bias=False)
            self.post_init()

        def get_input_embeddings(self) -> nn.Module:
            return self.embed

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(words.long()).mean(1))

    return lambda: Tiny(TinyConfig(tie_word_embeddings=True))


@pytest.mark.takes("it imports transformers")
@pytest.mark.parametrize("name", ["folder", "model.safetensors"])
def test_a_model_of_hugging_face_is_saved_in_both_forms(
    fit: Fit, tmp_path: Path, pretrained: Callable[[], Any], name: str
) -> None:
    run = fit(model=pretrained(), data=(WORDS, WORDS[:, 0]), rounds=3)
    path = run.save(tmp_path / name)
    assert path == tmp_path / name
    if name == "folder":
        again = type(run.model).from_pretrained(path)
    else:
        again = pretrained()
        again.load_state_dict(safetensors.torch.load_file(path))
    words = torch.from_numpy(WORDS)
    with torch.no_grad():
        assert torch.equal(again(words), run.model.eval()(words))
    assert again.head.weight is again.embed.weight


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [8], "batch_norm": True}, "logistic-regression"])
def test_a_named_model_is_loaded_from_the_folder_of_its_run(fit: Fit, model: Any) -> None:
    run = fit(model=model, rounds=5)
    loaded = chimera.load(run.run_dir)
    assert not loaded.training
    assert type(loaded) is type(run.model)
    with torch.no_grad():
        assert torch.equal(loaded(X), run.model.eval()(X))


@pytest.fixture
def factory(tmp_path: Path) -> str:
    file = tmp_path / "factory_of_load.py"
    file.write_text(
        "from torch import nn\n\n\ndef linear(input_shape, outputs):\n    return nn.Linear(*input_shape, outputs)\n"
    )
    return f"{file}:linear"


def test_code_by_path_runs_only_if_the_caller_trusts_the_folder(fit: Fit, factory: str) -> None:
    run = fit(model=factory, rounds=2)
    sys.modules.pop("factory_of_load")
    with pytest.raises(CodeRefusedError, match="if you trust the folder, set trust_code=True"):
        chimera.load(run.run_dir)
    assert "factory_of_load" not in sys.modules
    loaded = chimera.load(run.run_dir, trust_code=True)
    assert torch.equal(loaded.weight, run.model.weight)


def test_extra_state_of_a_module_is_left_out_and_its_lack_is_one_line(fit: Fit, tmp_path: Path) -> None:
    file = tmp_path / "counting.py"
    file.write_text(
        "from torch import nn\n\n\nclass Counting(nn.Linear):\n"
        "    def get_extra_state(self):\n        return {'calls': 3}\n\n"
        "    def set_extra_state(self, state):\n        self.calls = state['calls']\n\n\n"
        "def counting(input_shape, outputs):\n    return Counting(*input_shape, outputs)\n"
    )
    run = fit(model=f"{file}:counting", rounds=2)
    assert safetensors.torch.load_file(run.run_dir / "weights.safetensors").keys() == {"weight", "bias"}
    lack = r'does not hold the weights of this model: .*Missing key.*"_extra_state"'
    with pytest.raises(ConfigurationError, match=lack) as caught:
        chimera.load(run.run_dir, trust_code=True)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_name_is_loaded_as_the_error_says(tied: chimera.Run) -> None:
    with pytest.raises(ConfigurationError, match="was a Python object") as error:
        chimera.load(tied.run_dir)
    module, names = Tied(), {"safetensors": safetensors}
    eval(str(error.value).partition("in plain torch: ")[2], {**names, "module": module})
    assert torch.equal(module.head.weight, tied.model.head.weight)


def test_an_estimator_by_name_is_loaded(fit: Fit) -> None:
    run = fit(model=SGDClassifier, rounds=3, optimizer={"name": "sgd", "lr": 0.1})
    loaded = chimera.load(run.run_dir, trust_code=True)
    assert (loaded.predict(X.numpy()) == run.model.predict(X.numpy())).all()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(["dog", "cat"], ["cat", "dog"]), ([7, 3], [3, 7]), ([True, False], [False, True]), ([1, 0], [0, 1])],
)
@pytest.mark.parametrize("estimator", [SGDClassifier, Perceptron, "sklearn-sgd-classifier"])
def test_an_estimator_predicts_the_labels_of_its_data(fit: Fit, labels: Any, expected: Any, estimator: Any) -> None:
    inputs = np.repeat(np.eye(2, 3, dtype=np.float32), 40, axis=0)
    targets = np.repeat(np.array(labels), 40)
    given = {"data": (inputs, targets), "rounds": 20, "optimizer": {"name": "sgd", "lr": 0.1}}
    run = fit(model=estimator, **given)
    assert run.model.classes_.tolist() == expected
    assert [type(label) for label in run.model.classes_.tolist()] == [type(label) for label in expected]
    assert run.model.predict(inputs).tolist() == targets.tolist()
    assert (run.trained.predict(inputs) == np.repeat([expected.index(label) for label in labels], 40)).all()
    loaded = chimera.load(run.run_dir, trust_code=True)
    assert loaded.predict(inputs).tolist() == targets.tolist()
    assert fit("again", model=run.model, **given).metrics["accuracy"] == 1.0  # an estimator that knows the labels


def test_class_weights_of_an_estimator_are_those_of_the_labels(fit: Fit) -> None:
    inputs, targets = np.eye(4, dtype=np.float32).repeat(10, 0), ["cat", "dog"] * 20
    given: dict[str, Any] = {"data": (inputs, targets), "rounds": 1, "optimizer": {"name": "sgd", "lr": 0.1}}
    plain, weighted = (
        fit(name, model=SGDClassifier(class_weight=weights), **given)
        for name, weights in (("plain", None), ("weighted", {"dog": 3.0}))
    )
    assert weighted.model.intercept_ > plain.model.intercept_
    with pytest.raises(ConfigurationError, match="SGDClassifier cannot be trained with these parameters"):
        fit("wrong", model=SGDClassifier(class_weight={"cow": 3.0}), **given)


def test_a_folder_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not the folder of a finished run"):
        chimera.load(tmp_path)


class Mappings(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples that are mappings, of two known classes."""

    classes = ("no", "yes")

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input": torch.full((3,), float(row % 2)), "labels": row % 2}


def test_a_model_of_mappings_is_loaded_and_not_served(fit: Fit, factory: str) -> None:
    run = fit(model=factory, data=Mappings(), rounds=3)
    loaded = chimera.load(run.run_dir, trust_code=True)
    assert torch.equal(loaded.weight, run.model.weight)
    with pytest.raises(ConfigurationError, match='are not one array: serve it as kind = "factory"'):
        ChimeraRun(run=str(run.run_dir), trust_code=True).load()
