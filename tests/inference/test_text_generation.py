"""Language models that answer prompts: the library's own answers, the same wherever a query is computed."""

from __future__ import annotations

import json
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

import chimera
from chimera.core.errors import ConfigurationError
from chimera.inference import models
from chimera.inference.journal.records import Committed
from chimera.inference.journal.sqlite import SqliteJournal
from inference.running import cluster, signalled
from inference_kit import WORDS, tiny_gpt
from language_kit import text

DRAWN = {"max_new_tokens": 8, "temperature": 1.5, "top_k": 12, "top_p": 0.95, "seed": 7}
PROMPTS = [" ".join(WORDS[i % 12] for i in range(3 * length, 4 * length)) for length in (1, 2, 3, 4, 6, 7, 8)]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, gpt: Path) -> Path:
    """An adapter that a run of Chimera has trained and saved, beside the merged model."""
    folder = tmp_path_factory.mktemp("adapter")
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "path": str(gpt), "lora": {"targets": ["c_attn"]}},
        {"name": "text-blocks", "path": text(folder), "block": 8, "tokenizer_path": str(gpt)},
        engine="simulated", workers=2, batch_size=8, rounds=3, optimizer={"name": "sgd", "lr": 5.0}, strategy="all-reduce",
        out=folder / "run",
    )  # fmt: skip
    chimera.load(run.run_dir, merge=True).save_pretrained(folder / "merged")
    return Path(run.save(folder / "saved"))


def table(model: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "text-generation", "model": str(model), **more}


def results(given: dict[str, Any], queries: list[Any]) -> list[Any]:
    return [answer["result"] for answer in models.answers(models.load(given), queries)]


