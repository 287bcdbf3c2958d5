"""REST client of a cluster for jobs."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from chimera.core.errors import ChimeraError, ConfigurationError, RunError, UnavailableError
from chimera.jobs.client.protocol import await_end
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.files.tar import MAX_BYTES, unpack
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import TERMINAL
from chimera.web import request
from chimera.web.client import TRY_S, WebClient, quoted
from chimera.web.live.update import MAX_UPDATE_BYTES

PATIENCE_S = 30.0
"""Time to retry a request, in seconds; a restarted cluster imports for some seconds."""
_JSON = "application/json"
_SEND_S = 600.0  # a file may be large
_POLL_S = 0.05


class Client(WebClient):
    """Operations on a cluster. Requests are sent again while the daemon restarts.

    Parameters
    ----------
    address : returns the current URL of the daemon, such as ``http://127.0.0.1:40123``; None while there is none.
    token : token of the cluster.
    up : command that starts the cluster, for error messages.
    first_s : time in seconds to try before the first answer; default: `PATIENCE_S`.
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
            address,
            token,
            prefix="/v1/jobs",
            server_name="the daemon",
            up=up,
            down="chimera cluster down",
            patience_s=PATIENCE_S,
            first_s=first_s,
        )

    @classmethod
    def of(cls, folder: ClusterFolder) -> Client:
        """Return the client of a cluster on this machine; if the cluster restarts, the client uses the new one.

        Raises
        ------
        ConfigurationError : there is no cluster, or it is not up.
        """
        token = folder.token()
        if folder.lock_holder() is None:
            raise ConfigurationError(f"the cluster in {folder.path} is not up; start it with {folder.up!r}")
        return cls(folder.address, token, up=folder.up)

    def submit(self, submission: Submission, sources: Mapping[str, Path]) -> str:
        """Upload the files that the cluster lacks, submit a job, and return its number.

        Parameters
        ----------
        sources : path on this machine of each file of the manifest.
        """
        manifest = submission.manifest
        if manifest:
            missing = self.request_json("POST", "/files/missing", _body(manifest=manifest), content_type=_JSON)["files"]
            paths = {file.sha256: sources[path] for path, file in manifest.items()}
            for file in missing:
                self._upload(paths[file["sha256"]], f"/files/{file['sha256']}/{file['size']}")
        body = _body(key=uuid.uuid4().hex, submission=submission)
        return str(self.request_json("POST", "", body, content_type=_JSON)["job"])

    def _upload(self, file: Path, path: str) -> None:
        def send() -> bytes:
            with file.open("rb") as opened:
                return request.read(self.attempt("PUT", path, opened, "application/octet-stream", _SEND_S))

        self.with_retries(send)

    def jobs(self) -> list[dict[str, Any]]:
        """Return a row for each job."""
        return list(self.request_json("GET", "")["rows"])

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of a job."""
        return self.request_json("GET", f"/{quoted(job)}")

    def processes(self) -> list[dict[str, Any]]:
        """Return a row for each process of the cluster."""
        return list(self.request_json("GET", "/processes")["rows"])

    def cancel(self, job: str) -> str:
        """Cancel a job, and return its number."""
        return str(self.request_json("POST", f"/{quoted(job)}/cancel", b"")["job"])

    def retry(self, job: str) -> str:
        """Resume a job that failed or was cancelled, and return its number."""
        return str(self.request_json("POST", f"/{quoted(job)}/retry", b"")["job"])

    def follow(self, job: str, *, from_start: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the updates of a job until it ends: ``{"job": row}``, ``{"log": line}`` or ``{"told": update}``.

        ``update`` is its progress, an event, what it waits for, or its summary.

        If the daemon restarts meanwhile, the stream resumes at the same position.

        Raises
        ------
        UnavailableError : the daemon does not answer within `PATIENCE_S`.
        """
        at = "" if from_start else "?now"
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                with self.with_retries(
                    partial(self.attempt, "GET", f"/{quoted(job)}/follow{at}", None, _JSON, 4 * TRY_S)
                ) as lines:
                    for line in lines:
                        deadline_s = time.monotonic() + self._patience_s
                        if not line.strip():
                            continue
                        row = json.loads(line)
                        if "at" in row:
                            at = "?" + "&".join(f"{name}={count}" for name, count in row.pop("at").items())
                        yield row
                        if "job" in row and row["job"]["state"] in TERMINAL:
                            return
            except ChimeraError:
                raise  # another request would fail, too
            except (OSError, ValueError, http.client.HTTPException) as error:  # for example an incomplete line
                if time.monotonic() > deadline_s:
                    raise UnavailableError(f"job {job}: no daemon reports on it now: {error}") from error

    def fetch(self, job: str, folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
        """Download the current folder of a job's run to ``folder``; return the names of its files."""
        answer = self.with_retries(partial(self.attempt, "GET", f"/{quoted(job)}/run", None, _JSON, _SEND_S))
        with answer:
            try:
                return unpack(answer, folder, max_bytes)
            except http.client.HTTPException as error:
                raise request.NoAnswerError(f"the answer is incomplete: {error}") from error

    def live(self, job: str, at: Mapping[str, int], known: str) -> dict[str, Any]:
        """Return the changes in the folder of a job's run (`update_of`); one request, since a page repeats it.

        Raises
        ------
        OSError : the daemon does not answer now.
        RunError : the answer is malformed.
        """
        query = urlencode({**at, "version": known})
        with self.attempt("GET", f"/{quoted(job)}/live?{query}", None, _JSON) as received:
            try:
                content = received.read(MAX_UPDATE_BYTES + 1)
                document = json.loads(content) if len(content) <= MAX_UPDATE_BYTES else None
            except http.client.HTTPException as error:
                raise request.NoAnswerError(f"the answer is incomplete: {error}") from error
            except (ValueError, RecursionError):
                document = None
        if not isinstance(document, dict):
            raise RunError(f"the answer about job {job} is not a JSON object of at most {MAX_UPDATE_BYTES >> 20} MiB")
        return document

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job has ended, and return its row.

        Raises
        ------
        TimeLimitError : the job has not ended within ``timeout_s`` seconds.
        """
        return await_end(self, job, timeout_s, _POLL_S)


def _body(**values: Any) -> bytes:
    try:
        return msgspec.json.encode(values)
    except (TypeError, ValueError) as error:
        raise RunError(f"the request cannot be sent: {error}") from error
