"""The data set ``text-blocks``: a text as blocks of tokens for language models. Tokens are computed once."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import make_folder
from chimera.data.download import cache_folder
from chimera.data.readers.sources import existing_file
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split
from chimera.data.tokenization import ByteLevelBPE, Tokenization, TokenizerFile, Utf8, digest


@DATASETS.register("text-blocks")
def text_blocks(
    *,
    path: str,
    tokenizer_path: str | None = None,
    vocab_size: int | None = None,
    block: int = 128,
    test_fraction: float = 0.1,
) -> Split:
    """A text file as blocks of tokens: inputs are a block, targets the same block one token later.

    Parameters
    ----------
    path : the file, UTF-8; one that ends in ``.gz`` is decompressed.
    tokenizer_path : ``tokenizer.json`` of the library ``tokenizers``, the folder of a model that has one, or a model in the
        format GGUF; default: the bytes of the text, 256 tokens.
    vocab_size : without a tokenizer_path, train a byte-level BPE of this many tokens on the whole text, once.
    block : tokens per sample.
    test_fraction : share of the blocks, at the end of the text, that becomes the test part.
    """
    if block < 1:
        raise ConfigurationError(f"block must be at least 1 token, not {block}")
    if not 0 < test_fraction < 1:
        raise ConfigurationError(f"test_fraction is {test_fraction}: it must be between 0 and 1")
    blocks = TokenBlocks(existing_file(path), _tokenization(tokenizer_path, vocab_size), block)
    tested = max(round(test_fraction * len(blocks)), 1)
    if len(blocks) <= tested:
        raise DataError(
            f"{path} has {len(blocks)} blocks of {block} tokens: at least 2 are needed, so use smaller blocks"
        )
    whole = SampleDataset(blocks, collate=_stacked, name=Path(path).name)
    return Split(
        whole.subset(np.arange(len(blocks) - tested)), whole.subset(np.arange(len(blocks) - tested, len(blocks)))
    )


class TokenBlocks:
    """A map-style data set of the blocks of a text; it is sent to workers as paths, and each machine tokenizes once.

    Parameters
    ----------
    path : the text, see `text_blocks`.
    tokenization : the way to make its tokens.
    block : tokens per sample.

    Attributes
    ----------
    classes : the tokens, by number.
    """

    def __init__(self, path: Path, tokenization: Tokenization, block: int) -> None:
        self._path, self._tokenization, self._block = path.resolve(), tokenization, block
        self._count = max(len(self._tokens) - 1, 0) // block

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        begin = index * self._block
        return np.asarray(self._tokens[begin : begin + self._block + 1], np.int64)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The tokens, by number."""
        return self._tokenization.names(self._path)

    @cached_property
    def _tokens(self) -> NDArray[Any]:
        """All tokens, mapped from a file in the cache, which is written first if it does not exist."""
        content = hashlib.sha256(digest(self._path) + self._tokenization.key())
        target = cache_folder() / "tokens" / f"{content.hexdigest()}.bin"
        if not target.exists():
            make_folder(target.parent)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                part = Path(folder) / target.name
                with part.open("wb") as tokens:
                    for piece in self._tokenization.tokens(self._path):
                        piece.tofile(tokens)
                part.replace(target)
        if not target.stat().st_size:  # of an empty text, which cannot be mapped
            return np.empty(0, self._tokenization.dtype)
        return np.memmap(target, self._tokenization.dtype, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_tokens", "classes")}


def _tokenization(tokenizer_path: str | None, vocab_size: int | None) -> Tokenization:
    if tokenizer_path and vocab_size is not None:
        raise ConfigurationError("tokenizer_path names a tokenizer, and vocab_size trains one: leave one out")
    if tokenizer_path:
        return TokenizerFile(tokenizer_path)
    return Utf8() if vocab_size is None else ByteLevelBPE(vocab_size)


def _stacked(blocks: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets, shape (n, block) each."""
    tokens = np.stack(blocks)
    return tokens[:, :-1], tokens[:, 1:]
