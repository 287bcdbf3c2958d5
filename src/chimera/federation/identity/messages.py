"""The messages by which a node or requester joins: the authority, then the request and the certificate."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_BYTES = 1 << 14
_Pem = Annotated[bytes, msgspec.Meta(max_length=8192)]


class Hub(msgspec.Struct, array_like=True, frozen=True, tag="hub"):
    """The hub's first message: the certificate of its authority."""

    authority: _Pem


class Request(msgspec.Struct, array_like=True, frozen=True, tag="request"):
    """The request of the invited side.

    Attributes
    ----------
    secret : secret of the invitation.
    request : certificate signing request, in PEM.
    """

    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    request: _Pem


class Certificate(msgspec.Struct, array_like=True, frozen=True, tag="certificate"):
    """The certificate of the new member, with its role and name."""

    certificate: _Pem
    role: str
    name: str


class NotJoined(msgspec.Struct, array_like=True, frozen=True, tag="not-joined"):
    """The reason for which the hub does not accept the request."""

    reason: Annotated[str, msgspec.Meta(max_length=300)]


Message = Hub | Request | Certificate | NotJoined

pack = msgspec.msgpack.Encoder().encode
decoder = msgspec.msgpack.Decoder(Message)
