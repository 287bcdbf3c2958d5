"""Answers of a language model of transformers, each computed alone, so that a query has the same answer in any process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chimera.inference.models.prompts import LanguageModel, Request, first_stop
from chimera.inference.models.sampling import Sampling, query_seed


class TextGenerator(LanguageModel):
    """Continues prompts, one after the other.

    Parameters
    ----------
    module : a causal language model of transformers, or one of peft around it, in evaluation mode.
    tokenizer : its tokenizer.
    sampling : how tokens are selected, unless a query sets values of its own.
    """

    def __init__(self, module: Any, tokenizer: Any, sampling: Sampling) -> None:
        ends = end_tokens(module.generation_config, tokenizer)
        context = getattr(module.config, "max_position_embeddings", None)
        super().__init__(tokenizer, sampling, context=context, ends=ends)
        self._module = module
        self._restrict(module.generation_config)

    def _generate(self, requests: list[Request]) -> Iterator[list[int]]:
        return map(self._generated, requests)

    def _generated(self, request: Request) -> list[int]:
        import torch

        tokens, sampling, emitter = request.tokens, request.sampling, request.emitter
        device = self._module.device
        prompt = torch.tensor([tokens], device=device)

        def stopped(ids: Any, _: Any, **__: Any) -> Any:
            text = self._text(ids[0, len(tokens) :])
            if emitter is not None:
                emitter.continue_to(text)
            return torch.tensor([first_stop(text, sampling.stop) is not None], device=device)

        # The library draws from the global generators. Their states are restored, since other models in this process
        # may draw from them.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(query_seed(sampling.seed, tokens))
            found = self._module.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=sampling.max_new_tokens,
                stopping_criteria=[stopped] if sampling.stop or emitter else None, **_options(sampling),
            )  # fmt: skip
        generated: list[int] = found[0, len(tokens) :].tolist()
        return generated

    def _restrict(self, config: Any) -> None:
        """Replace the model's own defaults for generation, except its special tokens, so that the table alone decides."""
        from transformers import GenerationConfig

        pads = (config.pad_token_id, self._tokenizer.pad_token_id, *sorted(self._ends))
        kept = GenerationConfig(
            bos_token_id=config.bos_token_id,
            eos_token_id=sorted(self._ends) or None,
            pad_token_id=next((one for one in pads if one is not None), None),
        )
        self._module.generation_config = kept
        if hasattr(self._module, "get_base_model"):  # peft's own object would keep the former one
            self._module.get_base_model().generation_config = kept


def end_tokens(config: Any, tokenizer: Any) -> set[int]:
    """Return the tokens that end an answer: those of a model's settings for generation, else that of its tokenizer."""
    ends = config.eos_token_id if config.eos_token_id is not None else tokenizer.eos_token_id
    return set(ends if isinstance(ends, list) else [] if ends is None else [ends])


def _options(sampling: Sampling) -> dict[str, Any]:
    """Return the options of ``generate``."""
    drawn = {
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": float(sampling.top_p),
    }
    return {"do_sample": bool(sampling.temperature), "num_beams": 1, **(drawn if sampling.temperature else {})}
