"""What is told of a job while it goes on: to a bounded number of followers, none of which has a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chimera.core.errors import UnavailableError
from chimera.jobs.driver.progress_file import Tail
from chimera.jobs.store.states import OVER

if TYPE_CHECKING:
    from chimera.jobs.daemon.daemon import Daemon

MOST_FOLLOWERS = 64
"""So many streams a daemon has at once."""
LOOK_S = 0.1
_ALIVE_S = 2.0  # so often a stream says that it lives


class TooManyFollowersError(UnavailableError):
    """As many clients follow jobs already as may."""


class Followers:
    """Counts the streams of a daemon."""

    def __init__(self) -> None:
        self.now = 0

    def stream(self, told: AsyncIterator[bytes], media_type: str) -> StreamingResponse:
        """Return an answer that goes on until ``told`` ends or the client goes.

        Raises
        ------
        TooManyFollowersError : there are `MOST_FOLLOWERS` already.
        """
        if self.now >= MOST_FOLLOWERS:
            raise TooManyFollowersError(f"{MOST_FOLLOWERS} clients follow already: end one of them, or ask again later")
        return _Stream(self, told, media_type)


class _Stream(StreamingResponse):
    def __init__(self, followers: Followers, told: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(told, media_type=media_type)
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.now += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.now -= 1


class Telling:
    """What one follower has been told of a job."""

    def __init__(self, daemon: Daemon, job: str, tails: dict[str, Tail]) -> None:
        self._daemon, self._job, self._tails = daemon, job, tails
        self._shown: dict[str, Any] = {}
        self.over = False

    def news(self) -> list[bytes]:
        """Return what is new, each with where the job's files stood after it; at last how the job ended."""
        daemon, job = self._daemon, self._job
        row = daemon.row_of(daemon.store.job(job))
        over = row["state"] in OVER and daemon.folder.job(job).driver() is None
        found = []
        for name in ("watch", "log"):
            for line in self._tails[name].lines(last=over):
                told = {"log": line.decode("utf-8", "replace")} if name == "log" else {"told": orjson.Fragment(line)}
                at = {name: tail.at for name, tail in self._tails.items()}
                found.append(orjson.dumps({**told, "at": at}, option=orjson.OPT_APPEND_NEWLINE))
        state = {key: row[key] for key in ("state", "reason", "attempt")}
        if state != self._shown and not found:
            self._shown = state
            found.append(orjson.dumps({"job": row}, option=orjson.OPT_APPEND_NEWLINE))
        self.over = over and not found
        return found

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what is new, until the job is over."""
        silent_s = 0.0
        while not self.over:
            found = await asyncio.to_thread(self.news)  # a short look, in threads that all followers share
            for part in found:
                yield part
            if found:
                silent_s = 0.0
                continue
            await asyncio.sleep(LOOK_S)
            silent_s += LOOK_S
            if silent_s >= _ALIVE_S:
                silent_s = 0.0
                yield b"\n"
