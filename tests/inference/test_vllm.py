"""Models whose engine is vLLM. The tests that compute need vLLM, which has its own versions of torch and transformers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.inference import models
from chimera.inference.journal import records
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.models.sampling import Sampling
from chimera.inference.models.spec import queries_at_once
from chimera.inference.models.vllm import Vllm, VllmGenerator
from chimera.inference.policies.policy import POLICIES
from chimera.inference.scheduling.scheduler import Scheduler
from inference.running import alive, cluster, signalled, until
from inference_kit import tiny_llama

PROMPTS = [f"w{n} w{2 * n} w{3 * n}" for n in range(1, 9)]


def with_engine(test: Any) -> Any:
    """Mark a test that computes with vLLM; the engine takes about ten seconds to start."""
    missing = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: pip install vllm")
    return pytest.mark.long(missing(pytest.mark.filterwarnings("ignore")(test)))  # the library warns about its own code


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_llama(tmp_path_factory.mktemp("llama"))
    (folder / "chat_template.jinja").write_text("{% for one in messages %}{{ one['content'] }} {% endfor %}")
    return folder


def table(model: Path, **more: Any) -> dict[str, Any]:
    own = {"max_new_tokens": 16, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 8}
    return {"kind": "vllm", "model": str(model), **own, **more}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0 must be 1 to 1024"),
        ({"max_model_len": 1}, "max_model_len = 1 must be 2 or more"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization = 1.5 must be above 0"),
        ({"top_k": 5}, "top_k and top_p need a temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0 must be at least 1"),
    ],
)
def test_a_bad_table_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Vllm(**{"model": "some/name", **change})
    assert "\n" not in str(caught.value)


def test_an_id_needs_a_revision_and_an_adapter_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is an id: set revision"):
        Vllm(model="some/name").with_absolute_paths(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    with pytest.raises(ConfigurationError, match=r"contains no model of transformers: it has no config\.json"):
        Vllm(model="adapter").with_absolute_paths(tmp_path)


class Engine:
    """Answers each prompt with its first token, twice, in two steps; steps may fail. It is `LLM` and ``llm_engine`` in one."""

    model_config = SimpleNamespace(max_model_len=100)

    def __init__(self, failing: set[int]) -> None:
        self.llm_engine, self.held, self.steps, self.failing = self, dict[str, list[int]](), 0, failing

    def add_request(self, name: str, prompt: dict[str, list[int]], options: Any) -> None:
        assert options.output_kind == "final"
        self.held[name] = prompt["prompt_token_ids"][:1]

    def has_unfinished_requests(self) -> bool:
        return bool(self.held)

    def step(self) -> list[Any]:
        self.steps += 1
        if self.steps in self.failing:
            raise RuntimeError("the step failed")
        name, tokens = self.held.popitem()
        return [SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=tokens * 2)])]

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.held.pop(name, None)


class Words:
    """A tokenizer of words ``w<number>``."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split()]}

    def decode(self, tokens: list[int], **_: Any) -> str:
        return " ".join(f"w{token}" for token in tokens)


