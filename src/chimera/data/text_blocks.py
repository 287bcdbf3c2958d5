"""The data set ``text-blocks``: a text as blocks of tokens for language models. Tokens are computed once."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError, MissingExtraError
from chimera.core.package_files import located
from chimera.core.private import make_folder
from chimera.data.download import cache_folder
from chimera.data.readers.sources import existing_file
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split

_PIECE = 1 << 20  # characters that are tokenized at a time


@DATASETS.register("text-blocks")
def text_blocks(
    *,
    path: str,
    tokenizer_path: str | None = None,
    block: int = 128,
    test_fraction: float = 0.1,
) -> Split:
    """A text file as blocks of tokens: inputs are a block, targets the same block one token later.

    Parameters
    ----------
    path : the file, UTF-8.
    tokenizer_path : ``tokenizer.json`` of the library ``tokenizers``, the folder of a model that has one, or a model in the
        format GGUF; default: the bytes of the text, 256 tokens.
    block : tokens per sample.
    test_fraction : share of the blocks, at the end of the text, that becomes the test part.
    """
    if block < 1:
        raise ConfigurationError(f"block must be at least 1 token, not {block}")
    if not 0 < test_fraction < 1:
        raise ConfigurationError(f"test_fraction is {test_fraction}: it must be between 0 and 1")
    blocks = TokenBlocks(existing_file(path), _tokenizer_file(tokenizer_path) if tokenizer_path else None, block)
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
    path, tokenizer : the text, and the tokenizer's file or None, see `text_blocks`.
    block : tokens per sample.

    Attributes
    ----------
    classes : the tokens, by number.
    """

    def __init__(self, path: Path, tokenizer: Path | None, block: int) -> None:
        self._path, self._tokenizer, self._block = path.resolve(), tokenizer and tokenizer.resolve(), block
        self._count = (len(self._tokens) - 1) // block

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        begin = index * self._block
        return np.asarray(self._tokens[begin : begin + self._block + 1], np.int64)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The tokens, by number."""
        if self._tokenizer is None:
            return tuple(map(str, range(256)))
        tokenizer = _tokenizer(self._tokenizer)
        return tuple(str(tokenizer.id_to_token(number)) for number in range(tokenizer.get_vocab_size()))

    @cached_property
    def _tokens(self) -> NDArray[Any]:
        """All tokens, mapped from a file in the cache, which is written first if it does not exist."""
        content = hashlib.sha256()
        for file in (self._path, self._tokenizer):
            content.update(b"" if file is None else _digest(file))
        target = cache_folder() / "tokens" / f"{content.hexdigest()}.bin"
        if not target.exists():
            make_folder(target.parent)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                part = Path(folder) / target.name
                with part.open("wb") as tokens:
                    for piece in self._pieces():
                        piece.tofile(tokens)
                part.replace(target)
        return np.memmap(target, np.uint8 if self._tokenizer is None else np.uint32, mode="r")

    def _pieces(self) -> Iterator[NDArray[Any]]:
        tokenizer = None if self._tokenizer is None else _tokenizer(self._tokenizer)
        try:
            with self._path.open(encoding="utf-8") as text:
                while piece := text.read(_PIECE):
                    piece += text.readline()  # so that no word is cut
                    if tokenizer is None:
                        yield np.frombuffer(piece.encode(), np.uint8)
                    else:
                        yield np.array(tokenizer.encode(piece, add_special_tokens=False).ids, np.uint32)
        except UnicodeDecodeError as error:
            raise DataError(f"{self._path} is not a text in UTF-8: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_tokens", "classes")}


def _tokenizer_file(path: str) -> Path:
    place = located(path)
    return existing_file(place / "tokenizer.json" if place.is_dir() else place)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _tokenizer(path: Path) -> Any:
    return _of_gguf(path) if path.suffix == ".gguf" else _of_json(path)


def _of_gguf(path: Path) -> Any:
    """Return the tokenizer that a model in the format GGUF holds."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("a tokenizer in the format GGUF", "transformers", "text") from error
    try:
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    except (OSError, ValueError, KeyError, ImportError) as error:  # ImportError: the package gguf is missing
        line = next(filter(None, str(error).splitlines()), type(error).__name__)
        raise DataError(f"the tokenizer in {path} cannot be read: {line}") from error


def _of_json(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("a tokenizer", "tokenizers", "inference") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise DataError(f"{path} is not a file of the library tokenizers: {error}") from error


def _stacked(blocks: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets, shape (n, block) each."""
    tokens = np.stack(blocks)
    return tokens[:, :-1], tokens[:, 1:]
