"""How a person's process reaches the cluster, whoever is its coordinator just now."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from chimera.core.errors import ChimeraError, ConfigurationError, DataError, TimeLimitError, UnavailableError
from chimera.engines.http import wire
from chimera.web.client import PATIENCE_S, TRY_S, WebClient
from chimera.web.folder import MOST_BYTES

_POLL_S = 0.2
_ENDED = ("done", "cancelled")


class Client(WebClient):
    """The operations on a cluster; each is sent again while its coordinator is being replaced, also if that hangs.

    Parameters
    ----------
    address : returns where the coordinator answers just now, such as ``http://127.0.0.1:40123``; None while nobody leads.
    token : of the cluster.
    patience_s : how long to try.
    """

    def __init__(self, address: Callable[[], str | None], token: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(
            address, token, prefix="/v1/infer", who="the coordinator", up="chimera infer up", patience_s=patience_s
        )

    def submit(self, model: Mapping[str, Any], queries: Sequence[Any], **options: Any) -> str:
        """Hand a job in, and return its number.

        Parameters
        ----------
        model : the table of a model.
        queries : of values that travel: texts, numbers, lists and dictionaries of them, NumPy arrays.
        options : ``name``, ``weight``, ``batch_size``, ``max_workers``.

        Raises
        ------
        DataError : they are more than a job may have.
        """
        body = wire.pack({"key": uuid.uuid4().hex, "model": dict(model), "queries": list(queries), **options})
        if len(body) > MOST_BYTES:
            raise DataError(
                f"the queries take {len(body)} bytes, and a job may have {MOST_BYTES}: make several jobs of them, or files"
                " whose names are the queries"
            )
        return str(self.object("POST", "/jobs", body)["job"])

    def rows(self, what: str) -> list[dict[str, Any]]:
        """Return the rows of ``jobs``, ``rate``, ``stats``, ``workers`` or ``members``."""
        return list(self.object("GET", f"/{what}")["rows"])

    def change(self, job: str, **changes: Any) -> str:
        """Change ``weight``, ``batch_size`` or ``max_workers`` of a job."""
        return str(self.object("PATCH", f"/jobs/{_quoted(job)}", wire.pack(changes))["job"])

    def serve(self, name: str, model: Mapping[str, Any], **options: Any) -> str:
        """Let a model answer queries as they come, and return the number of its job.

        Parameters
        ----------
        options : ``weight``, ``batch_size``, ``max_workers``.
        """
        body = wire.pack({"model": dict(model), **options})
        return str(self.object("PUT", f"/models/{_quoted(name)}", body)["job"])

    def unserve(self, name: str) -> str:
        """Take no more queries for a model, and return the number of its job."""
        return str(self.object("DELETE", f"/models/{_quoted(name)}")["job"])

    def ask(self, name: str, queries: Sequence[Any], *, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        """Return the answers of a served model: ``{"result": value}`` or ``{"error": text}`` for each query.

        It is asked again if its coordinator is replaced meanwhile.

        Raises
        ------
        UnavailableError : too many queries wait for it, or the cluster cannot be reached.
        TimeLimitError : it has not answered in time.
        """
        body = wire.pack({"queries": list(queries), "timeout_s": timeout_s})
        return list(self.object("POST", f"/{_quoted(name)}", body, try_s=TRY_S + timeout_s)["results"])

    def cancel(self, job: str) -> str:
        """Let a job go no further."""
        return str(self.object("DELETE", f"/jobs/{_quoted(job)}")["job"])

    def results(self, job: str, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yield results so far, in input order: ``index``, ``query``, and ``result`` or ``error``.

        If the coordinator is replaced meanwhile, it goes on with the next one.
        """
        path = f"/jobs/{_quoted(job)}/results"
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                with self.again(partial(self.once, "GET", f"{path}?first={first}")) as lines:
                    for line in lines:
                        row = json.loads(line)
                        first = row["index"] + 1
                        yield row
                        deadline_s = time.monotonic() + self._patience_s
                return
            except ChimeraError:
                raise  # what it says is not going to change
            except (OSError, ValueError, http.client.HTTPException) as error:  # it died in the middle of a line, say
                if time.monotonic() > deadline_s:
                    raise UnavailableError(f"the results broke off, and nobody has them now: {error}") from error

    def job(self, job: str) -> dict[str, Any]:
        """Return the row of one job, by number or name."""
        rows = self.rows("jobs")
        found = [row for row in rows if row["job"] == job] or [row for row in rows if row["name"] == job]
        if not found:
            known = ", ".join(row["job"] for row in rows[-10:]) or "there is none yet"
            raise ConfigurationError(f"there is no job {job!r}; the last ones: {known}")
        return found[-1]

    def wait(self, job: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the row of a job once it has ended.

        Raises
        ------
        TimeLimitError : it has not, in time.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (row := self.job(job))["state"] not in _ENDED:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeLimitError(f"job {job}: {row['finished']} of {row['queries']} queries after {timeout_s:g} s")
            time.sleep(_POLL_S)
        return row


def _quoted(job: str) -> str:
    return quote(job, safe="")
