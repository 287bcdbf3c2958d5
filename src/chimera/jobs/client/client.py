"""What a person's process asks of a cluster for jobs."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from chimera.core.errors import ChimeraError, ConfigurationError, RunError, TimeLimitError, UnavailableError
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.files.tar import MOST_BYTES, unpack
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import OVER
from chimera.web import request
from chimera.web.client import TRY_S, WebClient

PATIENCE_S = 30.0
"""How long a request is tried again; a cluster that is started anew imports for some seconds."""
_JSON = "application/json"
_SEND_S = 600.0  # a file may be large
_POLL_S = 0.05


class Client(WebClient):
    """The operations on a cluster; each is sent again while its daemon is being replaced.

    Parameters
    ----------
    address : returns where the daemon answers just now, such as ``http://127.0.0.1:40123``; None while none does.
    token : of the cluster.
    up : what a person types to start it.
    first_s : how long to try before the first answer; by default as long as after it.
    """

    def __init__(
        self,
        address: Callable[[], str | None],
        token: str,
        *,
        up: str = "chimera cluster up",
        first_s: float | None = None,
    ) -> None:
        super().__init__(
            address, token, prefix="/v1/jobs", who="the daemon", up=up, patience_s=PATIENCE_S, first_s=first_s
        )

    @classmethod
    def of(cls, folder: ClusterFolder) -> Client:
        """Return the client of a cluster of this machine; should it be started anew, the client goes on with the new one.

        Raises
        ------
        ConfigurationError : there is none, or it is not up.
        """
        token = folder.token()
        if folder.claimant() is None:
            raise ConfigurationError(f"the cluster in {folder.path} is not up; start it with {folder.up!r}")
        return cls(folder.address, token, up=folder.up)

    def submit(self, submission: Submission, sources: Mapping[str, Path]) -> str:
        """Hand a job in, with those of its files that the cluster lacks, and return its number.

        Parameters
        ----------
        sources : where each file of the manifest lies here.
        """
        manifest = submission.manifest
        if manifest:
            missing = self.object("POST", "/missing", _body(manifest=manifest), content_type=_JSON)["files"]
            places = {file.sha256: sources[path] for path, file in manifest.items()}
            for file in missing:
                self._upload(places[file["sha256"]], f"/files/{file['sha256']}/{file['size']}")
        body = _body(key=uuid.uuid4().hex, submission=submission)
        return str(self.object("POST", "", body, content_type=_JSON)["job"])

    def _upload(self, file: Path, path: str) -> None:
        def send() -> bytes:
            with file.open("rb") as opened:
                return request.read(self.once("PUT", path, opened, "application/octet-stream", _SEND_S))

        self.again(send)

    def jobs(self) -> list[dict[str, Any]]:
        """Return a row for each job."""
        return list(self.object("GET", "")["rows"])

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of one."""
        return self.object("GET", f"/{_quoted(job)}")

    def processes(self) -> list[dict[str, Any]]:
        """Return a row for each process of the cluster."""
        return list(self.object("GET", "/processes")["rows"])

    def cancel(self, job: str) -> str:
        """Let a job go no further."""
        return str(self.object("POST", f"/{_quoted(job)}/cancel", b"")["job"])

    def retry(self, job: str) -> str:
        """Let a job that failed or was cancelled go on."""
        return str(self.object("POST", f"/{_quoted(job)}/retry", b"")["job"])

    def follow(self, job: str, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what a job tells until it is over: ``{"job": row}``, ``{"log": line}`` or ``{"told": what}``.

        ``what`` is its progress, an event, what it waits for, or its summary.

        If the daemon is replaced meanwhile, it goes on where it was.
        """
        at = "" if from_start else "?now"
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                with self.again(
                    partial(self.once, "GET", f"/{_quoted(job)}/follow{at}", None, _JSON, 4 * TRY_S)
                ) as lines:
                    for line in lines:
                        deadline_s = time.monotonic() + self._patience_s
                        if not line.strip():
                            continue
                        row = json.loads(line)
                        if "at" in row:
                            at = "?" + "&".join(f"{name}={count}" for name, count in row.pop("at").items())
                        yield row
                        if "job" in row and row["job"]["state"] in OVER:
                            return
            except ChimeraError:
                raise  # what it says is not going to change
            except (OSError, ValueError, http.client.HTTPException) as error:  # it died in the middle of a line, say
                if time.monotonic() > deadline_s:
                    raise UnavailableError(f"job {job}: nobody tells of it now: {error}") from error

    def fetch(self, job: str, folder: Path, most_bytes: int = MOST_BYTES) -> list[str]:
        """Put the folder of a job's run, as far as it is there, into ``folder``; return the names of its files."""
        answer = self.again(partial(self.once, "GET", f"/{_quoted(job)}/run", None, _JSON, _SEND_S))
        with answer:
            try:
                return unpack(answer, folder, most_bytes)
            except http.client.HTTPException as error:
                raise request.Unanswered(f"the answer breaks off: {error}") from error

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the row of a job once it is over.

        Raises
        ------
        TimeLimitError : it is not, in time.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (row := self.job(job))["state"] not in OVER:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeLimitError(f"job {job} is {row['state']} after {timeout_s:g} s")
            time.sleep(_POLL_S)
        return row


def _body(**values: Any) -> bytes:
    try:
        return msgspec.json.encode(values)
    except (TypeError, ValueError) as error:
        raise RunError(f"the request cannot be sent: {error}") from error


def _quoted(job: str) -> str:
    return quote(job, safe="")
