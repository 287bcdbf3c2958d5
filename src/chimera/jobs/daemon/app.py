"""REST API of the daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError, ConflictError, DataError
from chimera.jobs.daemon.streams import Followers, JobUpdates
from chimera.jobs.driver.progress_file import Tail
from chimera.jobs.files.content_store import ContentStore
from chimera.jobs.files.tar import pack
from chimera.jobs.scheduling.messages import Requirements
from chimera.jobs.scheduling.requirements import unmet
from chimera.jobs.store.records import File, Submission
from chimera.jobs.store.states import Event
from chimera.web.app import create_app
from chimera.web.background import in_thread
from chimera.web.body import answer, read_object, required
from chimera.web.disk_guard import DiskGuard
from chimera.web.folder import Access
from chimera.web.live.pieces import FILES
from chimera.web.live.update import update_of
from chimera.web.routing import documented, plain_router

if TYPE_CHECKING:
    from chimera.jobs.daemon.daemon import Daemon

PREFIX = "/v1/jobs"
_ANY: dict[str, Any] = {"type": "object"}
_ROWS: dict[str, Any] = {"type": "object", "properties": {"rows": {"type": "array", "items": _ANY}}}
_JOB = {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}
_MAX_BODY_BYTES = 64 << 20  # maximum size of a request without a file
_MAX_FILE_BYTES = 1 << 40


def create_jobs_app(daemon: Daemon) -> tuple[FastAPI, Access]:
    """Return the daemon's application and its access settings."""
    from chimera.jobs.daemon.page.stream import bare_page_router, page_router

    followers = Followers()
    access, page = Access(daemon.folder.token(), max_body_bytes=_MAX_FILE_BYTES), daemon.options.page
    app = create_app(
        title="Chimera jobs",
        settings=access,
        routers=[jobs_router(daemon, followers), *([page_router(daemon, followers)] if page else [])],
        public=[bare_page_router()] if page else [],
        about={"name": "jobs", "kind": "daemon"},
    )
    return app, access


def jobs_router(daemon: Daemon, followers: Followers) -> APIRouter:
    """Return the routes of jobs."""
    router = plain_router(prefix=PREFIX, tags=["jobs"])
    store, contents, disk = daemon.store, ContentStore(daemon.folder.files), DiskGuard(daemon.folder.path)

    @router.get("", **documented("All jobs and their states.", answer=_ROWS))
    async def jobs(request: Request) -> Response:
        return answer(request, {"rows": await in_thread(lambda: [daemon.row_of(job) for job in store.jobs()])})

    @router.get("/processes", **documented("All processes of the cluster.", answer=_ROWS))
    async def processes(request: Request) -> Response:
        return answer(request, {"rows": await in_thread(daemon.rows)})

    @router.post(
        "/files/missing",  # as "/missing" it would be the path of a job, too
        **documented(
            "The contents of a manifest (the files of a job by path) that are not uploaded yet.", body=_ANY, answer=_ANY,
            example={"manifest": {"mine.py": {"sha256": "2c26b46b...", "size": 3}}}, answer_example={"files": []},
            errors=(422, 507),
        ),
    )  # fmt: skip
    async def missing(request: Request) -> Response:
        manifest = _converted(await read_object(request, _MAX_BODY_BYTES), "manifest", dict[str, File])
        files = await in_thread(contents.missing, manifest)
        await in_thread(disk.check_submission, sum(file.size for file in files))
        return answer(request, {"files": msgspec.to_builtins(files)})

    @router.put(
        "/files/{sha256}/{size}",
        **documented("Upload the content of a file.", answer=_ANY, errors=(422, 507), binary=False),
    )
    async def put(request: Request) -> Response:
        file = _converted(request.path_params | {"size": _non_negative(request.path_params["size"])}, None, File)
        parts = _parts(request, asyncio.get_running_loop())
        await in_thread(_store, contents, disk, file, parts)
        return answer(request, {"sha256": file.sha256})

    @router.post(
        "", **documented("Submit a job.", body=_ANY, answer=_JOB, answer_example={"job": "1"}, errors=(409, 422, 507))
    )
    async def submit(request: Request) -> Response:
        body = await read_object(request, _MAX_BODY_BYTES)
        submission, key = _converted(body, "submission", Submission), _converted(body, "key", str)
        return answer(request, {"job": await in_thread(_submit, daemon, submission, key)})

    @router.get("/{job}", **documented("The state of a job.", answer=_ANY, errors=(422,)))
    async def job(request: Request) -> Response:
        return answer(request, await in_thread(lambda: daemon.row_of(store.job(_job(request)))))

    for name, event, description in (
        ("cancel", Event.CANCEL, "Cancel a job; its files are kept."),
        ("retry", Event.RETRY, "Resume a job that failed or was cancelled from its checkpoint."),
    ):
        router.post(f"/{{job}}/{name}", **documented(description, answer=_JOB, errors=(409, 422, 507)))(
            _event_handler(daemon, event)
        )

    @router.get(
        "/{job}/follow",
        **documented(
            "Updates of a job until it ends, one JSON object per line, from the offsets ``log`` and ``watch`` of its files, or "
            "from ``now``.", answer={"type": "string"}, binary=False, media="application/jsonl", errors=(422, 503),
        ),
    )  # fmt: skip
    async def follow(request: Request) -> Response:
        selected = await in_thread(lambda: store.job(_job(request)))
        query = request.query_params
        job_folder = daemon.folder.job(selected.id)
        tails = {
            name: Tail(file, _non_negative(query.get(name, "0")))
            for name, file in (("log", job_folder.log), ("watch", job_folder.progress_file))
        }
        if "now" in query:
            for tail in tails.values():
                tail.to_end()
        return followers.stream(JobUpdates(daemon, selected.id, tails).stream(), "application/jsonl")

    @router.get(
        "/{job}/run",
        **documented(
            "The current folder of the run, as a tar archive.", answer={"type": "string"}, binary=False,
            media="application/x-tar", errors=(422,),
        ),
    )  # fmt: skip
    async def run(request: Request) -> Response:
        selected = await in_thread(lambda: store.job(_job(request)))
        job_folder = daemon.folder.job(selected.id)
        return StreamingResponse(pack(job_folder.run, {"log": job_folder.log}), media_type="application/x-tar")

    @router.get(
        "/{job}/live",
        **documented(
            "What changed in the folder of the run since the offsets ``metrics``, ``events`` and ``trace`` of its growing "
            "files, and since ``version`` of its small ones; for a page that follows the run.", answer=_ANY, errors=(422,),
        ),
    )  # fmt: skip
    async def live(request: Request) -> Response:
        selected = await in_thread(lambda: store.job(_job(request)))
        query = request.query_params
        at = {name: _non_negative(query.get(name, "0")) for name in FILES}
        folder = daemon.folder.job(selected.id).run
        return answer(request, await in_thread(lambda: update_of(folder, at, query.get("version", ""))))

    return router


