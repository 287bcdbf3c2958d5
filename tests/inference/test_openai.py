"""The routes in the form of OpenAI's API, of a real cluster: with plain HTTP, and with OpenAI's own client."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.inference import models
from inference.running import RunningCluster, cluster
from inference.test_serving import request
from inference_kit import tiny_bert, tiny_gpt

MODEL = """
import os, time

class Writer:
    def stream(self, queries, emit):
        if "/" not in queries[0].get("prompt", ""):
            return self.predict(queries)
        for index, query in enumerate(queries):
            emit(index, 0, "one ")
            if query["prompt"] == "/broken":
                raise ValueError("a broken prompt")
            if query["prompt"].endswith("/dies") and not os.path.exists(query["prompt"]):
                open(query["prompt"], "x").close()
                os._exit(1)
            while not os.path.exists(query["prompt"]):
                time.sleep(0.005)
            emit(index, 0, "one ")  # as after a retry
            emit(index, 4, "two ")
        return [{"text": "one two three", "prompt_tokens": 3, "generated_tokens": 2, "finish_reason": "length"}] * len(queries)

    def predict(self, queries):
        return [self._answer(query) for query in queries]

    def _answer(self, query):
        if isinstance(query, str):
            return {"embedding": [float(len(query)), 0.1, -2.0], "prompt_tokens": 2}
        lines = [one["role"] + ":" + one["content"] for one in query.get("messages", [])]
        text = query.get("prompt", "|".join(lines))
        if text == "broken":
            raise ValueError("a broken prompt")
        options = {key: value for key, value in query.items() if key not in ("prompt", "messages")}
        return {"text": f"{text} {sorted(options.items())}", "prompt_tokens": 3, "generated_tokens": 2}
