"""Ways in which ``text-blocks`` makes tokens of a text: its bytes, a file of a tokenizer, or one trained on the text."""

from __future__ import annotations

import gzip
import hashlib
import io
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError, MissingExtraError
from chimera.core.named_places import located
from chimera.core.private import make_folder
from chimera.data.download import cache_folder
from chimera.data.readers.decompression import GzipStream
from chimera.data.readers.sources import existing_file

_PIECE = 1 << 20  # characters that are tokenized at a time
_BYTES = 256
_MAX_TEXT_CHARACTERS = 300


class Tokenization(Protocol):
    """A way to make tokens of a text. It is sent to workers, so it holds paths and options only."""

    def key(self) -> bytes:
        """Return the values that determine the tokens, besides the text."""

    def tokens(self, text: Path) -> Iterator[NDArray[Any]]:
        """Yield the tokens of a text in pieces, uint8 or uint32.

        Raises
        ------
        DataError : the file is not a text, or the tokenizer cannot be read.
        MissingExtraError : the library ``tokenizers`` is missing.
        """

    def names(self, text: Path) -> tuple[str, ...]:
        """Return the tokens, by number."""

    @property
    def dtype(self) -> Any:
        """The type of the tokens."""


class Utf8:
    """The bytes of the text: 256 tokens."""

    dtype = np.uint8

    def key(self) -> bytes:
        """Return an empty key."""
        return b""

    def tokens(self, text: Path) -> Iterator[NDArray[Any]]:
        """Yield the bytes of a text."""
        return (np.frombuffer(piece.encode(), np.uint8) for piece in pieces(text))

    def names(self, text: Path) -> tuple[str, ...]:  # noqa: ARG002 - the protocol has it
        """Return the numbers of the bytes."""
        return tuple(map(str, range(_BYTES)))


class _OfLibrary:
    """Tokens by a file of the library ``tokenizers``."""

    dtype = np.uint32

    def file(self, text: Path) -> Path:
        raise NotImplementedError

    def tokens(self, text: Path) -> Iterator[NDArray[Any]]:
        file = self.file(text)
        tokenizer = _tokenizer(file)
        for piece in pieces(text):
            try:
                numbers = tokenizer.encode(piece, add_special_tokens=False).ids
            except Exception as error:  # the library raises plain exceptions
                raise DataError(f"the tokenizer in {file} cannot encode {text}: {one_line(error)}") from error
            yield np.array(numbers, np.uint32)

    def names(self, text: Path) -> tuple[str, ...]:
        tokenizer = _tokenizer(self.file(text))
        return tuple(str(tokenizer.id_to_token(number)) for number in range(tokenizer.get_vocab_size()))


class TokenizerFile(_OfLibrary):
    """A ``tokenizer.json``, the folder of a model that has one, or a model in the format GGUF."""

    def __init__(self, path: str) -> None:
        place = located(path)
        self._file = existing_file(place / "tokenizer.json" if place.is_dir() else place).resolve()

    def key(self) -> bytes:
        """Return the digest of the file."""
        return digest(self._file)

    def file(self, text: Path) -> Path:  # noqa: ARG002 - the protocol has it
        """Return the file."""
        return self._file


class ByteLevelBPE(_OfLibrary):
    """A byte-level BPE trained on the text itself (Radford et al. 2019, section 2.2); any text can be encoded.

    It depends on the text and ``vocab_size`` only. Each machine trains it once, into the cache, and all get the same one.

    Parameters
    ----------
    vocab_size : number of tokens, the 256 bytes included; fewer if the text has too few pairs of tokens that repeat.

    Raises
    ------
    ConfigurationError : there are fewer tokens than bytes.
    """

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < _BYTES:
            raise ConfigurationError(f"vocab_size is {vocab_size}: it must be at least {_BYTES}, a token for each byte")
        self._vocab_size = vocab_size

    def key(self) -> bytes:
        """Return the options of the training."""
        return f"byte-level BPE {self._vocab_size}".encode()

    def file(self, text: Path) -> Path:
        """Return the tokenizer in the cache, which is trained first if it does not exist."""
        name = hashlib.sha256(digest(text) + self.key()).hexdigest()
        target = cache_folder() / "tokenizers" / f"{name}.json"
        if not target.exists():
            make_folder(target.parent)
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                part = Path(folder) / target.name
                self._trained(text).save(str(part))
                part.replace(target)
        return target

    def _trained(self, text: Path) -> Any:
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self._vocab_size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        )
        tokenizer.train_from_iterator(pieces(text), trainer)
        return tokenizer


def pieces(text: Path) -> Iterator[str]:
    """Yield a text, UTF-8, in pieces of whole lines; a file that ends in ``.gz`` is decompressed.

    Raises
    ------
    DataError : the file is not a text or not gzip, or it decompresses to too many bytes.
    """
    content = io.BufferedReader(GzipStream(text), 1 << 16) if text.suffix == ".gz" else text.open("rb")
    try:
        with io.TextIOWrapper(content, encoding="utf-8") as lines:
            while piece := lines.read(_PIECE):
                yield piece + lines.readline()  # so that no word is cut
    except UnicodeDecodeError as error:
        raise DataError(f"{text} is not a text in UTF-8: {error}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{text} is not a complete gzip file: {error}") from error


def one_line(error: Exception) -> str:
    """Return the beginning of the text of a library's error in one line; its type if it has no text."""
    return " ".join(str(error).split())[:_MAX_TEXT_CHARACTERS] or type(error).__name__


def digest(path: Path) -> bytes:
    """Return the SHA-256 of a file, 32 bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError("a tokenizer", "tokenizers", "inference") from error
    return tokenizers


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
    except Exception as error:  # many types, also if the package gguf is missing
        raise DataError(f"the tokenizer in {path} cannot be read: {one_line(error)}") from error


def _of_json(path: Path) -> Any:
    library = _library()
    try:
        return library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise DataError(f"{path} is not a file of the library tokenizers: {error}") from error
