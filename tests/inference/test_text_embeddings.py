"""Encoders: the vectors of the library's own states, the same for a text alone and beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from chimera.core.errors import ConfigurationError
from chimera.inference import models
from inference_kit import tiny_bert, tiny_roberta

TEXTS = ["the cat sat on the mat", "a dog", "under the tree"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def table(model: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "text-embeddings", "model": str(model), **more}


def states(folder: Path, text: str) -> Any:
    """Return the last hidden states of plain transformers, shape (tokens, hidden)."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    given = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        return AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state[0].numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_the_pooled_states_of_the_library(bert: Path, pooling: str, normalize: bool) -> None:
    predictor = models.load(table(bert, pooling=pooling, normalize=normalize))
    together = [answer["result"] for answer in models.answers(predictor, TEXTS)]
    for text, found in zip(TEXTS, together, strict=True):
        tokens = states(bert, text)
        expected = tokens.mean(0) if pooling == "mean" else tokens[0]
        expected = expected / np.linalg.norm(expected) if normalize else expected
        assert np.array(found["embedding"]) == pytest.approx(expected, abs=1e-5)
        assert found["prompt_tokens"] == len(tokens)
        (alone,) = models.answers(predictor, [text])
        assert np.array(alone["result"]["embedding"]) == pytest.approx(np.array(found["embedding"]), abs=1e-6)


def test_a_text_that_cannot_be_used_has_an_error_and_the_others_their_vectors(bert: Path) -> None:
    found = models.answers(models.load(table(bert)), ["a dog", "the " * 20, 7, "a dog"])
    assert "the text has 22 tokens; the model accepts 16" in found[1]["error"]
    assert "a query must be a text, not a int" in found[2]["error"]
    assert found[0] == found[3]


def test_the_first_positions_of_roberta_are_not_those_of_tokens(tmp_path: Path) -> None:
    found = models.answers(models.load(table(tiny_roberta(tmp_path))), ["the " * 13, "the " * 12])
    assert "the text has 15 tokens; the model accepts 14" in found[0]["error"]
    assert found[1]["result"]["prompt_tokens"] == 14


def test_a_folder_that_lacks_weights_is_refused(bert: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(bert, copy)
    weights = safetensors.torch.load_file(copy / "model.safetensors")
    name = next(name for name in weights if "attention" in name)
    del weights[name]
    safetensors.torch.save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match="lacks 1 weights, such as 'encoder"):
        models.load(table(copy))


def test_a_bad_table_is_one_line(bert: Path) -> None:
    with pytest.raises(ConfigurationError, match="pooling = 'max' must be one of mean, cls"):
        models.check(table(bert, pooling="max"))
