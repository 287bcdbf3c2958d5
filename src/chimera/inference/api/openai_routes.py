"""REST routes in the form of OpenAI's API, so that its clients can use served models."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from chimera.inference.api import openai_forms, serving
from chimera.inference.api.openai_forms import FORMS, Form
from chimera.inference.api.openai_stream import Chunks, server_sent
from chimera.inference.api.serving_routes import MAX_BODY_BYTES, QuerySender
from chimera.web.background import in_thread
from chimera.web.body import read_object
from chimera.web.routing import Endpoint, documented, plain_router

_PREFIX = "/v1"
_OBJECT: dict[str, Any] = {"type": "object"}

ERROR_FORMS = dict.fromkeys(
    (f"{_PREFIX}/models", *(f"{_PREFIX}{form.path}" for form in FORMS)), openai_forms.error_response
)
"""The form of errors, by path (`chimera.web.app.create_app`)."""


def openai_router(query_sender: QuerySender) -> APIRouter:
    """Return the routes."""
    router = plain_router(prefix=_PREFIX, tags=["OpenAI"])
    for form in FORMS:
        described = documented(
            form.summary, body=_OBJECT, example=form.example, answer=_OBJECT, errors=(503, 504), binary=False
        )
        router.post(form.path, **described)(_answering(query_sender, form))

    @router.get("/models", **documented("List the served models.", answer=_OBJECT, errors=(503,), binary=False))
    async def models(_: Request) -> Response:
        found = await in_thread(lambda: serving.served(query_sender.leader()))
        return _json(openai_forms.listed(found))

    return router


def _answering(query_sender: QuerySender, form: Form) -> Endpoint:
    async def answer(request: Request) -> Response:
        body = await read_object(request, MAX_BODY_BYTES)
        name, queries = openai_forms.model_of(body), form.queries(body)
        if form.streams and openai_forms.streams(body):
            event, others = await query_sender.stream(request, name, queries, serving.MAX_TIMEOUT_S)
            chunks = Chunks(form, body)
            first = chunks.of(event)  # an error at once has its own status
            return StreamingResponse(server_sent(chunks, first, others), media_type="text/event-stream")
        found = await query_sender.ask(request, name, queries, serving.MAX_TIMEOUT_S)
        return _json(form.answer(body, found))

    return answer


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
