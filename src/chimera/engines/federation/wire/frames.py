"""The frames of a federation: a header in MessagePack of bounded size, and at most one chunk of a body.

A call is a request of the HTTP engine: a verb, a path and a body. Its number in the run of its driver is never used again. The
driver asks for an answer from a given byte on, again after each break of a connection; the node runs the call once. Bodies of
both directions are streams of chunks. The receiver confirms each chunk with `Acknowledged`, and a sender has at most `WINDOW`
chunks without confirmation in flight.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal, TypeAlias

import msgspec

from chimera.core.errors import DataError

PROTOCOL = 1
REVISION = 2
"""The newest set of frames that this side knows: 1 adds `Revoked`, `Progress`, `Renew` and `Renewed`, and 2 adds
`Budget`."""
CHUNK = 1 << 20
"""Maximum size of a payload, in bytes."""
WINDOW = 4
"""Maximum number of chunks of a body that are in flight without a confirmation."""
MAX_HEADER_BYTES = 1 << 13
MAX_FRAME_BYTES = 2 + MAX_HEADER_BYTES + CHUNK
MAX_SETTLED_CALLS = 512
"""Maximum number of settled calls that one `Done` lists."""
MAX_REVOKED_CERTIFICATES = 200
"""Maximum number of certificates that one `Revoked` lists."""
MAX_LISTED_NODES = 50
"""Maximum number of nodes that one `ConnectedNodes` lists."""
NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
"""The form of names of nodes and requesters."""
GREETING = "X-Chimera-Hello"
"""The header of a WebSocket request that contains `Hello`. A hub that does not know it waits for the frame."""

Run = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
"""Key of a run: 128 random bits."""
Name = Annotated[str, msgspec.Meta(pattern=NAME)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=300)]
_Label = Annotated[str, msgspec.Meta(max_length=63)]
_Epsilon = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
_Path = Annotated[str, msgspec.Meta(max_length=1000)]


class _Frame(msgspec.Struct, array_like=True, frozen=True, tag_field="frame"):
    """The base of all headers. A later version may append fields; readers ignore fields that they do not know."""


class Hello(_Frame, frozen=True, tag=1):
    """The first frame of a node or driver on a new connection. It is also in the header `GREETING`.

    Attributes
    ----------
    boot : random name of the process.
    run : key of the driver's run; empty for a node.
    revision : see `REVISION`.
    """

    protocol: _Count
    boot: Annotated[str, msgspec.Meta(max_length=64)]
    version: Annotated[str, msgspec.Meta(max_length=64)]
    run: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    revision: _Count = 0


class ConnectedNodes(_Frame, frozen=True, tag=2):
    """The hub's answer to `Hello`, and its message to drivers when a node connects, disconnects or is revoked.

    Attributes
    ----------
    nodes : names of connected nodes, each with the name of its process.
    gone : names of nodes that are not connected any more.
    revision : see `REVISION`; in the first frame of a connection.
    """

    nodes: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_LISTED_NODES)]
    gone: Annotated[list[str], msgspec.Meta(max_length=MAX_LISTED_NODES)] = []
    revision: _Count = 0


class Heartbeat(_Frame, frozen=True, tag=3):
    """A heartbeat of a node or driver, which the hub returns."""


class CallRequest(_Frame, frozen=True, tag=4):
    """A request of a driver for the answer to a call. The payload of the first request is the first chunk of the body.

    Attributes
    ----------
    size : size of the body, in bytes.
    have : number of bytes of the answer that the driver has.
    requester, fingerprint : name and certificate of the driver; the hub fills them in.
    """

    run: Run
    number: _Count
    node: Name
    verb: Literal["GET", "POST", "DELETE"]
    path: _Path
    type: Annotated[str, msgspec.Meta(max_length=100)]
    size: _Count
    have: _Count = 0
    requester: Annotated[str, msgspec.Meta(max_length=63)] = ""
    fingerprint: Annotated[str, msgspec.Meta(max_length=64)] = ""


class BodyChunk(_Frame, frozen=True, tag=5):
    """A further chunk of the body of a call, which starts at byte ``at``."""

    run: Run
    number: _Count
    node: Name
    at: _Count


class Acknowledged(_Frame, frozen=True, tag=6):
    """The receiver of a body has its first ``at`` bytes."""

    run: Run
    number: _Count
    node: Name
    at: _Count


class Answer(_Frame, frozen=True, tag=7):
    """A chunk of an answer, which starts at byte ``at``."""

    run: Run
    number: _Count
    node: Name
    status: Annotated[int, msgspec.Meta(ge=100, lt=600)]
    type: Annotated[str, msgspec.Meta(max_length=100)]
    size: _Count
    at: _Count


class Done(_Frame, frozen=True, tag=8):
    """The driver no longer needs these answers of a node: those below ``floor``, and those in ``settled``.

    All calls below ``floor`` are settled: their answers arrived, or are not needed. No later call has such a number.
    """

    run: Run
    node: Name
    floor: _Count
    settled: Annotated[list[_Count], msgspec.Meta(max_length=MAX_SETTLED_CALLS)] = []


class Refused(_Frame, frozen=True, tag=9):
    """The hub refuses to serve this connection; it closes it."""

    reason: _Text


class CallPending(_Frame, frozen=True, tag=10):
    """A call waits for a decision of its node's administrator, or for the node's policy. The node repeats this frame.

    Attributes
    ----------
    asked : number of the run at the node.
    reason : ``hours`` or ``day`` if the call waits for the hours of the policy, or for the end of a limit of the day; else
        empty.
    wait_s : seconds until the end of this wait.
    """

    run: Run
    number: _Count
    node: Name
    asked: _Count
    reason: Annotated[str, msgspec.Meta(max_length=20)] = ""
    wait_s: _Count = 0


class Revoked(_Frame, frozen=True, tag=20):
    """The hub names the revoked certificates to a node: those that it knows at `Hello`, and each later one.

    Attributes
    ----------
    certificates : SHA-256 of each.
    """

    certificates: Annotated[
        list[Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]],
        msgspec.Meta(max_length=MAX_REVOKED_CERTIFICATES),
    ]


class Progress(_Frame, frozen=True, tag=21):
    """A driver reports the progress of its run to the hub, for the page of the hub.

    Attributes
    ----------
    strategy, model : names of strategy and model.
    rounds : completed rounds.
    fraction : used fraction of the budget of the run; None if it is not known.
    ended : whether the run is over.
    """

    run: Run
    strategy: _Label
    model: _Label
    rounds: _Count
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    ended: bool = False


class Renew(_Frame, frozen=True, tag=22):
    """A member asks for a new certificate. The payload is a certificate signing request, in PEM."""


class Renewed(_Frame, frozen=True, tag=23):
    """The hub's answer to `Renew`. The payload is the certificate, in PEM; it is empty if there is a reason against it."""

    reason: _Text = ""


