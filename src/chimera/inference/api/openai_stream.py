"""Answers in the form of OpenAI's API as a stream of server-sent events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import orjson

from chimera.inference.api.openai_forms import Body, Form, error_response, head, results_of, usage_of
from chimera.inference.api.serving_routes import Event

_END = b"data: [DONE]\n\n"


class Chunks:
    """The chunks of one answer.

    Parameters
    ----------
    form : the form of the route.
    body : the body of the request.
    """

    def __init__(self, form: Form, body: Body) -> None:
        self._chat = form.streams == "chat.completion.chunk"
        self._head = head("chatcmpl" if self._chat else "cmpl", form.streams, body)
        options = body.get("stream_options")
        self._counts = bool(options and options.get("include_usage"))

    def of(self, event: Event) -> list[Body]:
        """Return the chunks of an event.

        Raises
        ------
        DataError : an answer is an error, or the model generates no text.
        """
        return [self._chunk(*event)] if isinstance(event, tuple) else list(self._last(event))

    def _chunk(self, index: int, text: str, reason: str | None = None) -> Body:
        delta = {"role": "assistant", "content": text} if reason is None else {}
        own = {"delta": delta} if self._chat else {"text": text}
        choice = {"index": index, **own, "logprobs": None, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _last(self, answers: list[dict[str, Any]]) -> Iterator[Body]:
        needs = ("text", "prompt_tokens", "generated_tokens")
        results: list[Mapping[str, Any]] = results_of(answers, self._head["model"], *needs)
        for index, result in enumerate(results):
            yield self._chunk(index, "", result.get("finish_reason", "stop"))
        if self._counts:
            yield {**self._head, "choices": [], "usage": usage_of(results)}


async def server_sent(
    chunks: Chunks, first: list[Body], events: AsyncGenerator[Event, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. An error ends it.

    Parameters
    ----------
    first : the chunks of the first event.
    events : the other events.
    """
    try:
        for chunk in first:
            yield _event(orjson.dumps(chunk))
        async with contextlib.aclosing(events):
            async for event in events:
                for chunk in chunks.of(event):
                    yield _event(orjson.dumps(chunk))
        yield _END
    except Exception as error:  # the status is sent already
        yield _event(bytes(error_response(error).body))


def _event(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"
