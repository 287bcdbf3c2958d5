"""One request to the leader of a cluster, aborted as soon as another process is the leader."""

from __future__ import annotations

import http.client
import select
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError

_POLL_S = 0.1  # interval of the checks whether the leader has changed
_PIECE_BYTES = 1 << 16


class NoAnswerError(OSError):
    """There is no complete answer; the request may be retried, perhaps at another address."""


def send(
    address: str,
    verb: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes | IO[bytes] | None,
    timeout_s: float,
    leads: Callable[[], bool],
) -> http.client.HTTPResponse:
    """Send a request, and return the response. The caller must read and close it.

    Parameters
    ----------
    address : ``http://host:port`` or ``https://host:port``; the certificate is verified.
    timeout_s : timeout of the sending, of the start of the response, and of each read, in seconds.
    leads : returns whether the process at the address is still known as the leader. It is polled because a process that hangs
        sends no error.

    Raises
    ------
    ConfigurationError : the address cannot be used, its certificate cannot be verified, or a token would be sent unencrypted.
    NoAnswerError : there is no answer in time, or another process is the leader now.
    """
    target = Address.of(address)
    if "Authorization" in headers:
        target.check_token_is_protected()
    # HTTPSConnection verifies the certificate with those of the system.
    kind = http.client.HTTPSConnection if target.secure else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=timeout_s)
    try:
        connection.request(verb, f"{target.path}{path}", body, {**headers, "Connection": "close"})
        _await(connection, time.monotonic() + timeout_s, leads)
        return connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        connection.close()
        raise ConfigurationError(f"the certificate of {address} cannot be verified: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise NoAnswerError(str(error) or type(error).__name__) from error
    except BaseException:
        connection.close()
        raise


def read(answer: http.client.HTTPResponse) -> bytes:
    """Return the rest of a response, and close it.

    Raises
    ------
    NoAnswerError : the response is incomplete.
    """
    with answer:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"the answer is incomplete: {error}") from error


def lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a response; an iteration over the response itself would end at a broken connection without an error.

    Raises
    ------
    NoAnswerError : the response is incomplete.
    """
    rest = b""
    try:
        while piece := answer.read1(_PIECE_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
    except http.client.HTTPException as error:
        raise NoAnswerError(f"the answer is incomplete: {error}") from error
    if rest:
        yield rest


def _await(connection: http.client.HTTPConnection, deadline_s: float, leads: Callable[[], bool]) -> None:
    """Wait until the response starts."""
    answer = select.poll()
    answer.register(connection.sock, select.POLLIN)
    while not answer.poll(_POLL_S * 1000):
        if not leads():
            raise NoAnswerError("no answer, and another process is the leader now")
        if time.monotonic() > deadline_s:
            raise NoAnswerError("timed out")
