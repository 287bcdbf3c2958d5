"""The data set ``instructions``: conversations in JSON lines, as tokens of a language model that learns the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.readers.sources import existing_file
from chimera.data.row_labels import RowLabels, found_labels
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split
from chimera.data.tokenization import one_line

IGNORED = -100
"""The label of tokens that do not count in the loss, as in torch."""

_EMPTY = "an answer is empty, so the model would learn only to end its answer: write the answer, or remove the line"

Labels = str | Callable[[Mapping[str, Any]], Any] | None


@DATASETS.register("instructions", requires="transformers", extra="text")
def instructions(
    *,
    path: str,
    tokenizer: str,
    test_path: str | None = None,
    max_tokens: int = 1024,
    packing: bool = False,
    labels: Labels = None,
    groups: Labels = None,
    length_group: int | None = None,
    test_fraction: float = 0.1,
    limit: int | None = None,
    seed: int = 0,
) -> Split:
    """Conversations in JSON lines, as tokens for a causal language model; only tokens of answers count in the loss.

    A line has ``messages``, a list of ``{"role": ..., "content": ...}``, or ``prompt`` and ``completion``: two texts, or two
    such lists. Messages become tokens by the tokenizer's chat template, and those of the role ``assistant`` are answers. Two
    texts follow one another, with the end-of-text token. Batches are padded to their longest sample.

    Parameters
    ----------
    path : the file, UTF-8.
    tokenizer : folder or name of the hub of the tokenizer, usually that of the model.
    test_path : a second file with the test part; by default a fraction of the first file is the test part.
    max_tokens : longer samples are cut at the end; with ``packing``, the number of tokens of each block.
    packing : join the samples, in their order, and cut them into blocks without padding. A sample then sees the text of the
        samples before it in its block.
    labels, groups : the label of each line for partitions by labels, and its group for the partition ``by-group``: a
        key of the lines, or a function of a line, a mapping (``file.py:function``). Not with ``packing``.
    length_group : number of samples of similar length that follow one another, so that little is padded; best the samples of a
        step of all workers, or of one worker if each has its own samples. The length is that of the line in bytes. Not with
        ``packing``. Default: samples in any order.
    test_fraction : share of the lines that becomes the test part.
    limit : number of train samples to keep, chosen at random; default all.
    seed : seed of the limit and of the split.
    """
    if max_tokens < 2:
        raise ConfigurationError(f"max_tokens must be at least 2, not {max_tokens}")
    if packing and (labels is not None or groups is not None):
        raise ConfigurationError("with packing, blocks join several lines: leave out labels and groups")
    if packing and length_group is not None:
        raise ConfigurationError("with packing, all blocks have the same length: leave out length_group")
    files = [existing_file(file) for file in (path, test_path) if file is not None]
    made = [Conversations(file, tokenizer, max_tokens) for file in files]
    first = made[0].dataset(labels, groups, length_group)
    split = Split.of((first, made[1].dataset()) if len(made) > 1 else first, test_fraction=test_fraction, seed=seed)
    if limit is not None:
        split = split.limited(limit, seed)
    return Split(*(_packed(part, max_tokens) for part in (split.train, split.test))) if packing else split


class Conversations:
    """A map-style data set of the lines of a file; workers read and tokenize the lines of their batches.

    Parameters
    ----------
    path, tokenizer, max_tokens : see `instructions`.
    """

    def __init__(self, path: Path, tokenizer: str, max_tokens: int) -> None:
        self._path, self._tokenizer_name, self._max_tokens = path.resolve(), tokenizer, max_tokens
        ends = np.flatnonzero(self._bytes == ord("\n")) + 1
        bounds = np.unique(np.concatenate([[0], ends, [len(self._bytes)]]))
        filled = [bool(bytes(self._bytes[a:b]).strip()) for a, b in pairwise(bounds)]
        self._numbers = np.flatnonzero(filled) + 1  # numbers of the lines, from 1
        self._begins, self._ends = bounds[:-1][filled], bounds[1:][filled]
        _ = self._tokenizer  # raises now if the tokenizer cannot be read

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, row: int) -> dict[str, NDArray[np.int64]]:
        line = self._line(row)
        try:
            tokens, counts = self._encoded(line)
        except DataError as error:
            raise DataError(f"{self._path}, line {self._numbers[row]}: {error}") from error
        tokens, counts = tokens[: self._max_tokens], counts[: self._max_tokens]
        if not counts[1:].any():  # the first token has no tokens before it, so it has no loss
            raise DataError(
                f"{self._path}, line {self._numbers[row]}: no token of an answer is among the first {self._max_tokens} tokens: "
                "increase max_tokens, or remove the line"
            )
        return {"input_ids": tokens, "labels": np.where(counts, tokens, IGNORED)}

    def dataset(self, labels: Labels = None, groups: Labels = None, length_group: int | None = None) -> SampleDataset:
        """Return the data set for a run, see `instructions`."""
        given = {"labels": labels, "groups": groups}
        marks: dict[str, Any] = {key: self._marks(value, key) for key, value in given.items() if value is not None}
        if length_group is not None:
            marks |= {"lengths": (self._ends - self._begins).astype(np.int32), "length_group": length_group}
        return SampleDataset(self, collate=Padding(self.padding), name=self._path.name, **marks)

    @property
    def padding(self) -> int:
        """The token that fills batches."""
        found = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id)
        return next((token for token in found if token is not None), 0)

    def _marks(self, given: Labels, what: str) -> RowLabels:
        keys = self._line(0)
        columns = {key: lambda key=key: [line.get(key) for line in self._lines()] for key in keys}
        return found_labels(given, what, columns, self._lines, len(self))

    def _lines(self) -> Iterator[dict[str, Any]]:
        return (self._line(row) for row in range(len(self)))

    def _line(self, row: int) -> dict[str, Any]:
        try:
            return msgspec.json.decode(bytes(self._bytes[self._begins[row] : self._ends[row]]), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{self._path}, line {self._numbers[row]} is not a JSON object: {error}") from error

    def _encoded(self, line: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the tokens of a line, and which of them belong to answers; shape (n,) each."""
        prompt, completion = line.get("prompt"), line.get("completion")
        if "messages" in line:
            return self._conversation(_messages(line["messages"]), 0)
        if isinstance(prompt, str) and isinstance(completion, str):
            return self._texts(prompt, completion)
        if isinstance(prompt, list) and isinstance(completion, list):
            return self._conversation(_messages(prompt + completion), len(prompt))
        raise DataError(
            f"it has the keys {', '.join(map(repr, line)) or 'none'}: give 'messages', or 'prompt' and 'completion' as two "
            "texts or two lists of messages"
        )

    def _texts(self, prompt: str, completion: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not completion.strip():
            raise DataError(_EMPTY)
        prompt_ids = self._tokenizer(prompt)["input_ids"]
        answer = self._tokenizer(completion, add_special_tokens=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        answer = [*answer, *([] if end is None else [end])]
        return np.array([*prompt_ids, *answer], np.int64), np.repeat([False, True], [len(prompt_ids), len(answer)])

    def _conversation(self, messages: list[dict[str, Any]], first: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return tokens and places of answers, which are messages of the assistant from number ``first`` on."""
        if not self._tokenizer.chat_template:
            raise DataError(
                f"the tokenizer {self._tokenizer_name!r} has no chat template: give 'prompt' and 'completion' as texts"
            )
        roles = [message["role"] for message in messages]
        if "assistant" not in roles[first:]:
            raise DataError(
                "no message has the role 'assistant', so there is no answer to train on: add such a message; the roles: "
                f"{', '.join(roles)}"
            )
        tokens = self._templated(messages)
        counts = np.zeros(len(tokens), bool)
        for number, message in enumerate(messages):
            if number < first or message["role"] != "assistant":
                continue
            calls = message.keys() - {"role", "content"}  # such as a call of a tool, whose message has no text
            if not message["content"].strip() and not calls:
                raise DataError(_EMPTY)
            before, upto = self._templated(messages[:number], asks=True), self._templated(messages[: number + 1])
            if tokens[: len(upto)] != upto or upto[: len(before)] != before:
                raise DataError("the chat template changes earlier messages: give 'prompt' and 'completion' as texts")
            counts[len(before) : len(upto)] = True
        return np.array(tokens, np.int64), counts

    def _templated(self, messages: list[dict[str, Any]], *, asks: bool = False) -> list[int]:
        if not messages and not asks:
            return []
        try:
            return list(self._tokenizer.apply_chat_template(messages, add_generation_prompt=asks, return_dict=False))
        except Exception as error:  # a template may raise errors of many types
            raise DataError(
                f"the chat template of {self._tokenizer_name!r} cannot be applied: {one_line(error)}"
            ) from error

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        if not self._path.stat().st_size:
            raise DataError(f"{self._path} is empty")
        return np.memmap(self._path, np.uint8, mode="r")

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._tokenizer_name)
        except Exception as error:  # the library raises errors of many types
            raise ConfigurationError(
                f"the tokenizer {self._tokenizer_name!r} cannot be read: {one_line(error)}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_bytes", "_tokenizer")}


class Padding:
    """Collates samples of different lengths: ``input_ids``, ``attention_mask`` and ``labels``, shape (n, longest) each.

    Parameters
    ----------
    token : fills ``input_ids``; the other two are 0 and `IGNORED` there.
    """

    def __init__(self, token: int) -> None:
        self._token = token

    def __call__(self, samples: list[dict[str, NDArray[np.int64]]]) -> dict[str, NDArray[np.int64]]:
        """Return a batch."""
        longest = max(len(sample["input_ids"]) for sample in samples)
        fills = {"input_ids": self._token, "attention_mask": 0, "labels": IGNORED}
        batch = {key: np.full((len(samples), longest), fill, np.int64) for key, fill in fills.items()}
        for row, sample in enumerate(samples):
            length = len(sample["input_ids"])
            batch["attention_mask"][row, :length] = 1
            for key in ("input_ids", "labels"):
                batch[key][row, :length] = sample[key]
        return batch


class Packed:
    """A map-style data set of blocks of tokens.

    Parameters
    ----------
    tokens, labels : of all samples, one after another, shape (n,).
    block : tokens of each block; the rest at the end is left out.
    """

    def __init__(self, tokens: NDArray[Any], labels: NDArray[Any], block: int) -> None:
        count = len(tokens) // block
        self._tokens, self._labels = (array[: count * block].reshape(count, block) for array in (tokens, labels))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, row: int) -> dict[str, NDArray[np.int64]]:
        return {
            key: array[row].astype(np.int64) for key, array in (("input_ids", self._tokens), ("labels", self._labels))
        }


def _packed(part: Any, block: int) -> SampleDataset:
    """Return a part in blocks; all its lines are read once."""
    conversations: Conversations = part.source
    rows = range(len(part)) if part.rows is None else part.rows.tolist()
    samples = [conversations[row] for row in rows]
    tokens, labels = (
        np.concatenate([sample[key] for sample in samples]).astype(np.int32) for key in ("input_ids", "labels")
    )
    if len(tokens) < block:
        raise DataError(
            f"a part of {part.name} has {len(tokens)} tokens, less than one block of {block}: decrease max_tokens"
        )
    return SampleDataset(Packed(tokens, labels, block), collate=Padding(conversations.padding), name=part.name)


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise DataError("messages must be a list of at least one message")
    for message in given:
        known = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not known or not isinstance(message.get("content"), str):
            raise DataError('a message must be {"role": "user", "content": "..."}, with texts')
    return given
