"""The work of a computing process: it loads one model, and computes batches."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from typing import Any

from chimera.core.errors import ChimeraError
from chimera.engines.http import wire
from chimera.inference.models import Predictor, answers, load
from chimera.inference.models.answers import tokens_of
from chimera.models.instantiation import first_line


def serve(connection: Connection, predictor: Predictor | None, load_s: float) -> None:
    """Load the model of the first message, and compute the batches of the others until the worker has ended.

    Parameters
    ----------
    connection : receives the table of the model, and then lists of queries. It sends ``loaded`` with the seconds of the
        load, or ``failed`` with the reason. Then for each batch it sends ``piece`` with the arguments of
        `chimera.inference.models.table.Emit`, and finally ``done``.
    predictor, load_s : the model, if it is loaded already, and the seconds of its load.
    """

    def notify(what: str, more: Any) -> None:
        connection.send_bytes(wire.pack([what, more]))

    with contextlib.suppress(EOFError):
        table: Any = wire.unpack(connection.recv_bytes())
        began_s = time.perf_counter()
        try:
            made = predictor if predictor is not None else load(table)
        except Exception as error:  # user code may raise anything
            notify("failed", reason(error))
            return
        notify("loaded", load_s if predictor is not None else time.perf_counter() - began_s)
        while True:
            queries: Any = wire.unpack(connection.recv_bytes())
            began_s = time.perf_counter()
            found = answers(made, queries, lambda *piece: notify("piece", list(piece)))
            notify("done", finished(found, time.perf_counter() - began_s))


def finished(found: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the report about the answers of a batch that took ``seconds`` to compute."""
    errors = [one["error"] for one in found if "error" in one]
    return {
        "seconds": seconds,
        "errors": len(errors),
        "error": errors[0] if errors else "",
        "results": wire.pack(found),
        "tokens": sum(map(tokens_of, found)),
    }


def reason(error: Exception) -> str:
    """Return why a model cannot be loaded, in one line."""
    return str(error).partition("\n")[0] if isinstance(error, ChimeraError) else first_line(error)
