"""One request to whoever leads a cluster, given up as soon as another process does."""

from __future__ import annotations

import http.client
import select
import ssl
import time
from collections.abc import Callable, Mapping
from typing import IO

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError

_LOOK_S = 0.1  # how often to look whether whoever was asked still leads


class Unanswered(OSError):  # noqa: N818 - it says what is the matter
    """There is no answer, or what came is none; it may be asked again, elsewhere."""


def opened(
    address: str,
    verb: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes | IO[bytes] | None,
    timeout_s: float,
    leads: Callable[[], bool],
) -> http.client.HTTPResponse:
    """Return the answer to a request, to be read and closed.

    Parameters
    ----------
    address : ``http://host:port`` or ``https://host:port``; the certificate is verified.
    timeout_s : how long sending, the answer's beginning and each part of it may take.
    leads : whether who answers there is the coordinator, as far as is known. One that hangs does not say so.

    Raises
    ------
    ConfigurationError : the address cannot be used, its certificate cannot be verified, or a token would travel in clear.
    Unanswered : nobody answers there in time, or another process leads by now.
    """
    place = Address.of(address)
    if "Authorization" in headers:
        place.check_token_is_protected()
    kind = http.client.HTTPSConnection if place.secure else http.client.HTTPConnection  # verified as the system does
    connection = kind(place.host, place.port, timeout=timeout_s)
    try:
        connection.request(verb, f"{place.path}{path}", body, {**headers, "Connection": "close"})
        _await(connection, time.monotonic() + timeout_s, leads)
        return connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise ConfigurationError(f"the certificate of {address} cannot be verified: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise Unanswered(str(error) or type(error).__name__) from error
    except BaseException:
        connection.close()
        raise


def read(answer: http.client.HTTPResponse) -> bytes:
    """Return the rest of an answer, and close it.

    Raises
    ------
    Unanswered : it breaks off.
    """
    with answer:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"the answer breaks off: {error}") from error


def _await(connection: http.client.HTTPConnection, deadline_s: float, leads: Callable[[], bool]) -> None:
    """Wait until there is something to read."""
    answer = select.poll()
    answer.register(connection.sock, select.POLLIN)
    while not answer.poll(_LOOK_S * 1000):
        if not leads():
            raise Unanswered("it does not answer, and another process leads by now")
        if time.monotonic() > deadline_s:
            raise Unanswered("timed out")
