"""What the page shows, as server-sent events: rows whenever they change, and points of curves as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from fastapi import APIRouter, Request, Response

from chimera.jobs.daemon.streams import Followers
from chimera.jobs.driver.progress_file import Tail
from chimera.web.routing import documented, plain_router
from chimera.web.security import PAGE_POLICY

if TYPE_CHECKING:
    from chimera.jobs.daemon.daemon import Daemon

MOST_JOBS = 100
"""The newest so many are shown."""
LOOK_S = 0.5
_ALIVE_LOOKS = 10  # after so many without news a comment says that the stream lives


def page_router(daemon: Daemon, followers: Followers) -> APIRouter:
    """Return the route of what the page shows."""
    router = plain_router(prefix="/v1/page", tags=["page"])

    @router.get(
        "/events",
        **documented(
            "What the page shows, as server-sent events: ``cluster`` with rows of jobs and processes, ``points`` of a job's "
            "curves.", answer={"type": "string"}, binary=False, media="text/event-stream", errors=(503,),
        ),
    )  # fmt: skip
    async def events(_: Request) -> Response:
        return followers.stream(_told(View(daemon)), "text/event-stream")

    return router


def bare_page_router() -> APIRouter:
    """Return the route of the page itself: it is bare, and asks for what it shows with the token."""
    router = plain_router()
    page = files("chimera.jobs.daemon.page").joinpath("page.html").read_bytes()

    @router.get("/", include_in_schema=False)
    async def bare(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    return router


class View:
    """What one page has been told of a cluster."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._shown = b""
        self._tails: dict[str, Tail] = {}

    def news(self) -> list[bytes]:
        """Return the events since the last time."""
        daemon = self._daemon
        jobs = daemon.store.jobs()[-MOST_JOBS:]
        rows = {"jobs": [daemon.row_of(job) for job in jobs], "processes": daemon.rows()}
        told = []
        if (shown := orjson.dumps(rows)) != self._shown:
            self._shown = shown
            told.append(b"event: cluster\ndata: " + shown + b"\n\n")
        for job in jobs:
            tail = self._tails.setdefault(job.id, Tail(daemon.folder.job(job.id).watch))
            points = [point for line in tail.lines() if (point := point_of(line)) is not None]
            if points:
                data = orjson.dumps({"job": job.id, "points": points})
                told.append(b"event: points\ndata: " + data + b"\n\n")
        return told


def point_of(line: bytes) -> dict[str, Any] | None:
    """Return the point of the curves that a line of a job's progress is: its round, training loss and last evaluation.

    The first of an attempt has but a round: what came after that is void. None if the line is something else.
    """
    try:
        told = msgspec.json.decode(line)
        progress = told.get("progress") or told.get("start")
        if not progress:
            return None
        if "start" in told:
            return {"round": progress["rounds"], "loss": None, "metrics": {}}
        return {"round": progress["rounds"], "loss": progress["loss"], "metrics": progress["metrics"]}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        return None  # an event, or what another version of Chimera has written


async def _told(view: View) -> AsyncIterator[bytes]:
    silent = 0
    while True:
        told = await asyncio.to_thread(view.news)  # a short look, in threads that all followers share
        for event in told:
            yield event
        silent = 0 if told else silent + 1
        if silent >= _ALIVE_LOOKS:
            silent = 0
            yield b": alive\n\n"
        await asyncio.sleep(LOOK_S)