def library(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Replace vLLM by a module with the names that requests need."""
    kinds = SimpleNamespace(FINAL_ONLY="final", CUMULATIVE="so far")
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version, SamplingParams=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", SimpleNamespace(RequestOutputKind=kinds))


def test_a_step_that_fails_leaves_no_answer_to_the_next_query(monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, "0.32.0")
    engine = Engine(failing={2})
    generator = VllmGenerator(engine, Words(), Sampling(max_new_tokens=2), ends=set())
    with pytest.raises(RuntimeError, match="the step failed"):
        generator.predict(["w1", "w2", "w3"])
    assert [one["text"] for one in generator.predict(["w4", "w5"])] == ["w4 w4", "w5 w5"]


def test_an_old_release_is_refused_and_sockets_of_the_engine_are_on_the_loopback_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library(monkeypatch, "0.9.2")
    names = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
    for name in (*names, "VLLM_HOST_IP", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "before")
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(ConfigurationError, match=r"^vLLM 0\.9\.2 is too old: install 0\.32 or newer$"):
        Vllm(model=str(tmp_path)).load()
    assert {os.environ[name] for name in names} <= {"lo", "lo0"}
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_the_library_the_error_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'vllm' needs the package 'vllm'.*: pip install vllm$"):
        models.check(table(tmp_path))


def test_a_batch_has_as_many_queries_as_the_engine_computes_at_once() -> None:
    """A query of two seconds alone would otherwise be a batch of its own."""

    def sizes(**options: Any) -> list[int]:
        held = Scheduler(POLICIES.create("fair-share"))
        model = {"kind": "vllm", "max_num_seqs": 32}
        held.apply(records.Accepted("a", "a", "a", model, 1000, 1.0, options.get("batch_size", 0), 0, 0.0))
        found = []
        for _ in range(4):
            given = held.next_for("ann", {held.job("a").key}, 1, 0.0)
            assert given is not None
            held.apply(given)
            held.apply(records.Committed("a", given.batch, "ann", 2.0 * given.count, 0, 0.0))
            found.append(given.count)
        return found

    assert sizes() == [16, 32, 32, 32]  # the first one measures
    assert sizes(batch_size=5) == [5, 5, 5, 5]
    assert [queries_at_once({"max_num_seqs": given}) for given in (8, 0, -1, 10**9, "8", None)] == [8, 1, 1, 1024, 1, 1]
    assert queries_at_once({}) == 1


@with_engine
def test_answers_are_those_of_transformers_whole_or_as_a_stream(llama: Path) -> None:
    predictor = models.load(table(llama))
    drawn = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 3}
    messages = [{"role": "user", "content": "w1 w2"}]
    queries = [*PROMPTS, {"messages": messages}, 7, "w1 " * 70, {"prompt": "w5", "seed": -1}]
    found = models.answers(predictor, queries)
    other = models.load({"kind": "text-generation", "model": str(llama), "max_new_tokens": 16})
    assert found == models.answers(other, queries)
    texts = [one["result"]["text"] for one in found if "result" in one]
    assert len(texts) == len(PROMPTS) + 1
    twice = models.answers(predictor, [{"prompt": "w7", **drawn}] * 2)
    assert twice[0] == twice[1]
    longest = max(range(len(PROMPTS)), key=lambda index: len(texts[index].split()))
    stop = texts[longest].split()[2]
    stopped = {"prompt": PROMPTS[longest], "stop": [stop]}
    assert models.answers(predictor, [stopped]) == models.answers(other, [stopped])
    emitted: list[list[str]] = [[] for _ in PROMPTS]
    streamed = models.answers(
        predictor,
        [{"prompt": one, "stream": True} for one in PROMPTS],
        lambda index, _, text: emitted[index].append(text),
    )
    assert streamed == found[: len(PROMPTS)]
    assert ["".join(parts) for parts in emitted] == texts[: len(PROMPTS)]
    assert max(map(len, emitted)) > 3
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        models.load(table(incomplete(llama)))


def incomplete(folder: Path) -> Path:
    """Return a copy of a model without one of its weights."""
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(folder, folder.parent / "incomplete")
    weights = load_file(copy / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return Path(copy)


@with_engine
def test_a_cluster_shares_tokens_survives_kills_and_leaves_nothing(llama: Path, tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    given = models.check(table(llama))
    with cluster(tmp_path, workers=1, standbys=0, options=("--fair-by", "tokens")) as running:
        queries = [{"prompt": one, "seed": seed} for seed in range(60) for one in PROMPTS]
        long = running.client.submit(given, queries, batch_size=8)
        short = running.client.submit(given, [{"prompt": one["prompt"], "max_new_tokens": 1} for one in queries * 3])
        running.processed(long, 40)
        worker = running.member("worker")["pid"]
        group = descendants(running.up.pid) - {running.up.pid}
        assert all(place.startswith(("127.0.0.1:", "[::1]:")) for place in listening(group))
        computing = [pid for pid in descendants(worker) if pid != worker]
        signalled(worker, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in computing))
        for job in (long, short):
            row = running.client.wait(job, 170)
            assert (row["state"], row["errors"]) == ("done", 0)
        assert len(running.answers(long)) == len(queries)
        running.client.serve("llama", given)
        address, token = running.member("coordinator")["address"], (running.folder / "token").read_text()
        with openai.OpenAI(base_url=f"{address}/v1", api_key=token, max_retries=0) as client:
            answer = client.completions.create(model="llama", prompt=PROMPTS[:2], max_tokens=6, timeout=120)
            assert answer.usage.completion_tokens <= 12
            messages = [{"role": "user", "content": "w1 w2"}]
            whole = client.chat.completions.create(model="llama", messages=messages, max_completion_tokens=6)
            parts = client.chat.completions.create(
                model="llama", messages=messages, max_completion_tokens=6, stream=True
            )
            assert "".join(one.choices[0].delta.content or "" for one in parts) == whole.choices[0].message.content
    history = list(SqliteJournal(running.folder / "journal.sqlite").records())
    largest = {one.job: 0 for one in history if isinstance(one, records.Committed)}
    for one in history:
        if isinstance(one, records.Committed):
            largest[one.job] = max(largest[one.job], one.tokens)
    assert spread(history, long, short) <= 2 * (largest[long] + largest[short])


def spread(history: list[records.Record], *jobs: str) -> int:
    """Return the maximum difference of the tokens of two jobs, from the first batch of both to the last of one."""
    tokens: Counter[str] = Counter()
    left = Counter(one.job for one in history if isinstance(one, records.Committed))
    found, at_start = 0, None
    for one in history:
        if isinstance(one, records.Committed) and one.job in jobs:
            tokens[one.job] += one.tokens
            left[one.job] -= 1
            if at_start is None and all(tokens[job] for job in jobs):
                at_start = tokens.copy()
            if not all(left[job] for job in jobs):
                break
            if at_start is not None:
                first, second = (tokens[job] - at_start[job] for job in jobs)
                found = max(found, abs(first - second))
    assert at_start is not None
    return found


def descendants(pid: int) -> set[int]:
    """Return a process and all that it has started."""
    rows = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    parents = {int(row.split()[0]): int(row.split()[1]) for row in rows}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> list[str]:
    """Return the addresses at which processes listen."""
    rows = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    return [row.split()[3] for row in rows if pids & {int(pid) for pid in re.findall(r"pid=(\d+)", row)}]
