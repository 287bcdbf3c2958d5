"""Tokens per second of a language model: one worker of a cluster with vLLM, vLLM alone, and kind ``text-generation``.

The model is a Llama of random weights. It is written once, with a tokenizer of words. Run it where vLLM is installed::

    VLLM_CPU_KVCACHE_SPACE=2 python benchmarks/vllm_serving.py [--layers 12] [--queries 64] [--tokens 32]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import chimera
from chimera.inference import models

VOCABULARY = 32_000
HIDDEN = 576
HEADS = 9
PROMPT_WORDS = 32


def write_llama(folder: Path, layers: int) -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["[UNK]", "[EOS]", *(f"w{n}" for n in range(2, VOCABULARY))]
    made = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", eos_token="[EOS]").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=3 * HIDDEN, max_position_embeddings=512, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def generated(answers: list[Any]) -> int:
    return sum(one["result"]["generated_tokens"] for one in answers)


def on_cluster(table: dict[str, Any], queries: list[str], to: Path) -> float:
    """Return the generated tokens per second of one worker that has the model in memory."""
    with chimera.InferenceCluster(to / "cluster", workers=1) as cluster:
        chimera.infer(table, queries[:4], cluster=cluster).wait(timeout_s=600)
        began_s = time.perf_counter()
        job = chimera.infer(table, queries, cluster=cluster)
        job.wait(timeout_s=600)
        seconds = time.perf_counter() - began_s
        return generated(list(job.results())) / seconds


def alone(engine: Any, queries: list[str], tokens: int) -> float:
    """Return the same of one call of vLLM, without Chimera."""
    from vllm import SamplingParams

    options = SamplingParams(temperature=0, max_tokens=tokens)
    engine.generate(queries[:4], options, use_tqdm=False)
    began_s = time.perf_counter()
    found = engine.generate(queries, options, use_tqdm=False)
    return sum(len(one.outputs[0].token_ids) for one in found) / (time.perf_counter() - began_s)


def in_process(table: dict[str, Any], queries: list[str]) -> float:
    """Return the same of a loaded model in this process."""
    predictor = models.load(table)
    models.answers(predictor, queries[:1])
    began_s = time.perf_counter()
    return generated(models.answers(predictor, queries)) / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=Path("runs/vllm-serving"))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    folder = arguments.to / f"llama-{arguments.layers}"
    if not folder.is_dir():
        write_llama(folder, arguments.layers)
    queries = [" ".join(f"w{2 + 31 * n + i}" for i in range(PROMPT_WORDS)) for n in range(arguments.queries)]
    plain = {"kind": "text-generation", "model": str(folder), "max_new_tokens": arguments.tokens}
    table = models.check({**plain, "kind": "vllm", "dtype": "float32", "enforce_eager": True})
    print(f"text-generation: {in_process(plain, queries[:8]):.0f} tokens/s", flush=True)
    print(f"a worker with vllm: {on_cluster(table, queries, arguments.to):.0f} tokens/s", flush=True)
    engine = models.load(table)._engine  # type: ignore[attr-defined]
    print(f"vllm alone: {alone(engine, queries, arguments.tokens):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
