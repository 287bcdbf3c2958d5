"""The routes by which people, and `chimera submit` and its kin, ask the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from chimera.core.errors import ConfigurationError, ConflictError, DataError
from chimera.jobs.contents import Contents
from chimera.jobs.following import Followers, Telling
from chimera.jobs.promises import Needs
from chimera.jobs.records import File, Submission
from chimera.jobs.requirements import unmet
from chimera.jobs.states import Event
from chimera.jobs.tar import packed
from chimera.jobs.watching import Tail
from chimera.web.app import create_app
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.folder import Access
from chimera.web.routing import documented, plain_router

if TYPE_CHECKING:
    from chimera.jobs.daemon import Daemon

PREFIX = "/v1/jobs"
_ANY: dict[str, Any] = {"type": "object"}
_ROWS: dict[str, Any] = {"type": "object", "properties": {"rows": {"type": "array", "items": _ANY}}}
_JOB = {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}
_BODY_BYTES = 64 << 20  # of what is no file
_MOST_BYTES = 1 << 40  # of a file


def create_jobs_app(daemon: Daemon) -> tuple[FastAPI, Access]:
    """Return the daemon's app, and who may ask it."""
    from chimera.jobs.page.stream import bare_page_router, page_router

    followers = Followers()
    access, page = Access(daemon.folder.token(), max_body_bytes=_MOST_BYTES), daemon.options.page
    app = create_app(
        title="Chimera jobs",
        settings=access,
        routers=[jobs_router(daemon, followers), *([page_router(daemon, followers)] if page else [])],
        public=[bare_page_router()] if page else [],
        about={"name": "jobs", "kind": "daemon"},
    )
    return app, access


def jobs_router(daemon: Daemon, followers: Followers) -> APIRouter:
    """Return the routes."""
    router = plain_router(prefix=PREFIX, tags=["jobs"])
    store, contents = daemon.store, Contents(daemon.folder.files)

    @router.get("", **documented("All jobs, and how they stand.", answer=_ROWS))
    async def jobs(request: Request) -> Response:
        return answer(request, {"rows": await in_thread(lambda: [daemon.row_of(job) for job in store.jobs()])})

    @router.get("/processes", **documented("All processes of the cluster.", answer=_ROWS))
    async def processes(request: Request) -> Response:
        return answer(request, {"rows": await in_thread(daemon.rows)})

    @router.post(
        "/missing",
        **documented(
            "Which contents of a manifest, the files of a job by path, are not here yet.", body=_ANY, answer=_ANY,
            example={"manifest": {"mine.py": {"sha256": "2c26b46b...", "size": 3}}}, answer_example={"files": []},
            errors=(422,),
        ),
    )  # fmt: skip
    async def missing(request: Request) -> Response:
        manifest = _converted(await read_object(request, _BODY_BYTES), "manifest", dict[str, File])
        files = await in_thread(contents.missing, manifest)
        return answer(request, {"files": msgspec.to_builtins(files)})

    @router.put("/files/{sha256}/{size}", **documented("Send a content.", answer=_ANY, errors=(422,), binary=False))
    async def put(request: Request) -> Response:
        file = _converted(request.path_params | {"size": _count(request.path_params["size"])}, None, File)
        await in_thread(contents.add, file, _parts(request, asyncio.get_running_loop()))
        return answer(request, {"sha256": file.sha256})

    @router.post(
        "", **documented("Take a job on.", body=_ANY, answer=_JOB, answer_example={"job": "1"}, errors=(409, 422))
    )
    async def submit(request: Request) -> Response:
        body = await read_object(request, _BODY_BYTES)
        submission, key = _converted(body, "submission", Submission), _converted(body, "key", str)
        return answer(request, {"job": await in_thread(_taken_on, daemon, submission, key)})

    @router.get("/{job}", **documented("How a job stands.", answer=_ANY, errors=(422,)))
    async def job(request: Request) -> Response:
        return answer(request, await in_thread(lambda: daemon.row_of(store.job(_job(request)))))

    for name, event, told in (
        ("cancel", Event.CANCEL, "Let a job go no further; what it has left stays."),
        ("retry", Event.RETRY, "Let a job that failed or was cancelled go on from its checkpoint."),
    ):
        router.post(f"/{{job}}/{name}", **documented(told, answer=_JOB, errors=(409, 422)))(_doing(daemon, event))

    @router.get(
        "/{job}/follow",
        **documented(
            "What a job tells, a JSON object a line, until it is over; from bytes ``log`` and ``watch`` of its files on, or "
            "from ``now``.", answer={"type": "string"}, binary=False, media="application/jsonl", errors=(422, 503),
        ),
    )  # fmt: skip
    async def follow(request: Request) -> Response:
        one = await in_thread(lambda: store.job(_job(request)))
        given = request.query_params
        place = daemon.folder.job(one.id)
        tails = {
            name: Tail(file, _count(given.get(name, "0")))
            for name, file in (("log", place.log), ("watch", place.watch))
        }
        if "now" in given:
            for tail in tails.values():
                tail.to_end()
        return followers.stream(Telling(daemon, one.id, tails).parts(), "application/jsonl")

    @router.get(
        "/{job}/run",
        **documented(
            "The folder of the run, as a tar archive; as far as it is there.", answer={"type": "string"}, binary=False,
            media="application/x-tar", errors=(422,),
        ),
    )  # fmt: skip
    async def run(request: Request) -> Response:
        one = await in_thread(lambda: store.job(_job(request)))
        place = daemon.folder.job(one.id)
        return StreamingResponse(packed(place.run, {"log": place.log}), media_type="application/x-tar")

    return router


def _taken_on(daemon: Daemon, submission: Submission, key: str) -> str:
    if why := unmet(Needs(requires=submission.requires)):  # a worker checks it again, with the versions
        raise ConfigurationError(f"the job cannot run on this cluster: {why}")
    if submission.workers > daemon.options.workers:
        raise ConfigurationError(
            f"the job needs {submission.workers} workers, and the cluster has {daemon.options.workers}: "
            "'chimera cluster up --workers N' starts one with more"
        )
    limit = daemon.options.limit_per_user
    if limit is not None and submission.workers > limit:
        raise ConfigurationError(
            f"the job needs {submission.workers} workers, and a user of this cluster has {limit} at once (--limit-per-user)"
        )
    if missing := Contents(daemon.folder.files).missing(submission.manifest):
        raise ConflictError(f"{len(missing)} of the job's files have not arrived")
    job = daemon.store.submit(submission, key, time.time())
    daemon.wake()
    return job.id


def _doing(daemon: Daemon, event: Event) -> Callable[[Request], Any]:
    async def do(request: Request) -> Response:
        await in_thread(lambda: daemon.store.apply(_job(request), event, now_s=time.time()))
        daemon.wake()
        return answer(request, {"job": _job(request)})

    return do


def _converted(body: Mapping[str, Any], key: str | None, type_: Any) -> Any:
    """Return what a body has under a key, as it has to be."""
    given = body if key is None else required(dict(body), key)[0]
    try:
        return msgspec.convert(given, type_)
    except msgspec.ValidationError as error:
        raise DataError(f"{key or 'the request'} cannot be used: {error}") from error


def _parts(request: Request, loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """Yield the body of a request as it comes, in a thread beside its event loop."""
    stream = request.stream()
    while True:
        part = asyncio.run_coroutine_threadsafe(anext(stream, None), loop).result()
        if part is None:
            return
        yield part


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise DataError(f"{text[:40]!r} is no whole number from 0")
    return int(text)


def _job(request: Request) -> str:
    return str(request.path_params["job"])
