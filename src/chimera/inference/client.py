"""The client of a cluster, over REST. It finds the current coordinator and retries while that one is replaced."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from chimera.core.counted import counted
from chimera.core.errors import (
    ChimeraError,
    ConfigurationError,
    ConflictError,
    DataError,
    NoSpaceError,
    TimeLimitError,
    UnavailableError,
)
from chimera.engines.http import wire
from chimera.inference.journal.records import InputFile
from chimera.inference.pieces import MAX_BYTES, MAX_QUERY_BYTES, check_key, pieces, size_of
from chimera.web import request, versions
from chimera.web.client import PATIENCE_S, TRY_S, WebClient, quoted

UP, DOWN = "chimera infer up", "chimera infer down"
"""The commands that start and stop a cluster in the default folder."""
_POLL_S = 0.2
_COPIED_BYTES = 16 << 20  # smaller files are copied, so that they may change after the submission
_ENDED = ("done", "failed", "cancelled")


class Client(WebClient):
    """The operations on a cluster. A request is retried while the coordinator hangs or is being replaced.

    Parameters
    ----------
    address : returns the coordinator's address, such as ``http://127.0.0.1:40123``, or None while there is no coordinator.
    token : token of the cluster.
    patience_s : seconds for which a request is retried.
    up, down : the commands that start and stop the cluster, for messages.
    """

    def __init__(
        self,
        address: Callable[[], str | None],
        token: str,
        *,
        patience_s: float = PATIENCE_S,
        up: str = UP,
        down: str = DOWN,
    ) -> None:
        super().__init__(
            address,
            token,
            prefix="/v1/infer",
            server_name="the coordinator",
            up=up,
            down=down,
            patience_s=patience_s,
        )

    def submit(
        self,
        model: Mapping[str, Any],
        queries: Iterable[Any],
        *,
        key: str | None = None,
        on_progress: Callable[[int, int], None] = lambda *_: None,
        copy: bool = False,
        **options: Any,
    ) -> str:
        """Submit a job, and return its number. The queries are read lazily, and sent in pieces.

        Parameters
        ----------
        model : table of a model.
        queries : texts, numbers, NumPy arrays, or lists and dictionaries of these.
        key : name of this submission, of letters, digits and ``-_.``. An interrupted submission continues if the same queries
            are submitted with its key, within a day; an accepted one is not submitted twice. Default: a random key.
        on_progress : called after each piece with the number of queries that have arrived, and their approximate bytes.
        copy : whether to copy the queries of files of more than 16 MiB, too (`chimera.inference.inputs.queries`). By default
            they stay in the files if the cluster can read these: the files must not change until the job has ended.
        options : ``name``, ``weight``, ``batch_size``, ``max_workers``, ``batch_timeout_s``, ``max_error_rate``.

        Raises
        ------
        DataError : the queries, or one of them, are larger than the limit of a job.
        ConflictError : the key is that of a submission with another model, other options, or another number of queries.
        UnavailableError, NoSpaceError : the submission is interrupted. The message states the key with which it continues.
        """
        key = uuid.uuid4().hex if key is None else key
        check_key(key)
        path = f"/submissions/{key}"
        begun = self.request_json("PUT", path, wire.pack({"model": dict(model), **options}))
        if begun["job"] is not None:
            count = sum(1 for _ in queries)
            if count != begun["queries"]:
                raise ConflictError(
                    f"the key {key!r} is that of job {begun['job']}, which has {begun['queries']} queries, not {count}"
                )
            return str(begun["job"])
        arrived = int(begun["queries"])
        files = None if copy or arrived or not begun["reads_files"] else _files_of(queries)
        chunks: list[tuple[int, int]] = []
        count = size = 0
        try:
            for first, piece, more in pieces(queries):
                count, size = first + len(piece), size + more
                _check_sizes(size, max(map(size_of, piece)))
                chunks.append((first, more))
                if count > arrived and files is None:
                    body = wire.pack({"first": first, "queries": piece})
                    arrived = int(self.request_json("POST", f"{path}/queries", body)["queries"])
                on_progress(count, size)
            end: dict[str, Any] = {"queries": count}
            if files is not None:
                end |= {"files": msgspec.to_builtins(files()), "chunks": chunks}
            checked_s = float(len(end.get("files", ())))  # the cluster asks for the version of each file
            return str(self.request_json("POST", f"{path}/job", wire.pack(end), try_s=TRY_S + checked_s)["job"])
        except (UnavailableError, NoSpaceError) as error:
            raise type(error)(
                f"{error}; {arrived} queries have arrived: to continue, submit the same inputs with the key {key}"
            ) from error
        except ChimeraError:
            with contextlib.suppress(ChimeraError):
                self.request_json("DELETE", path)
            raise

    def rows(self, view: str) -> list[dict[str, Any]]:
        """Return the rows of ``jobs``, ``rate``, ``stats``, ``workers`` or ``members``."""
        return list(self.request_json("GET", f"/{view}")["rows"])

    def change(self, job: str, **changes: Any) -> str:
        """Change ``weight``, ``batch_size``, ``max_workers`` or ``batch_timeout_s`` of a job."""
        return str(self.request_json("PATCH", f"/jobs/{quoted(job)}", wire.pack(changes))["job"])

    def scale(self, workers: int, most: int | None = None) -> None:
        """Set the number of workers of the cluster. A worker that leaves finishes its batches first.

        Parameters
        ----------
        workers, most : number of workers; with ``most``, the bounds between which the coordinator sets it by the queue time.

        Raises
        ------
        ConfigurationError : a number is not from 0 to 1000, or ``most`` is less than ``workers``.
        """
        bounds = {"workers": workers} | ({} if most is None else {"most": most})
        self.request_json("PATCH", "/workers", wire.pack(bounds))

    def scale_set(self) -> dict[str, int]:
        """Return the number of workers that is set: ``count``, its bounds ``least`` and ``most``, and ``version``."""
        return self.request_json("GET", "/scale")

    def serve(self, name: str, model: Mapping[str, Any], **options: Any) -> str:
        """Serve a model online, and return the number of its job.

        Parameters
        ----------
        options : ``weight``, ``batch_size``, ``max_workers``, ``batch_timeout_s``, ``reserve``, ``latency_target_s``, see
            `chimera.inference.api.serving.serve`.
        """
        body = wire.pack({"model": dict(model), **options})
        return str(self.request_json("PUT", f"/models/{quoted(name, 'model')}", body)["job"])

    def unserve(self, name: str) -> str:
        """Stop serving a model, and return the number of its job. Waiting queries are answered."""
        return str(self.request_json("DELETE", f"/models/{quoted(name, 'model')}")["job"])

    def ask(self, name: str, queries: Sequence[Any], *, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Return the answers of a served model: ``{"result": value}`` or ``{"error": text}`` for each query.

        The request is retried if the coordinator is replaced meanwhile.

        Parameters
        ----------
        timeout_s : seconds to wait for the answers.

        Raises
        ------
        UnavailableError : the model's queue is full, or the cluster cannot be reached.
        TimeLimitError : the model did not answer in time.
        """
        if not 0 < timeout_s < math.inf:
            raise ConfigurationError(f"timeout_s must be a number above 0, not {timeout_s!r}")
        body = wire.pack({"queries": list(queries), "timeout_s": timeout_s})
        return list(self.request_json("POST", f"/{quoted(name, 'model')}", body, try_s=TRY_S + timeout_s)["results"])

    def cancel(self, job: str) -> str:
        """Cancel a job, and return its number. Its results so far are kept."""
        return str(self.request_json("DELETE", f"/jobs/{quoted(job)}")["job"])

    def drain(self, worker: str) -> dict[str, Any]:
        """Send a worker no more batches; it finishes its present ones. Return ``worker`` and ``state``."""
        return self.request_json("POST", f"/workers/{quoted(worker, 'worker')}/drain")

    def restart(self, worker: str) -> dict[str, Any]:
        """Restart a worker, also if it hangs or is drained. Other workers get its batches. Return ``worker`` and ``state``."""
        return self.request_json("POST", f"/workers/{quoted(worker, 'worker')}/restart")

    def results(self, job: str, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yield results so far, in input order: ``index``, ``query``, and ``result`` or ``error``.

        If the coordinator is replaced meanwhile, reading continues at the next coordinator.

        Parameters
        ----------
        first : index of the first query to return.

        Raises
        ------
        UnavailableError : no coordinator has answered for ``patience_s`` seconds.
        """
        path = f"/jobs/{quoted(job)}/results"
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                with self.with_retries(partial(self.attempt, "GET", f"{path}?first={first}")) as answer:
                    for line in request.lines(answer):
                        row = json.loads(line)
                        first = row["index"] + 1
                        yield row
                        deadline_s = time.monotonic() + self._patience_s
                return
            except ChimeraError:
                raise  # a retry would get the same answer
            except (
                OSError,
                ValueError,
                http.client.HTTPException,
            ) as error:  # e.g. the coordinator died in the middle of a line
                if time.monotonic() > deadline_s:
                    raise UnavailableError(
                        f"reading the results failed, and no coordinator answers: {error}"
                    ) from error

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of a job, by number or name; of several jobs with the name, the last one.

        Raises
        ------
        ConfigurationError : there is no such job.
        """
        rows = self.rows("jobs")
        found = [row for row in rows if row["job"] == job] or [row for row in rows if row["name"] == job]
        if not found:
            known = ", ".join(row["job"] for row in rows[-10:]) or "none"
            raise ConfigurationError(f"there is no job {job!r}; the last jobs: {known}")
        return found[-1]

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a job is done, failed or cancelled, and return its row.

        Raises
        ------
        TimeLimitError : the job has not ended within ``timeout_s`` seconds.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (row := self.job(job))["state"] not in _ENDED:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeLimitError(f"job {job}: {row['finished']} of {row['queries']} queries after {timeout_s:g} s")
            time.sleep(_POLL_S)
        return row


def with_version(message: str) -> str:
    """Return an error of the coordinator about a message that it does not know, with its version."""
    return versions.of_server(message, DOWN, UP)


def outcome(row: Mapping[str, Any]) -> str:
    """Return the state of a job in one line: its answered queries, its errors and the first of them, or why it has failed.

    Parameters
    ----------
    row : row of the job (`Client.job`).
    """
    errors = f", {counted(row['errors'], 'error')}, the first: {row['error']}" if row["errors"] else ""
    why = f": {row['why']}" if row["state"] == "failed" and row.get("why") else ""
    return f"job {row['job']} is {row['state']}: {row['finished']} of {row['queries']} queries{errors}{why}"


def _files_of(queries: Iterable[Any]) -> Callable[[], list[InputFile]] | None:
    """Return the function that returns the files in which queries may stay; None if the queries must be copied."""
    from chimera.inference.inputs import Queries

    if not isinstance(queries, Queries) or (queries.total_bytes or 0) < _COPIED_BYTES:
        return None
    return queries.files


def _check_sizes(size: int, largest: int) -> None:
    if size > MAX_BYTES:
        raise DataError(
            f"the queries take {size} bytes or more, a job at most {MAX_BYTES}: submit several jobs, or write the data to "
            "files and submit their names"
        )
    if largest > MAX_QUERY_BYTES:
        raise DataError(
            f"a query takes {largest} bytes, at most {MAX_QUERY_BYTES}: write the data to files and submit their names"
        )
