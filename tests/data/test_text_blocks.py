"""Texts as blocks of tokens: every token once, cached tokens, tokenizers, mistakes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError
from chimera.data import text_blocks as module
from chimera.data.split import DATASETS

TEXT = "The whale is white. Who ain't a slave? Ä\n" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_PIECE", 100)
    return tmp_path / "cache" / "chimera" / "tokens"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_blocks_hold_every_token_once_and_targets_are_one_later(text: Path) -> None:
    split = DATASETS.create("text-blocks", {"path": str(text), "block": 16})
    parts = [part.take(np.arange(len(part))) for part in (split.train, split.test)]
    inputs, targets = (np.concatenate([part[place] for part in parts]).ravel() for place in (0, 1))
    tokens = np.frombuffer(TEXT.encode(), np.uint8)
    assert np.array_equal(inputs, tokens[: len(inputs)])
    assert np.array_equal(targets, tokens[1 : len(targets) + 1])
    assert len(tokens) - len(inputs) <= 16
    assert split.train.outputs == 256


def test_tokens_are_computed_once(text: Path, cache: Path) -> None:
    first = module.TokenBlocks(text, None, 16)
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    sent = pickle.loads(pickle.dumps(first))
    assert np.array_equal(sent[3], module.TokenBlocks(text, None, 16)[3])
    assert file.stat().st_mtime_ns == written
    assert len(pickle.dumps(first)) < 1000


def test_a_tokenizer_of_the_library_tokenizers(text: Path, tmp_path: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "The": 1, "whale": 2, "white": 3}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    options = {"path": str(text), "tokenizer_path": str(tmp_path / "tokenizer.json"), "block": 7}
    split = DATASETS.create("text-blocks", options)
    inputs, _ = split.train.take(np.arange(3))
    assert np.array_equal(inputs.ravel(), made.encode(TEXT).ids[:21])
    assert split.train.classes == ("[UNK]", "The", "whale", "white")
    of_folder = DATASETS.create("text-blocks", {**options, "tokenizer_path": str(tmp_path)})  # as of a model
    assert np.array_equal(of_folder.train.take(np.arange(3))[0], inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be at least 1 token"),
        ({"block": 10**6}, "has 0 blocks of 1000000 tokens: at least 2 are needed"),
        ({"test_fraction": 1.0}, "must be between 0 and 1"),
        ({"path": "nowhere.txt"}, "no data file"),
        ({"tokenizer_path": "text.txt"}, "is not a file of the library tokenizers"),
    ],
)
def test_mistakes_get_a_clear_message(
    text: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(text.parent)
    with pytest.raises(ConfigurationError, match=message):
        DATASETS.create("text-blocks", {"path": str(text), **options})


def test_a_file_that_is_no_text_leaves_nothing_in_the_cache(text: Path, cache: Path) -> None:
    text.write_bytes(b"abc" * 100 + b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not a text in UTF-8"):
        module.TokenBlocks(text, None, 4)
    assert not list(cache.iterdir())