def greedy(module: Any, folder: Path, prompt: str) -> str:
    """Return the answer of plain transformers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(prompt, return_tensors="pt")["input_ids"]
    found = module.eval().generate(given, attention_mask=given * 0 + 1, max_new_tokens=8, do_sample=False)
    return str(tokenizer.decode(found[0, given.shape[1] :], skip_special_tokens=True))


def test_greedy_answers_are_those_of_the_library(gpt: Path) -> None:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(gpt)
    found = results(table(gpt, max_new_tokens=8), PROMPTS)
    assert [one["text"] for one in found] == [greedy(module, gpt, prompt) for prompt in PROMPTS]
    assert {one["prompt_tokens"] for one in found} == {
        length + 2 for length in (1, 2, 3, 4, 6, 7, 8)
    }  # the tokenizer adds one before and one after
    assert max(one["generated_tokens"] for one in found) == 8


def test_drawn_answers_depend_on_query_and_seed_only(gpt: Path) -> None:
    predictor = models.load(table(gpt, **DRAWN))
    together = models.answers(predictor, PROMPTS)
    alone = [models.answers(predictor, [prompt])[0] for prompt in reversed(PROMPTS)]
    assert together == alone[::-1]
    assert len({json.dumps(answer) for answer in together}) > len(PROMPTS) / 2
    other = models.answers(models.load(table(gpt, **{**DRAWN, "seed": 8})), PROMPTS)
    assert other != together
    assert models.answers(predictor, [{"prompt": prompt, "seed": 8} for prompt in PROMPTS]) == other


def test_the_settings_for_generation_in_the_folder_have_no_effect(gpt: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(gpt, copy)
    settings = json.loads((copy / "generation_config.json").read_text())
    settings |= {"do_sample": True, "temperature": 9.0, "repetition_penalty": 50.0, "max_new_tokens": 1}
    (copy / "generation_config.json").write_text(json.dumps(settings))
    assert results(table(copy, max_new_tokens=8), PROMPTS) == results(table(gpt, max_new_tokens=8), PROMPTS)


@pytest.mark.long
def test_an_adapter_of_a_run_answers_as_peft_and_as_the_merged_model(adapter: Path, gpt: Path) -> None:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        module = peft.AutoPeftModelForCausalLM.from_pretrained(adapter)
    found = results(table(adapter, max_new_tokens=8), PROMPTS)
    assert [one["text"] for one in found] == [greedy(module, gpt, prompt) for prompt in PROMPTS]
    assert found != results(table(gpt, max_new_tokens=8), PROMPTS)
    merged = table(adapter.parent / "merged", max_new_tokens=8, tokenizer=str(gpt))
    assert results(merged, PROMPTS) == found


def test_messages_go_through_the_chat_template_of_the_tokenizer(gpt: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(gpt, copy)
    (copy / "chat_template.jinja").write_text("{% for one in messages %}{{ one['content'] }} {% endfor %}mat")
    messages = [{"role": "user", "content": "the cat"}]
    found = results(table(copy), [messages, {"messages": messages}])
    assert found == [found[0]] * 2
    (refused,) = models.answers(models.load(table(gpt)), [messages])
    assert "the tokenizer has no chat template" in refused["error"]


def test_a_query_that_cannot_be_used_has_an_error_and_the_others_their_answers(gpt: Path) -> None:
    predictor = models.load(table(gpt, max_new_tokens=8))
    queries = ["the cat", "the " * 40, 7, {"prompt": "the", "seed": -1}, {"text": "the"}, "the " * 27, "the cat"]
    found = models.answers(predictor, queries)
    assert ["error" in one for one in found] == [False, True, True, True, True, False, False]
    assert "the prompt has 42 tokens; the model has 32" in found[1]["error"]
    assert found[5]["result"]["generated_tokens"] <= 3  # the rest of the model's length
    assert found[0] == found[6]


def test_a_query_sets_its_own_options_within_those_of_the_model(gpt: Path) -> None:
    predictor = models.load(table(gpt, max_new_tokens=8))

    def answers(**options: Any) -> list[Any]:
        return [
            answer["result"] for answer in models.answers(predictor, [{"prompt": one, **options} for one in PROMPTS])
        ]

    assert answers(temperature=1.5, top_k=12, top_p=0.95, seed=7) == results(table(gpt, **DRAWN), PROMPTS)
    assert answers(max_new_tokens=3) == results(table(gpt, max_new_tokens=3), PROMPTS)
    assert answers(max_new_tokens=1000) == results(table(gpt, max_new_tokens=8), PROMPTS)
    (refused,) = models.answers(predictor, [{"prompt": "the", "temperature": "hot"}])
    assert refused["error"] == "temperature = 'hot' must be 0 or more"


def test_an_answer_ends_before_a_text_of_stop_and_says_why_it_ends(gpt: Path) -> None:
    predictor = models.load(table(gpt, max_new_tokens=8))
    whole = next(
        answer["result"] for answer in models.answers(predictor, PROMPTS) if len(answer["result"]["text"].split()) > 3
    )
    prompt = PROMPTS[[one["result"] for one in models.answers(predictor, PROMPTS)].index(whole)]
    stop = whole["text"].split()[2]
    (found,) = models.answers(predictor, [{"prompt": prompt, "stop": [stop, "never"]}])
    assert found["result"]["text"] == whole["text"].partition(stop)[0]
    assert found["result"]["finish_reason"] == "stop"
    assert found["result"]["generated_tokens"] < whole["generated_tokens"]
    reasons = {
        one["generated_tokens"] == 8: one["finish_reason"] for one in results(table(gpt, max_new_tokens=8), PROMPTS)
    }
    assert reasons[True] == "length"
    assert reasons.get(False, "stop") == "stop"


def test_streamed_texts_are_the_beginnings_of_the_answers(gpt: Path) -> None:
    predictor = models.load(table(gpt, **DRAWN))
    queries = [{"prompt": prompt, "stream": True, "stop": ["tree"]} for prompt in PROMPTS]
    emitted = [[""] for _ in queries]

    def emit(index: int, at: int, text: str) -> None:
        assert at == len("".join(emitted[index]))
        emitted[index].append(text)

    streamed = models.answers(predictor, [*queries, {"prompt": "the"}], emit)
    assert streamed == models.answers(predictor, [*queries, {"prompt": "the"}])
    assert max(map(len, emitted)) > 3
    for pieces, answer in zip(emitted, streamed, strict=False):
        assert answer["result"]["text"].startswith("".join(pieces))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "temperature = -1.0 must be 0 or more"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p = 0.0 must be above 0 and at most 1"),
        ({"top_k": 5}, "top_k and top_p need a temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 must be at least 1"),
        ({"base": "."}, "is no adapter, so it needs no base"),
        ({"model": "some/name"}, "is an id: set revision"),
        ({"trust_remote_code": True}, "has no option 'trust_remote_code'"),
    ],
)
def test_a_bad_table_is_one_line(gpt: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        models.check(table(gpt) | change)
    assert "\n" not in str(caught.value)


def test_an_adapter_selects_no_download_and_no_pickle(adapter: Path, gpt: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(adapter, copy)
    settings = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "some/name"}))
    with pytest.raises(ConfigurationError, match="names the base 'some/name', which is no folder of this machine"):
        models.check(table(copy))
    assert models.check(table(copy, base=str(gpt)))["base"] == str(gpt)
    (copy / "adapter_model.safetensors").rename(copy / "adapter_model.bin")
    with pytest.raises(ConfigurationError, match=r"has no adapter_model\.safetensors"):
        models.check(table(copy, base=str(gpt)))


@pytest.mark.long
def test_a_cluster_whose_worker_is_killed_gives_the_answers_of_one_process(adapter: Path, tmp_path: Path) -> None:
    queries = [{"prompt": prompt, "seed": seed} for seed in range(60) for prompt in PROMPTS]
    given = models.check(table(adapter, **DRAWN))
    expected = results(given, queries)
    with cluster(tmp_path, workers=2, options=("--fair-by", "tokens")) as running:
        job = running.client.submit(given, queries, batch_size=5)
        running.processed(job, 20)
        signalled(running.member("worker")["pid"], signal.SIGKILL)
        row = running.client.wait(job, 60)
        assert (row["state"], row["errors"]) == ("done", 0)
        assert running.answers(job) == expected
        alone = running.client.submit(given, queries[::-1], batch_size=64, max_workers=1)
        running.client.wait(alone, 60)
        assert running.answers(alone) == expected[::-1]
    committed = [
        one for one in SqliteJournal(running.folder / "journal.sqlite").records() if isinstance(one, Committed)
    ]
    for name in (job, alone):
        counted = sum(one.tokens for one in committed if one.job == name)
        assert counted == sum(answer["prompt_tokens"] + answer["generated_tokens"] for answer in expected)


def test_weights_that_the_files_lack_are_an_error_with_their_names(adapter: Path, gpt: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = shutil.copytree(gpt, tmp_path / "gpt")
    weights = load_file(whole / "model.safetensors")
    weights.pop("transformer.ln_f.weight")
    save_file(weights, whole / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"not hold the weights transformer\.ln_f\.weight: use a model"):
        models.load(table(whole))
    part = shutil.copytree(adapter, tmp_path / "adapter")
    weights = load_file(part / "adapter_model.safetensors")
    weights.pop(min(weights))
    save_file(weights, part / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"missing adapter keys .*lora_A") as caught:
        models.load(table(part, base=str(gpt)))
    assert "\n" not in str(caught.value)
