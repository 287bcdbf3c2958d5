"""Answers of a language model, each computed alone, so that a query has the same answer in any process."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chimera.core.errors import DataError
from chimera.inference.models.table import Emit
from chimera.models.instantiation import first_line

MAX_STOPS = 4
"""Maximum number of texts in ``stop``."""
_MAX_STOP_CHARACTERS = 200
_LIMITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (lambda value: _is_whole(value) and value >= 1, "at least 1"),
    "temperature": (lambda value: _is_number(value) and 0 <= value < math.inf, "0 or more"),
    "top_k": (lambda value: _is_whole(value) and value >= 0, "0 or more"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "above 0 and at most 1"),
    "seed": (lambda value: _is_whole(value) and 0 <= value < 2**63, "a whole number, 0 or more, and below 2**63"),
    "stop": (lambda value: _are_stops(value), f"a list of at most {MAX_STOPS} texts of 1 to 200 characters"),
}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The selection of the tokens of an answer.

    Parameters
    ----------
    max_new_tokens, temperature, top_k, top_p, seed : see `chimera.inference.models.text_generation.TextGeneration`.
    stop : texts that end an answer; the answer does not contain them.

    Raises
    ------
    DataError : a value is invalid.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, (valid, must) in _LIMITS.items():
            if not valid(getattr(self, key)):
                raise DataError(f"{key} = {getattr(self, key)!r} must be {must}")

    def of_query(self, given: Mapping[str, Any]) -> Sampling:
        """Return the same with the values that a query sets. A query can lower ``max_new_tokens`` only.

        Raises
        ------
        DataError : a value is invalid.
        """
        own = replace(self, **{key: value for key, value in given.items() if key in _LIMITS})
        return replace(own, max_new_tokens=min(own.max_new_tokens, self.max_new_tokens))

    def options(self) -> dict[str, Any]:
        """Return the options of ``generate``."""
        drawn = {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}
        return {"do_sample": bool(self.temperature), "num_beams": 1, **(drawn if self.temperature else {})}


class TextGenerator:
    """Continues prompts.

    Parameters
    ----------
    module : a causal language model of transformers, or one of peft around it, in evaluation mode.
    tokenizer : its tokenizer.
    sampling : how tokens are selected, unless a query sets values of its own.
    """

    def __init__(self, module: Any, tokenizer: Any, sampling: Sampling) -> None:
        self._module, self._tokenizer, self._sampling = module, tokenizer, sampling
        self._context: int | None = getattr(module.config, "max_position_embeddings", None)
        self._cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        self._restrict(module.generation_config)

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the answer of each query.

        A query is a text; a list of messages, ``{"role": "user", "content": "..."}``, for a tokenizer with a chat template; or
        a dictionary with ``prompt`` or ``messages``, and optionally values of its own for the parameters of `Sampling`. The
        answer is a dictionary with ``text``, ``prompt_tokens``, ``generated_tokens`` and ``finish_reason``, which is ``stop``
        (an end token or a text of ``stop``) or ``length``. The answer of a query that cannot be used is an exception.
        """
        return [self._answer(query, None) for query in queries]

    def stream(self, queries: list[Any], emit: Emit) -> list[Any]:
        """Return what `predict` returns, and emit texts, see `StreamingPredictor`."""
        return [self._answer(query, partial(emit, index)) for index, query in enumerate(queries)]

    def _answer(self, query: Any, emit: Callable[[int, str], None] | None) -> Any:
        emitter = None
        try:
            tokens, sampling = self._read(query)
            if emit is not None and isinstance(query, Mapping) and query.get("stream") is True:
                emitter = _Emitter(emit, sampling.stop, words=self._cleans)
            generated = self._generated(tokens, sampling, emitter)
        except DataError as error:
            return error
        text = self._tokenizer.decode(generated, skip_special_tokens=True)
        cut = _first_stop(text, sampling.stop)
        ended = cut is not None or (generated[-1:] and generated[-1] in self._ends)
        return {
            "text": text[:cut],
            "prompt_tokens": len(tokens),
            "generated_tokens": len(generated),
            "finish_reason": "stop" if ended else "length",
        }

    def _generated(self, tokens: list[int], sampling: Sampling, emitter: _Emitter | None) -> list[int]:
        """Return the new tokens."""
        import torch

        max_tokens = sampling.max_new_tokens
        if self._context is not None:
            max_tokens = min(max_tokens, self._context - len(tokens))
        if max_tokens < 1:
            raise DataError(f"the prompt has {len(tokens)} tokens; the model has {self._context} for prompt and answer")
        device = self._module.device
        prompt = torch.tensor([tokens], device=device)

        def stopped(ids: Any, _: Any, **__: Any) -> Any:
            text = self._tokenizer.decode(ids[0, len(tokens) :], skip_special_tokens=True)
            if emitter is not None:
                emitter.continue_to(text)
            return torch.tensor([_first_stop(text, sampling.stop) is not None], device=device)

        # The library draws from the global generators. Their states are restored, since other models in this process
        # may draw from them.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(query_seed(sampling.seed, tokens))
            found = self._module.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens,
                stopping_criteria=[stopped] if sampling.stop or emitter else None, **sampling.options(),
            )  # fmt: skip
        generated: list[int] = found[0, len(tokens) :].tolist()
        return generated

    def _read(self, query: Any) -> tuple[list[int], Sampling]:
        """Return the tokens of a query, and how its answer is sampled."""
        given = query if isinstance(query, Mapping) else {"messages" if isinstance(query, list) else "prompt": query}
        if ("prompt" in given) == ("messages" in given) or set(given) - {"prompt", "messages", "stream", *_LIMITS}:
            raise DataError(
                "a query must be a text, a list of messages, or have 'prompt' or 'messages', and maybe "
                + ", ".join(map(repr, _LIMITS))
            )
        sampling = self._sampling.of_query(given)
        tokens = self._of_text(given["prompt"]) if "prompt" in given else self._of_messages(given["messages"])
        if not tokens:
            raise DataError("the prompt has no tokens")
        return tokens, sampling

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

    def _restrict(self, config: Any) -> None:
        """Replace the model's own defaults for generation, except its special tokens, so that the table alone decides."""
        from transformers import GenerationConfig

        ends = config.eos_token_id if config.eos_token_id is not None else self._tokenizer.eos_token_id
        pads = next((one for one in (config.pad_token_id, self._tokenizer.pad_token_id) if one is not None), None)
        first = ends[0] if isinstance(ends, list) and ends else ends
        self._ends = set(ends if isinstance(ends, list) else [ends])
        kept = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=ends, pad_token_id=first if pads is None else pads
        )
        self._module.generation_config = kept
        if hasattr(self._module, "get_base_model"):  # peft's own object would keep the former one
            self._module.get_base_model().generation_config = kept


class _Emitter:
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
        sure = text[: _first_stop(text, self._stops)].rstrip("\ufffd")  # the first bytes of a character
        if self._words:
            sure = sure[: max(sure.rfind(" "), 0)]
        begun = (size for stop in self._stops for size in range(1, len(stop)) if sure.endswith(stop[:size]))
        sure = sure[: len(sure) - max(begun, default=0)]
        if sure.startswith(self._sent) and len(sure) > len(self._sent):
            self._emit(len(self._sent), sure[len(self._sent) :])
            self._sent = sure


def query_seed(seed: int, tokens: list[int]) -> int:
    """Return the seed of a query's generator: 63 bits of the SHA-256 of seed and tokens.

    Equal queries of a job have equal seeds, in any batch, order or process.
    """
    content = json.dumps([seed, tokens]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def _first_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """Return the position of the first of these texts in a text; None if it contains none."""
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_stops(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) > MAX_STOPS:
        return False
    return all(isinstance(text, str) and 0 < len(text) <= _MAX_STOP_CHARACTERS for text in value)
