"""Streams of a job's updates to a limited number of followers, without a thread for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chimera.core.errors import UnavailableError
from chimera.jobs.driver.progress_file import Tail
from chimera.jobs.store.states import TERMINAL

if TYPE_CHECKING:
    from chimera.jobs.daemon.daemon import Daemon

MAX_FOLLOWERS = 64
"""Maximum number of open streams of a daemon."""
POLL_S = 0.1
_KEEPALIVE_S = 2.0  # interval of empty lines in an idle stream


class TooManyFollowersError(UnavailableError):
    """The limit of followers is reached."""


class Followers:
    """Counter and limit of the streams of a daemon."""

    def __init__(self) -> None:
        self.count = 0

    def stream(self, lines: AsyncIterator[bytes], media_type: str) -> StreamingResponse:
        """Return a response that streams ``lines`` until they end or the client disconnects.

        Raises
        ------
        TooManyFollowersError : `MAX_FOLLOWERS` streams are open.
        """
        if self.count >= MAX_FOLLOWERS:
            raise TooManyFollowersError(f"{MAX_FOLLOWERS} clients follow already: end one of them, or try again later")
        return _Stream(self, lines, media_type)


class _Stream(StreamingResponse):
    def __init__(self, followers: Followers, lines: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(lines, media_type=media_type)
        self._followers = followers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._followers.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._followers.count -= 1


class JobUpdates:
    """Updates of a job for one follower.

    Parameters
    ----------
    job : id of the job.
    tails : readers of its log (``log``) and its progress file (``watch``).

    Attributes
    ----------
    ended : whether the job has ended and all updates were returned.
    """

    def __init__(self, daemon: Daemon, job: str, tails: dict[str, Tail]) -> None:
        self._daemon, self._job, self._tails = daemon, job, tails
        self._shown: dict[str, Any] = {}
        self.ended = False

    def updates(self) -> list[bytes]:
        """Return new lines, each with the offsets of the job's files after it; after the last line the final state."""
        daemon, job = self._daemon, self._job
        row = daemon.row_of(daemon.store.job(job))
        ended = row["state"] in TERMINAL and daemon.folder.job(job).driver_pid() is None
        updates = []
        for name in ("watch", "log"):
            for line in self._tails[name].lines(last=ended):
                entry = {"log": line.decode("utf-8", "replace")} if name == "log" else {"told": orjson.Fragment(line)}
                at = {name: tail.at for name, tail in self._tails.items()}
                updates.append(orjson.dumps({**entry, "at": at}, option=orjson.OPT_APPEND_NEWLINE))
        state = {key: row[key] for key in ("state", "reason", "attempt")}
        if state != self._shown and not updates:
            self._shown = state
            updates.append(orjson.dumps({"job": row}, option=orjson.OPT_APPEND_NEWLINE))
        self.ended = ended and not updates
        return updates

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield updates until the job has ended."""
        idle_s = 0.0
        while not self.ended:
            updates = await asyncio.to_thread(self.updates)  # short, in threads that all followers share
            for part in updates:
                yield part
            if updates:
                idle_s = 0.0
                continue
            await asyncio.sleep(POLL_S)
            idle_s += POLL_S
            if idle_s >= _KEEPALIVE_S:
                idle_s = 0.0
                yield b"\n"
