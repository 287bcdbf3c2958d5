"""Language models whose engine is vLLM: the queries of a batch are computed together, with one cache of keys and values."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from chimera.core.errors import ConfigurationError
from chimera.inference.models.generation import end_tokens
from chimera.inference.models.hub import downloaded, located, stamp_of
from chimera.inference.models.prompts import LanguageModel, Request
from chimera.inference.models.sampling import TOKENIZER, SampledModel, Sampling, query_seed
from chimera.inference.models.spec import MAX_AT_ONCE
from chimera.inference.models.table import KINDS
from chimera.models.instantiation import first_line

_OLDEST = 0, 32
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine computes in this process, and so ends with it
    "VLLM_HOST_IP": "127.0.0.1",  # its sockets listen on the loopback interface only
    "GLOO_SOCKET_IFNAME": _LOOPBACK,  # the same for its libraries, whose default is the address of the host name
    "NCCL_SOCKET_IFNAME": _LOOPBACK,
    "VLLM_NO_USAGE_STATS": "1",  # vLLM sends no usage statistics
}


@KINDS.register("vllm", requires="vllm", preload=["torch"])
@dataclass(frozen=True, kw_only=True)
class Vllm(SampledModel):
    """A causal language model that vLLM computes. An answer may depend on the other queries of its batch.

    Parameters
    ----------
    model, tokenizer, revision, max_new_tokens, temperature, top_k, top_p, seed, dtype, stamp : see `SampledModel`.
    max_num_seqs : maximum number of queries that are computed at once. A batch has at least so many queries if they wait.
    max_model_len : maximum number of tokens of a prompt and its answer; default: that of the model. It must fit the cache.
    gpu_memory_utilization : share of a GPU's memory that the engine takes for weights and cache.
    enforce_eager : whether to compute without compiled graphs. The model then loads sooner, and computes more slowly on a GPU.
    """

    max_num_seqs: int = 32
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_num_seqs <= MAX_AT_ONCE:
            raise ConfigurationError(f"max_num_seqs = {self.max_num_seqs} must be 1 to {MAX_AT_ONCE}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigurationError(f"max_model_len = {self.max_model_len} must be 2 or more")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigurationError(
                f"gpu_memory_utilization = {self.gpu_memory_utilization} must be above 0 and at most 1"
            )

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with absolute paths.

        Raises
        ------
        ConfigurationError : a folder is missing.
        """
        model = located(self.model, self.revision, folder)
        tokenizer = located(self.tokenizer, None, folder, TOKENIZER) if self.tokenizer else None
        stamp = self.stamp or stamp_of(*(place for place in (model, tokenizer) if place))
        return replace(self, model=model, tokenizer=tokenizer, stamp=stamp)

    def load(self) -> VllmGenerator:
        """Start an engine in this process, without any code or pickled weights of the model. Set environment variables of vLLM.

        Raises
        ------
        ConfigurationError : the release of vLLM is too old, or the model cannot be loaded.
        """
        model = downloaded(self.model, self.revision)
        place = self.tokenizer_folder(model)
        os.environ.update(_ENVIRONMENT)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        import vllm

        _check_release(vllm.__version__)
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
            engine = vllm.LLM(
                model=model,
                tokenizer=place,
                tokenizer_mode="hf",
                trust_remote_code=False,
                load_format="safetensors",
                generation_config="vllm",  # the settings in the folder have no effect
                dtype=self.dtype,
                max_num_seqs=self.max_num_seqs,
                max_model_len=self.max_model_len,
                gpu_memory_utilization=self.gpu_memory_utilization,
                enforce_eager=self.enforce_eager,
            )
            ends = end_tokens(_settings(model), tokenizer)
        except Exception as error:  # many libraries raise many types
            raise ConfigurationError(f"the model {self.model!r} cannot be loaded: {first_line(error)}") from error
        return VllmGenerator(engine, tokenizer, self.sampling(), ends=ends)


class VllmGenerator(LanguageModel):
    """Continues the prompts of a batch together.

    Parameters
    ----------
    engine : an ``LLM`` of vLLM.
    tokenizer, sampling, ends : see `LanguageModel`.
    """

    def __init__(self, engine: Any, tokenizer: Any, sampling: Sampling, *, ends: set[int]) -> None:
        super().__init__(tokenizer, sampling, context=engine.model_config.max_model_len, ends=ends)
        self._engine, self._numbers = engine, itertools.count()

    def _generate(self, requests: list[Request]) -> list[list[int]]:
        """Return the new tokens, and emit texts after each step of the engine.

        ``LLM.generate`` would leave its requests in the engine if a step fails, and the next call would return their answers.
        """
        engine = self._engine.llm_engine
        running = {f"chimera-{next(self._numbers)}": index for index, _ in enumerate(requests)}
        found: list[list[int]] = [[] for _ in requests]
        try:
            for name, index in running.items():
                engine.add_request(name, {"prompt_token_ids": requests[index].tokens}, self._options(requests[index]))
            while engine.has_unfinished_requests():
                for name, tokens in _progress(engine.step()):
                    found[running[name]] = tokens
                    emitter = requests[running[name]].emitter
                    if emitter is not None:
                        emitter.continue_to(self._text(tokens))
        except BaseException:
            engine.abort_request(list(running))
            raise
        return found

    def _options(self, request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling, whole = request.sampling, request.emitter is None
        return SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=float(sampling.temperature),
            top_k=sampling.top_k,
            top_p=float(sampling.top_p),
            seed=query_seed(sampling.seed, request.tokens),
            stop=list(sampling.stop),
            stop_token_ids=sorted(self._ends),
            ignore_eos=True,  # only these tokens end an answer
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.FINAL_ONLY if whole else RequestOutputKind.CUMULATIVE,
        )


def _check_release(version: str) -> None:
    """Raise ConfigurationError if a release of vLLM is older than `_OLDEST`; builds without a number are accepted."""
    number = re.match(r"(\d+)\.(\d+)", version)
    if number and tuple(map(int, number.groups())) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ConfigurationError(f"vLLM {version} is too old: install {oldest} or newer")


def _progress(outputs: list[Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield the names of requests, and their new tokens so far."""
    for one in outputs:
        yield one.request_id, list(one.outputs[0].token_ids)


def _settings(model: str) -> Any:
    """Return a model's settings for generation; only their special tokens are used."""
    from transformers import AutoConfig, GenerationConfig

    if (Path(model) / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(model)
    return GenerationConfig.from_model_config(AutoConfig.from_pretrained(model, trust_remote_code=False))
