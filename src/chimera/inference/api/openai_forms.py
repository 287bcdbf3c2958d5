"""The forms of OpenAI's API: its requests become queries of served models, and results become its answers. No I/O.

A served model can answer completions if its results have ``text``, ``prompt_tokens`` and ``generated_tokens``, as those of kind
``text-generation`` do. It can answer embeddings if they have ``embedding`` and ``prompt_tokens`` (``text-embeddings``).
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson
from starlette.responses import Response

from chimera.core.errors import DataError
from chimera.inference.api.serving import MAX_QUERIES
from chimera.web.errors import response_to

Body: TypeAlias = dict[str, Any]

_SAMPLING = ("temperature", "top_p", "top_k", "seed", "stop")
_STREAM = ("stream", "stream_options")
_IGNORED = frozenset({"user", "metadata", "safety_identifier", "store", "prompt_cache_key", "service_tier"})
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # options that are accepted with these values only, which change nothing
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_STATUS = {"NotServedError": 404, "QueueFullError": 429}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {"NotServedError": "model_not_found", "UnauthorizedError": "invalid_api_key"}


class OptionError(DataError):
    """A field of a request is invalid.

    Attributes
    ----------
    param : its name.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Form:
    """One route of the API.

    Attributes
    ----------
    queries : returns the queries of a request's body; raises `OptionError`.
    answer : returns the body of the answer from the request's body and the results.
    streams : the object that each chunk of a stream names; empty if there are no streams.
    example : a body.
    """

    path: str
    summary: str
    queries: Callable[[Body], list[Any]]
    answer: Callable[[Body, Sequence[Mapping[str, Any]]], Body]
    example: Body
    streams: str = ""


def model_of(body: Body) -> str:
    """Return the name of the model that a request addresses."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise OptionError("model", "the body must have 'model', the name of a served model")
    return name


def streams(body: Body) -> bool:
    """Return whether a request asks for a stream."""
    value, more = body.get("stream"), body.get("stream_options")
    if value not in (None, False, True):
        raise OptionError("stream", "stream must be true or false")
    if more is not None and not (value and isinstance(more, dict) and set(more) <= {"include_usage"}):
        raise OptionError("stream_options", "stream_options needs a stream, and may contain 'include_usage' only")
    return bool(value)


def results_of(answers: Sequence[Mapping[str, Any]], model: str, *needs: str) -> list[Mapping[str, Any]]:
    """Return the results of answers; they must be dictionaries with these keys.

    Raises
    ------
    DataError : an answer is an error, or the model gives other results.
    """
    for answer in answers:
        if "error" in answer:
            raise DataError(str(answer["error"]))
        result = answer["result"]
        if not isinstance(result, Mapping) or not all(_has(result, key) for key in needs):
            raise DataError(f"the model {model!r} is not for this route: its results have no {' and no '.join(needs)}")
    return [answer["result"] for answer in answers]


def listed(models: Sequence[tuple[str, float]]) -> Body:
    """Return the list of the served models, given names and the times at which the serving began."""
    rows = [{"id": name, "object": "model", "created": int(at_s), "owned_by": "chimera"} for name, at_s in models]
    return {"object": "list", "data": rows}


def error_response(error: Exception) -> Response:
    """Return the answer to an exception: the status of OpenAI's API, and its form."""
    plain = response_to(error)
    found = orjson.loads(bytes(plain.body))
    name = found["details"]["errorMessage"]
    status = _STATUS.get(name, 400 if plain.status_code == 422 else plain.status_code)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": found["message"], "type": kind, "param": getattr(error, "param", None), "code": _CODES.get(name)}
    headers = {key: value for key, value in plain.headers.items() if not key.startswith("content-")}
    return Response(orjson.dumps({"error": body}), status, headers, "application/json")


def _completion_queries(body: Body) -> list[Any]:
    options = _options(body, "prompt", "max_tokens", *_STREAM)
    given = body.get("prompt")
    prompts = given if isinstance(given, list) else [given]
    if not 1 <= len(prompts) <= MAX_QUERIES or not all(isinstance(prompt, str) for prompt in prompts):
        raise OptionError("prompt", f"prompt must be a text, or a list of 1 to {MAX_QUERIES} texts")
    return [{"prompt": prompt, **options} for prompt in prompts]


