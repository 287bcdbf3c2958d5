"""Texts as blocks of tokens: every token once, cached tokens, tokenizers, mistakes."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError, DataError
from chimera.data import text_blocks as module
from chimera.data import tokenization
from chimera.data.split import DATASETS

TEXT = "The whale is white. Who ain't a slave? Ä\n" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenization, "_PIECE", 100)
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
    first = module.TokenBlocks(text, tokenization.Utf8(), 16)
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    sent = pickle.loads(pickle.dumps(first))
    assert np.array_equal(sent[3], module.TokenBlocks(text, tokenization.Utf8(), 16)[3])
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


def test_a_gzip_file_has_the_tokens_of_its_text(text: Path) -> None:
    packed = text.with_name("text.txt.gz")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    plain, unpacked = (
        DATASETS.create("text-blocks", {"path": str(path), "block": 16}).train for path in (text, packed)
    )
    assert np.array_equal(plain.take(np.arange(9))[0], unpacked.take(np.arange(9))[0])
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match="is not a complete gzip file"):
        DATASETS.create("text-blocks", {"path": str(packed), "block": 16})


def test_a_tokenizer_trained_on_the_text_depends_on_the_text_only(text: Path, cache: Path) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    options = {"path": str(text), "vocab_size": 270, "block": 8}
    train = DATASETS.create("text-blocks", options).train
    (file,) = (cache.parent / "tokenizers").iterdir()
    first = file.read_bytes()
    ids = train.take(np.arange(3))[0].ravel()
    assert TEXT.startswith(tokenizers.Tokenizer.from_file(str(file)).decode(ids.tolist()))
    assert train.outputs == 270
    written = file.stat().st_mtime_ns
    DATASETS.create("text-blocks", {**options, "block": 4})
    assert file.stat().st_mtime_ns == written
    file.unlink()
    assert tokenization.ByteLevelBPE(270).file(text).read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be at least 1 token"),
        ({"block": 10**6}, "has 0 blocks of 1000000 tokens: at least 2 are needed"),
        ({"test_fraction": 1.0}, "must be between 0 and 1"),
        ({"path": "nowhere.txt"}, "no data file"),
        ({"vocab_size": 255}, "must be at least 256, a token for each byte"),
        ({"vocab_size": 300, "tokenizer_path": "text.txt"}, "leave one out"),
        ({"tokenizer_path": "text.txt"}, "is not a file of the library tokenizers"),
    ],
)
def test_mistakes_get_a_clear_message(
    text: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(text.parent)
    with pytest.raises(ConfigurationError, match=message):
        DATASETS.create("text-blocks", {"path": str(text), **options})


def test_a_text_that_a_tokenizer_cannot_encode_is_one_line(text: Path, tmp_path: Path) -> None:
    """A tokenizer of words has no token for unknown words."""
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "words.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"whale": 0}, unk_token="[UNK]")).save(str(file))
    with pytest.raises(DataError, match=r"words.json cannot encode .*: WordLevel error: Missing \[UNK\]") as caught:
        DATASETS.create("text-blocks", {"path": str(text), "tokenizer_path": str(file)})
    assert "\n" not in str(caught.value)


def test_a_truncated_gguf_file_has_no_tokenizer(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs: pip install gguf")
    pytest.importorskip("transformers")
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + bytes([1] + [0] * 7) * 2 + bytes([5] + [0] * 7))
    with pytest.raises(DataError, match=r"the tokenizer in .*a.gguf cannot be read: ") as caught:
        DATASETS.create("text-blocks", {"path": str(text), "tokenizer_path": str(file)})
    assert "\n" not in str(caught.value)


def test_an_empty_text_has_no_blocks(text: Path) -> None:
    text.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="has 0 blocks of 4 tokens: at least 2 are needed"):
        DATASETS.create("text-blocks", {"path": str(text), "block": 4})


def test_a_file_that_is_no_text_leaves_nothing_in_the_cache(text: Path, cache: Path) -> None:
    text.write_bytes(b"abc" * 100 + b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not a text in UTF-8"):
        module.TokenBlocks(text, tokenization.Utf8(), 4)
    assert not list(cache.iterdir())
