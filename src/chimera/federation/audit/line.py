"""A line of the audit log: an entry, its number, and the hash of the line before."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from chimera.core.errors import RunError

FIRST = "0" * 64
"""The hash before the first line."""
MAX_LINE_BYTES = 16_384
"""Maximum size of a line; a longer one cannot be Chimera's."""


class AuditError(RunError):
    """The audit log was changed, or does not belong to its ledger."""


class Entry(Struct, frozen=True, kw_only=True):
    """The content of a line.

    Attributes
    ----------
    time : UTC, ISO 8601 with seconds.
    decision : ``released``, ``refused``, ``withheld``, ``held``, ``approved``, ``declined``, ``lost`` or another word of the
        program that writes the log.
    requester, fingerprint : name and SHA-256 of the certificate of the requester, or of the member whom the line is about.
    node : name of the node, in the log of a hub.
    run, number : the call.
    kind, method : class of the actor, and the call; in the log of a hub, the kind is the role of a member.
    bytes_in, bytes_out : sizes of the request and of the answer.
    rows : rows of data that the call read; a row that the call read twice counts twice.
    epsilon : epsilon that the call added to the requester's account; None if no noise bounds it.
    reason : the reason of a refusal, or the name of the approver.
    """

    time: str
    decision: str
    requester: str = ""
    fingerprint: str = ""
    run: str = ""
    number: int = 0
    kind: str = ""
    method: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    epsilon: float | None = 0.0
    reason: str = ""
    node: str = ""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file.

    Attributes
    ----------
    sequence : its number; the first line has 1.
    before : SHA-256 of the line before, hexadecimal; of the first line, `FIRST`.
    entry : the content.
    """

    sequence: int
    before: str
    entry: Entry


def encode(line: Line) -> bytes:
    """Return a line as ASCII JSON without the line break. Characters beyond ASCII are escaped, so no terminal executes them."""
    data = msgspec.json.encode(line)
    text = data.decode()
    if text.isascii() and text.isprintable():
        return data
    return "".join(c if " " <= c <= "~" else _escaped(c) for c in text).encode()


def decode(data: bytes) -> Line:
    """Return the line in these bytes.

    Raises
    ------
    ValueError : the bytes are no line.
    """
    if len(data) > MAX_LINE_BYTES:
        raise ValueError("it is too long")
    try:
        return msgspec.json.decode(data, type=Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def digest(data: bytes) -> str:
    """Return the SHA-256 of a line without its line break, hexadecimal."""
    return sha256(data).hexdigest()


def _escaped(character: str) -> str:
    units: Any = character.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