def _chat_queries(body: Body) -> list[Any]:
    options = _options(body, "messages", "max_tokens", "max_completion_tokens", *_STREAM)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise OptionError("messages", "messages must be a list of at least one message")
    return [{"messages": [_message(message) for message in messages], **options}]


def _message(message: Any) -> Body:
    """Return a message whose content is one text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise OptionError("messages", "a message must have a role and a content")
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise OptionError("messages", "the content of a message must be a text, or a list of parts of type 'text'")
    return {**message, "content": content}


def _embedding_queries(body: Body) -> list[Any]:
    _options(body, "input", "encoding_format", sampling=())
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise OptionError("encoding_format", "encoding_format must be 'float' or 'base64'")
    given = body.get("input")
    texts = given if isinstance(given, list) else [given]
    if not 1 <= len(texts) <= MAX_QUERIES or not all(isinstance(text, str) for text in texts):
        raise OptionError("input", f"input must be a text, or a list of 1 to {MAX_QUERIES} texts")
    return texts


def _options(body: Body, *own: str, sampling: Sequence[str] = _SAMPLING) -> Body:
    """Return the sampling options in the form of a query. ``own`` are the other fields of the route."""
    for key, value in body.items():
        if value is None or key == "model" or key in own or key in sampling or key in _IGNORED:
            continue
        if key not in _NEUTRAL or value not in _NEUTRAL[key]:
            raise OptionError(
                key, f"the option {key!r} is not supported{' with this value' if key in _NEUTRAL else ''}"
            )
    options = {key: body[key] for key in sampling if body.get(key) is not None}
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    limits = [body[key] for key in ("max_completion_tokens", "max_tokens") if key in own and body.get(key) is not None]
    if streams(body):
        options["stream"] = True
    return {**options, **({"max_new_tokens": limits[0]} if limits else {})}


def _completion(body: Body, answers: Sequence[Mapping[str, Any]]) -> Body:
    results = results_of(answers, body["model"], "text", "prompt_tokens", "generated_tokens")
    choices = [
        {"index": index, "text": one["text"], "logprobs": None, "finish_reason": one.get("finish_reason", "stop")}
        for index, one in enumerate(results)
    ]
    return {**head("cmpl", "text_completion", body), "choices": choices, "usage": usage_of(results)}


def _chat_completion(body: Body, answers: Sequence[Mapping[str, Any]]) -> Body:
    (one,) = results = results_of(answers, body["model"], "text", "prompt_tokens", "generated_tokens")
    message = {"role": "assistant", "content": one["text"], "refusal": None}
    reason = one.get("finish_reason", "stop")
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}]
    return {**head("chatcmpl", "chat.completion", body), "choices": choices, "usage": usage_of(results)}


def _embeddings(body: Body, answers: Sequence[Mapping[str, Any]]) -> Body:
    results = results_of(answers, body["model"], "embedding", "prompt_tokens")
    packed = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(one["embedding"]) if packed else one["embedding"]}
        for index, one in enumerate(results)
    ]
    tokens = sum(one["prompt_tokens"] for one in results)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def head(prefix: str, kind: str, body: Body) -> Body:
    """Return the fields with which answers and chunks begin."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": body["model"]}


def usage_of(results: Sequence[Mapping[str, Any]]) -> Body:
    """Return the numbers of tokens of prompts and answers."""
    prompt, generated = (sum(one[key] for one in results) for key in ("prompt_tokens", "generated_tokens"))
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _has(result: Mapping[str, Any], key: str) -> bool:
    return type(result.get(key)) is int if key.endswith("_tokens") else key in result


def _packed(vector: Any) -> str:
    """Return float32 numbers, little-endian, in base64."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


FORMS = (
    Form(
        "/completions", "Continue one or several texts with a served language model.", _completion_queries, _completion,
        {"model": "gpt", "prompt": "the cat sat", "max_tokens": 16, "temperature": 0.7, "seed": 1},
        "text_completion",
    ),
    Form(
        "/chat/completions", "Answer a conversation with a served language model.", _chat_queries, _chat_completion,
        {"model": "gpt", "messages": [{"role": "user", "content": "where is the cat?"}], "max_tokens": 16},
        "chat.completion.chunk",
    ),
    Form(
        "/embeddings", "Turn one or several texts into vectors with a served encoder.", _embedding_queries, _embeddings,
        {"model": "encoder", "input": ["the cat", "the dog"], "encoding_format": "float"},
    ),
)  # fmt: skip
"""The routes that send queries to a served model."""
