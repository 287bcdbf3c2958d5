"""The answer of a node to a call, checked completely before any part of it is used."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.engines.http.failure import MAX_KIND_CHARACTERS, Failed, revived
from chimera.engines.http.refs import Outcome
from chimera.engines.http.values import Value

_MAX_DURATION_S = 1e9
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Name = Annotated[str, msgspec.Meta(max_length=MAX_KIND_CHARACTERS)]


class _Cost(msgspec.Struct, forbid_unknown_fields=True):
    lasted_s: float
    samples: _Count
    bytes_in: _Count
    bytes_out: list[_Count]


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    kind: _Name
    module: _Name
    summary: str
    traceback: str
    content: dict[str, Any] | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    cost: _Cost
    values: list[Any] | None = None
    failure: _Failure | None = None


def read_answer(body: bytes | bytearray | memoryview, wanted: int, actor: str, call: str, module: str) -> Outcome:
    """Return the outcome of a call.

    Parameters
    ----------
    wanted : number of values that the call returns.
    actor, call : names for the failure of the call.
    module : name of the module of the actor's class.

    Raises
    ------
    DataError : the answer has another form, or a value in it cannot be read.
    """
    document = wire.unpack(body, open_inner=False)
    try:
        answer = msgspec.convert(document, _Answer)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise DataError(f"the answer has another form: {error}") from error
    cost = answer.cost
    if not (math.isfinite(cost.lasted_s) and 0 <= cost.lasted_s <= _MAX_DURATION_S):
        raise DataError(f"a call cannot have lasted {cost.lasted_s} s")
    values: Failed | list[Value]
    if answer.failure is not None:
        values = revived(msgspec.structs.asdict(answer.failure), actor, call, module)
    else:
        values = _values(answer.values, cost.bytes_out, wanted, len(body))
    return Outcome(values, cost.lasted_s, cost.bytes_in, sum(cost.bytes_out), cost.samples)


def _values(pieces: list[Any] | None, sizes: list[int], wanted: int, max_bytes: int) -> list[Value]:
    if pieces is None or not len(pieces) == len(sizes) == wanted:
        raise DataError(f"it has not {wanted} values")
    if sum(sizes) > max_bytes:
        raise DataError(f"values of {sum(sizes)} bytes do not fit into an answer of {max_bytes} bytes")
    for piece in pieces:
        if type(piece) is not wire.Packed:
            raise DataError("a value of it is not packed")
        piece.open()  # a damaged value is the loss of its sender, and must not reach another actor
    return [Value.packed_as(piece, size) for piece, size in zip(pieces, sizes, strict=True)]
