"""Server-sent events of the web page: changed rows of jobs and processes, and new points of curves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from fastapi import APIRouter, Request, Response

from chimera.jobs.daemon.streams import Followers
from chimera.jobs.driver.progress_file import Tail
from chimera.web.page.routes import page_route
from chimera.web.routing import documented, plain_router

if TYPE_CHECKING:
    from chimera.jobs.daemon.daemon import Daemon

MAX_JOBS = 100
"""Maximum number of jobs on the page; older ones are not shown."""
POLL_S = 0.5
_KEEPALIVE_POLLS = 10  # polls without an update after which a comment is sent


def page_router(daemon: Daemon, followers: Followers) -> APIRouter:
    """Return the route of the page's events."""
    router = plain_router(prefix="/v1/page", tags=["page"])

    @router.get(
        "/events",
        **documented(
            "Server-sent events of the web page: ``cluster`` with rows of jobs and processes, ``points`` of a job's curves.",
            answer={"type": "string"}, binary=False, media="text/event-stream", errors=(503,),
        ),
    )  # fmt: skip
    async def events(_: Request) -> Response:
        return followers.stream(_page_events(PageUpdates(daemon)), "text/event-stream")

    return router


def bare_page_router() -> APIRouter:
    """Return the route of the page itself."""
    return page_route("chimera.jobs.daemon.page", "Chimera cluster", shared=("base.js", "charts.js"))


class PageUpdates:
    """Updates of a cluster for one open page."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._shown = b""
        self._tails: dict[str, Tail] = {}

    def updates(self) -> list[bytes]:
        """Return the events since the last call."""
        daemon = self._daemon
        jobs = daemon.store.jobs()[-MAX_JOBS:]
        rows = {"jobs": [daemon.row_of(job) for job in jobs], "processes": daemon.rows()}
        events = []
        if (shown := orjson.dumps(rows)) != self._shown:
            self._shown = shown
            events.append(b"event: cluster\ndata: " + shown + b"\n\n")
        for job in jobs:
            tail = self._tails.setdefault(job.id, Tail(daemon.folder.job(job.id).progress_file))
            points = [point for line in tail.lines() if (point := point_of(line)) is not None]
            if points:
                data = orjson.dumps({"job": job.id, "points": points})
                events.append(b"event: points\ndata: " + data + b"\n\n")
        return events


def point_of(line: bytes) -> dict[str, Any] | None:
    """Return the point of a line of a progress file: its round, training loss and last metrics; None for other lines.

    The first point of an attempt has only its round: the page drops all later points of earlier attempts.
    """
    try:
        entry = msgspec.json.decode(line)
        progress = entry.get("progress") or entry.get("start")
        if not progress:
            return None
        if "start" in entry:
            return {"round": progress["rounds"], "loss": None, "metrics": {}}
        return {"round": progress["rounds"], "loss": progress["loss"], "metrics": progress["metrics"]}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
        return None  # an event, or a line of another version of Chimera


async def _page_events(view: PageUpdates) -> AsyncIterator[bytes]:
    idle_polls = 0
    while True:
        events = await asyncio.to_thread(view.updates)  # short, in threads that all followers share
        for event in events:
            yield event
        idle_polls = 0 if events else idle_polls + 1
        if idle_polls >= _KEEPALIVE_POLLS:
            idle_polls = 0
            yield b": alive\n\n"
        await asyncio.sleep(POLL_S)
