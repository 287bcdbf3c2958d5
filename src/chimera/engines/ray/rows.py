"""The rows of the trace. Actors measure the rows. Each call returns its row and the rows of its parts as one more result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from chimera.engines.ray.failure import translated
from chimera.engines.ray.refs import Channel
from chimera.engines.ray.row_format import row_of_call

_PATIENCE_S = 0.1


def take_rows(channels: Sequence[Channel], began_s: float, name_of: Callable[[str], str | None]) -> None:
    """Fetch the rows of ended calls into the records of the actors.

    Parameters
    ----------
    began_s : start of the engine, from which rows count time.
    name_of : returns the name of an actor by its Ray id, for the errors of dead actors.
    """
    import ray

    refs = [issued.row for channel in channels for issued in channel.calls]
    if not refs:
        return
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
    packed = _packed(ready, name_of)
    found: list[tuple[float, Channel, bytes | None, str]] = []
    for channel in channels:
        end_s = 0.0
        for issued in channel.calls:
            if issued.row not in packed:
                break
            row, error = packed[issued.row]
            end_s = max(end_s, issued.issued_s) if row is None else row_of_call(row)[1]
            found.append((end_s, channel, row, error))
    for _, channel, row, error in sorted(
        found, key=lambda entry: entry[0]
    ):  # calls before those that took their results
        channel.take_row(row, error, began_s)


def take_rows_of_actors(channels: Sequence[Channel], began_s: float) -> None:
    """Fetch the rows of calls between actors from actors that answer now; a busy actor is asked again later."""
    import ray
    from ray.exceptions import RayError

    pending = {ref: channel for channel in channels if (ref := channel.ask_for_rows()) is not None}
    if not pending:
        return
    ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_PATIENCE_S)
    for ref in ready:
        rows: list[tuple[str, bytes]] = []
        with contextlib.suppress(RayError):  # a dead actor has lost its last rows
            rows = ray.get(ref)
        pending[ref].take_rows_of_actors(rows, began_s)


def _packed(refs: Sequence[Any], name_of: Callable[[str], str | None]) -> dict[Any, tuple[bytes | None, str]]:
    """Return the packed rows, and the name of the error for rows that will never arrive."""
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):  # some rows are of failed calls: fetch the rows one by one
        return {ref: (row, "") for ref, row in zip(refs, ray.get(list(refs)), strict=True)}
    packed: dict[Any, tuple[bytes | None, str]] = {}
    for ref in refs:
        try:
            packed[ref] = ray.get(ref), ""
        except RayError as error:
            packed[ref] = None, type(translated(error, "", name_of)).__name__
    return packed