def _store(contents: ContentStore, disk: DiskGuard, file: File, parts: Iterator[bytes]) -> None:
    """Store a file that is uploaded. Until its end, its missing bytes count as used: other uploads may run at the same time."""
    with disk.announced(file.size) as wrote:

        def written() -> Iterator[bytes]:
            for part in parts:
                yield part
                wrote(len(part))  # the store asks for the next part when it has written this one

        contents.add(file, written())


def _submit(daemon: Daemon, submission: Submission, key: str) -> str:
    if reason := unmet(Requirements(modules=submission.requires)):  # workers check this again, with the versions
        raise ConfigurationError(f"the job cannot run on this cluster: {reason}")
    if submission.workers > daemon.options.workers:
        raise ConfigurationError(
            f"the job needs {counted(submission.workers, 'worker')}, and the cluster has {daemon.options.workers}: "
            "'chimera cluster up --workers N' starts one with more"
        )
    limit = daemon.options.limit_per_user
    if limit is not None and submission.workers > limit:
        raise ConfigurationError(
            f"the job needs {counted(submission.workers, 'worker')}, "
            f"and this cluster gives a user at most {limit} (--limit-per-user)"
        )
    if missing := ContentStore(daemon.folder.files).missing(submission.manifest):
        raise ConflictError(f"{len(missing)} of the job's files are not uploaded")
    job = daemon.store.submit(submission, key, time.time(), DiskGuard(daemon.folder.path).check_submission)
    daemon.wake()
    return job.id


def _event_handler(daemon: Daemon, event: Event) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        if event is Event.RETRY:
            await in_thread(DiskGuard(daemon.folder.path).check_submission)
        await in_thread(lambda: daemon.store.apply(_job(request), event, now_s=time.time()))
        daemon.wake()
        return answer(request, {"job": _job(request)})

    return handle


def _converted(body: Mapping[str, Any], key: str | None, type_: Any) -> Any:
    """Return the value under a key of a body, or the whole body, converted to a type."""
    value = body if key is None else required(dict(body), key)[0]
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise DataError(f"{key or 'the request'} cannot be used: {error}") from error


def _parts(request: Request, loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """Yield the body of a request as it arrives, in a thread other than that of its event loop."""
    stream = request.stream()
    while True:
        part = asyncio.run_coroutine_threadsafe(anext(stream, None), loop).result()
        if part is None:
            return
        yield part


def _non_negative(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise DataError(f"{text[:40]!r} must be an integer of at least 0")
    return int(text)


def _job(request: Request) -> str:
    return str(request.path_params["job"])
