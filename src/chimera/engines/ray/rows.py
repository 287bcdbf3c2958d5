"""The rows of the trace: measured by the actors, brought to the driver as one more small result of each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from chimera.engines.ray.failure import translated
from chimera.engines.ray.refs import ROW, Lane

_PATIENCE_S = 0.1


def take_rows(lanes: Sequence[Lane], began_s: float, name_of: Callable[[str], str | None]) -> None:
    """Bring the rows of calls that have ended to their lanes.

    Parameters
    ----------
    began_s : when the engine began; rows count from there.
    name_of : the name of an actor by its Ray id, for what the dead leave.
    """
    import ray

    refs = [issued.row for lane in lanes for issued in lane.calls]
    if not refs:
        return
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
    packed = _packed(ready, name_of)
    found: list[tuple[float, Lane, bytes | None, str]] = []
    for lane in lanes:
        end_s = 0.0
        for issued in lane.calls:
            if issued.row not in packed:
                break
            row, error = packed[issued.row]
            end_s = max(end_s, issued.issued_s) if row is None else ROW.unpack(row)[1]
            found.append((end_s, lane, row, error))
    for _, lane, row, error in sorted(found, key=lambda entry: entry[0]):  # what made arguments before what took them
        lane.take_row(row, error, began_s)


def take_rows_of_actors(lanes: Sequence[Lane], began_s: float) -> None:
    """Bring the rows of calls that actors have made, from those that answer now; a busy one does it another time."""
    import ray
    from ray.exceptions import RayError

    asked = {ref: lane for lane in lanes if (ref := lane.ask_for_rows()) is not None}
    if not asked:
        return
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE_S)
    for ref in ready:
        rows: list[tuple[str, bytes]] = []
        with contextlib.suppress(RayError):  # who died took its last rows along
            rows = ray.get(ref)
        asked[ref].take_rows_of_actors(rows, began_s)


def _packed(refs: Sequence[Any], name_of: Callable[[str], str | None]) -> dict[Any, tuple[bytes | None, str]]:
    """Return the packed rows, and for those that will never come the name of the error."""
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):  # some of them are of calls that failed: one by one, then
        return {ref: (row, "") for ref, row in zip(refs, ray.get(list(refs)), strict=True)}
    packed: dict[Any, tuple[bytes | None, str]] = {}
    for ref in refs:
        try:
            packed[ref] = ray.get(ref), ""
        except RayError as error:
            packed[ref] = None, type(translated(error, "", name_of)).__name__
    return packed