"""
PROMPT = {"model": "writer", "prompt": "a"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("openai")
    (folder / "writer.py").write_text(MODEL)
    with cluster(folder, workers=1, standbys=0) as found:
        found.client.serve("writer", {"kind": "factory", "factory": f"{folder / 'writer.py'}:Writer"})
        found.client.serve("double", found.model(seconds=0.001))
        yield found


@pytest.fixture
def client(running: RunningCluster) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    address, token = running.member("coordinator")["address"], (running.folder / "token").read_text()
    with openai.OpenAI(base_url=f"{address}/v1", api_key=token, max_retries=0) as found:
        yield found


def test_texts_are_completed_with_the_options_and_tokens_of_each_request(running: RunningCluster) -> None:
    body = {
        "model": "writer",
        "prompt": ["a", "b"],
        "max_tokens": 4,
        "temperature": 0.5,
        "stop": "x",
        "n": 1,
        "user": "u",
    }
    status, found = request(running, "POST", "/v1/completions", body)
    assert status == 200
    options = "[('max_new_tokens', 4), ('stop', ['x']), ('temperature', 0.5)]"
    texts = [f"a {options}", f"b {options}"]
    assert found["object"] == "text_completion"
    assert [one["text"] for one in found["choices"]] == texts
    assert [one["index"] for one in found["choices"]] == [0, 1]
    assert found["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    status, found = request(
        running, "POST", "/v1/chat/completions", {"model": "writer", "messages": messages, "seed": 3}
    )
    assert (status, found["object"]) == (200, "chat.completion")
    assert found["choices"][0]["message"]["content"] == "system:s|user:u [('seed', 3)]"


def test_texts_become_vectors_as_numbers_or_packed(running: RunningCluster) -> None:
    body = {"model": "writer", "input": ["abc", "d"]}
    status, found = request(running, "POST", "/v1/embeddings", body)
    assert status == 200
    assert [one["embedding"] for one in found["data"]] == [[3.0, 0.1, -2.0], [1.0, 0.1, -2.0]]
    assert found["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    _, packed = request(running, "POST", "/v1/embeddings", body | {"encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert vector.tolist() == np.array([3.0, 0.1, -2.0], np.float32).tolist()


def events(running: RunningCluster, body: Any) -> Iterator[Any]:
    """Yield the events of a stream of completions, parsed, but for the last."""
    address, token = running.member("coordinator")["address"], (running.folder / "token").read_text()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer:
            if line == b"data: [DONE]\n":
                return
            if line.strip():
                yield json.loads(line.removeprefix(b"data: "))


def test_a_stream_has_each_part_of_a_text_as_it_is_generated(running: RunningCluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    body = {"model": "writer", "prompt": str(gate), "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(running, body)
    assert next(chunks)["choices"][0]["text"] == "one "
    gate.touch()  # the model generates the rest only now
    *texts, last, usage = chunks
    assert [chunk["choices"][0]["text"] for chunk in texts] == ["two ", "three"]
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("", "length")
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 5)


def test_a_stream_continues_after_the_death_of_its_computing_process(running: RunningCluster, tmp_path: Path) -> None:
    *texts, last = events(running, {"model": "writer", "prompt": str(tmp_path / "dies"), "stream": True})
    assert [chunk["choices"][0]["text"] for chunk in texts] == ["one ", "two ", "three"]
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_stream_that_fails_at_once_has_a_status_and_later_an_event(running: RunningCluster) -> None:
    status, told = request(running, "POST", "/v1/completions", {"model": "double", "prompt": "a", "stream": True})
    assert (status, set(told)) == (400, {"error"})
    status, told = request(running, "POST", "/v1/completions", {"model": "none", "prompt": "a", "stream": True})
    assert (status, told["error"]["code"]) == (404, "model_not_found")
    chunks = events(running, {"model": "writer", "prompt": "/broken", "stream": True})
    assert next(chunks)["choices"][0]["text"] == "one "
    (told,) = chunks
    assert "a broken prompt" in told["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("completions", {"prompt": "a"}, 400, "model", "must have 'model'"),
        ("completions", {"model": "none", "prompt": "a"}, 404, None, "no model is served as 'none'"),
        ("completions", {"model": "writer"}, 400, "prompt", "prompt must be a text"),
        ("completions", {"model": "writer", "prompt": ["a"] * 101}, 400, "prompt", "list of 1 to 100 texts"),
        ("completions", PROMPT | {"n": 2}, 400, "n", "the option 'n' is not supported with this value"),
        ("completions", PROMPT | {"logit_bias": {"5": 1}}, 400, "logit_bias", "is not supported"),
        ("completions", PROMPT | {"stream": 1.5}, 400, "stream", "stream must be true or false"),
        ("completions", PROMPT | {"stream_options": {}}, 400, "stream_options", "needs a stream"),
        ("completions", PROMPT | {"magic": 1}, 400, "magic", "the option 'magic' is not supported"),
        ("completions", {"model": "writer", "prompt": "broken"}, 400, None, "a broken prompt"),
        ("completions", {"model": "double", "prompt": "a"}, 400, None, ""),
        ("chat/completions", {"model": "writer", "messages": []}, 400, "messages", "at least one message"),
        (
            "chat/completions",
            {"model": "writer", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages",
            "parts of type 'text'",
        ),
        ("embeddings", {"model": "double", "input": "a"}, 400, None, "the model 'double' is not for this route"),
        ("embeddings", {"model": "writer", "input": "a", "dimensions": 2}, 400, "dimensions", "is not supported"),
        ("embeddings", {"model": "writer", "input": "a", "encoding_format": "x"}, 400, "encoding_format", "'base64'"),
    ],
)  # fmt: skip
def test_errors_have_openai_s_form(
    running: RunningCluster, path: str, body: Any, status: int, param: str | None, message: str
) -> None:
    found, told = request(running, "POST", f"/v1/{path}", body)
    assert (found, set(told), told["error"]["param"]) == (status, {"error"}, param)
    assert message in told["error"]["message"]
    assert "\n" not in told["error"]["message"]


def test_the_token_of_the_cluster_is_the_key(running: RunningCluster) -> None:
    for method, path in (
        ("POST", "completions"),
        ("POST", "chat/completions"),
        ("POST", "embeddings"),
        ("GET", "models"),
    ):
        status, told = request(running, method, f"/v1/{path}", token="guessed")
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")
    status, found = request(running, "GET", "/v1/models")
    assert (status, {one["id"] for one in found["data"]}) == (200, {"writer", "double"})


def test_openai_s_client_reads_answers_lists_and_errors(client: Any) -> None:
    import openai

    answer = client.completions.create(model="writer", prompt=["a", "b"], max_tokens=4)
    assert [one.text for one in answer.choices] == ["a [('max_new_tokens', 4)]", "b [('max_new_tokens', 4)]"]
    assert answer.usage.total_tokens == 10
    chat = client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "u"}], temperature=0)
    assert chat.choices[0].message.content == "user:u [('temperature', 0)]"
    vectors = client.embeddings.create(model="writer", input=["abc"]).data
    assert vectors[0].embedding == pytest.approx([3.0, 0.1, -2.0])
    assert {one.id for one in client.models.list()} == {"writer", "double"}
    stream = client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "u"}], stream=True)
    *parts, last = list(stream)
    assert "".join(part.choices[0].delta.content for part in parts).startswith("user:u [")
    assert last.choices[0].finish_reason == "stop"
    with pytest.raises(openai.NotFoundError, match="no model is served as 'none'"):
        client.completions.create(model="none", prompt="a")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="writer", prompt="a", n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").completions.create(model="writer", prompt="a")


@pytest.mark.long
def test_openai_s_client_gets_the_answers_of_language_models(
    client: Any, running: RunningCluster, tmp_path: Path
) -> None:
    gpt, bert = tiny_gpt(tmp_path / "gpt"), tiny_bert(tmp_path / "bert")
    (gpt / "chat_template.jinja").write_text("{% for one in messages %}{{ one['content'] }} {% endfor %}mat")
    shutil.copytree(gpt, tmp_path / "copy")
    tables = {
        "gpt": models.check({"kind": "text-generation", "model": str(gpt), "max_new_tokens": 8}),
        "encoder": models.check({"kind": "text-embeddings", "model": str(bert)}),
    }
    at_home = {name: models.load(table) for name, table in tables.items()}
    for name, table in tables.items():
        running.client.serve(name, table)
    (expected,) = at_home["gpt"].predict([{"prompt": "the cat", "temperature": 2.0, "seed": 4, "max_new_tokens": 5}])
    found = client.completions.create(model="gpt", prompt="the cat", temperature=2.0, seed=4, max_tokens=5, timeout=120)
    assert found.choices[0].text == expected["text"]
    assert found.choices[0].finish_reason == expected["finish_reason"]
    assert found.usage.prompt_tokens == expected["prompt_tokens"]
    assert found.usage.completion_tokens == expected["generated_tokens"]
    messages = [{"role": "user", "content": "the dog"}]
    chat = client.chat.completions.create(model="gpt", messages=messages, max_completion_tokens=6)
    (expected,) = at_home["gpt"].predict([{"messages": messages, "max_new_tokens": 6}])
    assert chat.choices[0].message.content == expected["text"]
    parts = client.completions.create(model="gpt", prompt="the cat", max_tokens=6, stream=True)
    (expected,) = at_home["gpt"].predict([{"prompt": "the cat", "max_new_tokens": 6}])
    assert "".join(part.choices[0].text for part in parts) == expected["text"]
    texts = ["the cat sat", "a dog"]
    vectors = [one.embedding for one in client.embeddings.create(model="encoder", input=texts).data]
    wanted = [one["embedding"] for one in at_home["encoder"].predict(texts)]
    assert np.array(vectors) == pytest.approx(np.array(wanted), abs=1e-6)
