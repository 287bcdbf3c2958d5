"""The queries and answers of language models, the same for each library that generates the tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chimera.core.errors import DataError
from chimera.inference.models.sampling import LIMITS, Sampling
from chimera.inference.models.table import Emit
from chimera.models.instantiation import first_line


@dataclass(frozen=True)
class Request:
    """A query to answer.

    Attributes
    ----------
    tokens : the tokens of the prompt.
    sampling : how its answer is sampled. Prompt and ``max_new_tokens`` have room in the model.
    emitter : receives the text of the answer while it grows; None if no client reads it.
    """

    tokens: list[int]
    sampling: Sampling
    emitter: Emitter | None


class LanguageModel(ABC):
    """Continues prompts.

    Parameters
    ----------
    tokenizer : a tokenizer of transformers.
    sampling : how tokens are selected, unless a query sets values of its own.
    context : maximum number of tokens of a prompt and its answer; None: no maximum.
    ends : tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, sampling: Sampling, *, context: int | None, ends: set[int]) -> None:
        self._tokenizer, self._sampling, self._context, self._ends = tokenizer, sampling, context, ends
        self._cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the answer of each query.

        A query is a text; a list of messages, ``{"role": "user", "content": "..."}``, for a tokenizer with a chat template; or
        a dictionary with ``prompt`` or ``messages``, and optionally values of its own for the parameters of `Sampling`. The
        answer is a dictionary with ``text``, ``prompt_tokens``, ``generated_tokens`` and ``finish_reason``, which is ``stop``
        (an end token or a text of ``stop``) or ``length``. The answer of a query that cannot be used is an exception.
        """
        return self._answers(queries, None)

    def stream(self, queries: list[Any], emit: Emit) -> list[Any]:
        """Return what `predict` returns, and emit texts, see `StreamingPredictor`."""
        return self._answers(queries, emit)

    @abstractmethod
    def _generate(self, requests: list[Request]) -> Iterable[list[int]]:
        """Return the new tokens of each request. They end with an end token, or when a text of ``stop`` appears."""

    def _text(self, generated: list[int]) -> str:
        text: str = self._tokenizer.decode(generated, skip_special_tokens=True)
        return text

    def _answers(self, queries: list[Any], emit: Emit | None) -> list[Any]:
        read = [self._read(query, emit and partial(emit, index)) for index, query in enumerate(queries)]
        found = iter(self._generate([one for one in read if isinstance(one, Request)]))
        return [self._answer(one, next(found)) if isinstance(one, Request) else one for one in read]

    def _answer(self, request: Request, generated: list[int]) -> dict[str, Any]:
        text = self._text(generated)
        cut = first_stop(text, request.sampling.stop)
        ended = cut is not None or (generated[-1:] and generated[-1] in self._ends)
        return {
            "text": text[:cut],
            "prompt_tokens": len(request.tokens),
            "generated_tokens": len(generated),
            "finish_reason": "stop" if ended else "length",
        }

    def _read(self, query: Any, emit: Callable[[int, str], None] | None) -> Request | DataError:
        """Return the request of a query, or why it cannot be used."""
        given = query if isinstance(query, Mapping) else {"messages" if isinstance(query, list) else "prompt": query}
        try:
            tokens, sampling = self._sampled(given)
        except DataError as error:
            return error
        streams = given.get("stream") is True
        return Request(tokens, sampling, Emitter(emit, sampling.stop, words=self._cleans) if emit and streams else None)

    def _sampled(self, given: Mapping[str, Any]) -> tuple[list[int], Sampling]:
        """Return the tokens of a query, and how its answer is sampled."""
        if ("prompt" in given) == ("messages" in given) or set(given) - {"prompt", "messages", "stream", *LIMITS}:
            raise DataError(
                "a query must be a text, a list of messages, or have 'prompt' or 'messages', and maybe "
                + ", ".join(map(repr, LIMITS))
            )
        sampling = self._sampling.of_query(given)
        tokens = self._of_text(given["prompt"]) if "prompt" in given else self._of_messages(given["messages"])
        if not tokens:
            raise DataError("the prompt has no tokens")
        room = sampling.max_new_tokens if self._context is None else self._context - len(tokens)
        if room < 1:
            raise DataError(f"the prompt has {len(tokens)} tokens; the model has {self._context} for prompt and answer")
        return tokens, replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))

    def _of_text(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, str):
            raise DataError(f"a prompt must be a text, not a {type(prompt).__name__}")
        tokens: list[int] = self._tokenizer(prompt)["input_ids"]
        return tokens

    def _of_messages(self, messages: Any) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise DataError("the tokenizer has no chat template: queries must be texts, not messages")
        try:
            found = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except Exception as error:  # a template may raise anything
            raise DataError(f"the chat template cannot write the messages: {first_line(error)}") from error
        tokens: list[int] = found["input_ids"]
        return tokens


class Emitter:
    """Emits a growing text, except an end that later tokens may change.

    Parameters
    ----------
    emit : called with a position in the text, and the text from there on.
    stops : texts that end the answer; nothing is emitted that may begin one.
    words : whether later tokens may change the last word.
    """

    def __init__(self, emit: Callable[[int, str], None], stops: tuple[str, ...], *, words: bool) -> None:
        self._emit, self._stops, self._words, self._sent = emit, stops, words, ""

    def continue_to(self, text: str) -> None:
        """Emit the rest of a text."""
        sure = text[: first_stop(text, self._stops)].rstrip("\ufffd")  # the first bytes of a character
        if self._words:
            sure = sure[: max(sure.rfind(" "), 0)]
        begun = (size for stop in self._stops for size in range(1, len(stop)) if sure.endswith(stop[:size]))
        sure = sure[: len(sure) - max(begun, default=0)]
        if sure.startswith(self._sent) and len(sure) > len(self._sent):
            self._emit(len(self._sent), sure[len(self._sent) :])
            self._sent = sure


def first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Return the position of the first of these texts in a text; None if it contains none."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
