"""Answers of a language model, each computed alone, so that a query has the same answer wherever it is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from chimera.core.errors import DataError
from chimera.models.instantiation import first_line

_KEYS = {"prompt", "messages", "seed"}


class TextGenerator:
    """Continues prompts.

    Parameters
    ----------
    module : a causal language model of transformers, or one of peft around it, in evaluation mode.
    tokenizer : its tokenizer.
    max_new_tokens, temperature, top_k, top_p, seed : see `chimera.inference.models.text_generation.TextGeneration`.
    """

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int,
    ) -> None:
        self._module, self._tokenizer, self._seed = module, tokenizer, seed
        self._max_new_tokens = max_new_tokens
        config = module.config
        self._context: int | None = getattr(config, "max_position_embeddings", None)
        drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p} if temperature else {}
        self._options = {"do_sample": bool(temperature), "num_beams": 1, **drawn}
        self._restrict(module.generation_config)

    def predict(self, queries: list[Any]) -> list[Any]:
        """Return the answer of each query: a dictionary with ``text``, ``prompt_tokens`` and ``generated_tokens``.

        A query is a text; a list of messages, ``{"role": "user", "content": "..."}``, for a tokenizer with a chat template; or
        a dictionary with ``prompt`` or ``messages``, and optionally a ``seed`` of its own. The answer of a query that cannot be
        used is an exception.
        """
        return [self._answer(query) for query in queries]

    def _answer(self, query: Any) -> Any:
        try:
            tokens, seed = self._prompt(query)
            generated = self._generated(tokens, seed)
        except DataError as error:
            return error
        text = self._tokenizer.decode(generated, skip_special_tokens=True)
        return {"text": text, "prompt_tokens": len(tokens), "generated_tokens": len(generated)}

    def _generated(self, tokens: list[int], seed: int) -> list[int]:
        """Return the new tokens."""
        import torch

        room = self._max_new_tokens
        if self._context is not None:
            room = min(room, self._context - len(tokens))
        if room < 1:
            raise DataError(f"the prompt has {len(tokens)} tokens; the model has {self._context} for prompt and answer")
        device = self._module.device
        prompt = torch.tensor([tokens], device=device)
        # The library draws from the global generators. Their states are restored, for the sake of other models in this process.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(query_seed(seed, tokens))
            found = self._module.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=room, **self._options
            )
        generated: list[int] = found[0, len(tokens) :].tolist()
        return generated

    def _prompt(self, query: Any) -> tuple[list[int], int]:
        """Return the tokens of a query, and its seed."""
        given = query if isinstance(query, Mapping) else {"messages" if isinstance(query, list) else "prompt": query}
        seed = given.get("seed", self._seed)
        if ("prompt" in given) == ("messages" in given) or set(given) - _KEYS:
            raise DataError(
                "a query must be a text, a list of messages, or have 'prompt' or 'messages', and maybe 'seed'"
            )
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise DataError("the seed of a query must be a whole number from 0")
        tokens = self._of_text(given["prompt"]) if "prompt" in given else self._of_messages(given["messages"])
        if not tokens:
            raise DataError("the prompt has no tokens")
        return tokens, seed

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
        kept = GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=ends, pad_token_id=first if pads is None else pads
        )
        self._module.generation_config = kept
        if hasattr(self._module, "get_base_model"):  # peft's own object would keep the former one
            self._module.get_base_model().generation_config = kept


def query_seed(seed: int, tokens: list[int]) -> int:
    """Return the seed of a query's generator: 63 bits of the SHA-256 of seed and tokens.

    Equal queries of a job have equal seeds, in any batch, order or process.
    """
    content = json.dumps([seed, tokens]).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