class Budget(_Frame, frozen=True, tag=24):
    """A node whose policy releases it reports its budget of epsilon to the hub, for the page of the hub.

    Attributes
    ----------
    spent : epsilon of the updates of all requesters; None if no noise bounds it.
    limit : the budget for all requesters; None if there is none.
    delta, protects : the delta and the unit of epsilon, see `chimera.federation.policy.policy.PrivacyBounds`.
    """

    spent: _Epsilon | None
    limit: _Epsilon | None
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    protects: Literal["rows", "node"]


Header: TypeAlias = (
    Hello
    | ConnectedNodes
    | Heartbeat
    | CallRequest
    | BodyChunk
    | Acknowledged
    | Answer
    | Done
    | Refused
    | CallPending
    | Revoked
    | Progress
    | Renew
    | Renewed
    | Budget
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def pack(header: Header, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """Return a frame."""
    head = _encoder.encode(header)
    return b"".join((len(head).to_bytes(2, "big"), head, payload))


def unpack(frame: bytes) -> tuple[Header, memoryview]:
    """Return header and payload of a frame.

    Raises
    ------
    DataError : the bytes are not a frame of this protocol.
    """
    size = int.from_bytes(frame[:2], "big")
    if not 2 <= len(frame) <= MAX_FRAME_BYTES or not 0 < size <= min(MAX_HEADER_BYTES, len(frame) - 2):
        raise DataError("a frame without a header, or of more than one chunk")
    view = memoryview(frame)
    try:
        header = _decoder.decode(view[2 : 2 + size])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise DataError(f"a header that cannot be read: {error}") from error
    if len(frame) - 2 - size > CHUNK:
        raise DataError("a payload of more than one chunk")
    return header, view[2 + size :]


def greeting(hello: Hello) -> str:
    """Return the value of the header `GREETING`."""
    return base64.b64encode(pack(hello)).decode()


def greeted(value: str) -> Header:
    """Return the frame in a header `GREETING`.

    Raises
    ------
    DataError : the bytes are not a frame of this protocol.
    """
    try:
        return unpack(base64.b64decode(value, validate=True))[0]
    except ValueError as error:
        raise DataError(f"a greeting that cannot be read: {error}") from error


HEARTBEAT = pack(Heartbeat())
