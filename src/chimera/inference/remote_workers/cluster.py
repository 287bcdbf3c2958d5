"""The cluster's address for a machine with remote workers, which sends reports there and records permanent errors."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path

import msgspec

from chimera.core.address import Address
from chimera.core.errors import ChimeraError, ConfigurationError, DataError, RunError, TimeLimitError, UnavailableError
from chimera.core.printable import printable
from chimera.engines.http import wire
from chimera.engines.http.connection import Answer, Connection, InvalidAnswer, Unreachable
from chimera.engines.http.routes import document_of
from chimera.inference.remote_workers.protocol import (
    HOLD_S,
    MAX_REPORT_BYTES,
    PATH,
    FilesAnswer,
    FilesRequest,
    Next,
    Report,
)
from chimera.version import __version__
from chimera.web.folder import token_for

PATIENCE_S = 15.0
"""The address must answer within this time for the first time. Later, reports are repeated without an end."""
ENDED = "the worker has ended"
"""Why a connection was broken off by its owner."""
_TRY_S = 2.5 + HOLD_S  # timeout of one report
_FILES_S = 20.0  # timeout of a request for a piece of a file
_REFUSALS = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.UNPROCESSABLE_ENTITY})
_CONFLICT_S = 10.0  # an earlier program on this machine may have had the same name until its end
_MAX_REASON_CHARACTERS = 300
_MAX_WARNINGS = 200


class ClusterConnection:
    """A connection for one thread with one of the addresses of a cluster. After an error, the next address is called.

    Parameters
    ----------
    make : makes a connection with each of the addresses.
    """

    def __init__(self, make: Sequence[Callable[[], Connection]]) -> None:
        self._make, self._place, self._broken_by = make, 0, ""
        self._current = make[0]()

    def request(self, path: str, body: bytes, timeout_s: float) -> Answer:
        """Send a POST request, and return the answer; see `Connection.request`."""
        return self._current.request("POST", path, body, wire.CONTENT_TYPE, timeout_s=timeout_s, idempotent=True)

    def failed(self) -> None:
        """Call the next address from now on."""
        self._current.close()
        self._place = (self._place + 1) % len(self._make)
        self._current = self._make[self._place]()
        if self._broken_by:  # meanwhile
            self._current.break_off(self._broken_by)

    def break_off(self, reason: str) -> None:
        """Abort the current request, from another thread. This request and all later ones raise `Unreachable`."""
        self._broken_by = reason
        self._current.break_off(reason)

    def close(self) -> None:
        """Close the connection."""
        self._current.close()


class ClusterAddress:
    """The address of a cluster. All methods are thread-safe.

    Parameters
    ----------
    url : the fixed address, ``https://host:port``; of a cluster with voters several of them, separated by commas.
    token : token of remote workers, or of the cluster.
    tls : context for ``https``; default: the authorities of the system.
    notify : called with a line of text when the connection is lost, and when it is restored.

    Attributes
    ----------
    failure : a permanent error; the machine must end. None while there is none.

    Raises
    ------
    ConfigurationError : the address is invalid, or the token would travel there in clear.
    """

    def __init__(self, url: str, token: str, tls: ssl.SSLContext | None, notify: Callable[[str], None]) -> None:
        self._addresses = addresses_of(url)
        self._url, self._token, self._tls, self._notify = url, token, tls, notify
        self.failure: ChimeraError | None = None
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._was_reached = self._is_lost = False
        self._conflict_s: float | None = None
        self._warnings: set[str] = set()

    def connection(self) -> ClusterConnection:
        """Return a new connection, for one thread."""
        return ClusterConnection(
            [partial(Connection, each, self._token, self._tls, MAX_REPORT_BYTES) for each in self._addresses]
        )

    def report(self, connection: ClusterConnection, worker: str, report: Report) -> Next | None:
        """Send a report, and return the coordinator's answer; None if there is none now."""
        body = wire.pack(msgspec.to_builtins(report, builtin_types=(bytes,)))
        try:
            found = connection.request(f"{PATH}/{worker}", body, _TRY_S)
            if found.status != HTTPStatus.OK:
                connection.failed()
                self._refused(found.status, _reason(found))
                return None
            following = msgspec.convert(wire.unpack(found.body), Next)
        except msgspec.ValidationError as error:
            connection.failed()
            self._lost(f"its answer is not known to Chimera {__version__} ({error}): use one version on all machines")
            return None
        except (Unreachable, TimeLimitError, InvalidAnswer, DataError) as error:
            if str(error) != ENDED:
                connection.failed()
                self._lost(str(error))
            return None
        self._mark_reachable()
        if following.warning:
            self._warn(printable(following.warning[:_MAX_REASON_CHARACTERS]))
        return following

    def files(self, connection: ClusterConnection, worker: str, request: FilesRequest) -> FilesAnswer | None:
        """Request files of a model, and return the answer; None if there is none now.

        Raises
        ------
        ConfigurationError : the cluster refuses it.
        """
        body = wire.pack(msgspec.to_builtins(request))
        try:
            found = connection.request(f"{PATH}/{worker}/files", body, _FILES_S)
            if found.status in _REFUSALS:
                raise ConfigurationError(_reason(found))
            if found.status == HTTPStatus.OK:
                return msgspec.convert(wire.unpack(found.body), FilesAnswer)
        except (Unreachable, TimeLimitError, InvalidAnswer, DataError, msgspec.ValidationError):
            pass
        connection.failed()
        return None

    def _mark_reachable(self) -> None:
        with self._lock:
            self._conflict_s = None
            if self._is_lost or not self._was_reached:
                self._notify(f"the cluster at {self._url} answers")
            self._was_reached, self._is_lost = True, False

    def _warn(self, warning: str) -> None:
        with self._lock:
            is_new = warning not in self._warnings and len(self._warnings) < _MAX_WARNINGS
            if is_new:
                self._warnings.add(warning)
                self._notify(f"warning: {warning}")

    def _lost(self, reason: str) -> None:
        with self._lock:
            if self._was_reached:
                if not self._is_lost:
                    self._notify(
                        f"the cluster at {self._url} does not answer: {reason[:_MAX_REASON_CHARACTERS]}; it is called again"
                    )
                self._is_lost = True
            elif time.monotonic() > self._began_s + PATIENCE_S:
                where = f"the cluster at {self._url} cannot be reached: {reason[:_MAX_REASON_CHARACTERS]}"
                self._fail(UnavailableError(f"{where}: is it up, with --host and --port?"))

    def _refused(self, status: int, reason: str) -> None:
        where = f"the cluster at {self._url}"
        if status == HTTPStatus.UNAUTHORIZED:
            self._fail(
                ConfigurationError(f"{where} refuses the token: use that in the file 'worker-token' of its folder")
            )
        elif status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            self._fail(ConfigurationError(f"{where} has no route for workers of other machines: update it"))
        elif status == HTTPStatus.CONFLICT:
            with self._lock:
                self._conflict_s = self._conflict_s or time.monotonic()
                lasts = time.monotonic() > self._conflict_s + _CONFLICT_S
            if lasts:
                self._fail(ConfigurationError(f"{where} refuses the worker: {reason}"))
        elif status == HTTPStatus.UNPROCESSABLE_ENTITY:
            ours = f"; this machine runs Chimera {__version__}" if "the cluster runs" in reason else ""
            self._fail(ConfigurationError(f"{where} refuses the worker: {reason}{ours}"))
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
            self._lost(reason)
        else:
            self._fail(RunError(f"{where} refuses a report with {status}: {reason}"))

    def _fail(self, failure: ChimeraError) -> None:
        self.failure = self.failure or failure


def _reason(answer: Answer) -> str:
    message = str(document_of(answer).get("message", f"status {answer.status}"))
    return printable(message[:_MAX_REASON_CHARACTERS])


def addresses_of(url: str) -> list[Address]:
    """Return the addresses of ``--join``.

    Raises
    ------
    ConfigurationError : one is invalid, or the token would travel there in clear.
    """
    found = [Address.of(each.strip(), "--join:") for each in url.split(",")]
    for each in found:
        each.check_token_is_protected()
    return found


def token_of(url: str, file: Path | None) -> str:
    """Return the token for a cluster, from a file or from the variable ``CHIMERA_CLUSTER_TOKEN``.

    Raises
    ------
    ConfigurationError : the file cannot be read or is no token, or the variable is not set.
    """
    if file is None:
        return token_for(url.split(",")[0].strip())
    try:
        with file.open("rb") as opened:
            token = opened.read(1001).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {str(file)!r} cannot be read: {error}") from error
    if not 1 <= len(token) <= 1000 or not token.isprintable() or " " in token:
        raise ConfigurationError(f"--token-file {str(file)!r} must have one token in one line, at most 1000 characters")
    return token


def tls_context(authority: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of a machine; None for the defaults of the system.

    Parameters
    ----------
    authority : PEM file with the authorities that may sign the cluster's certificate; default: those of the system.
    certificate, key : PEM files of the certificate that this machine presents.

    Raises
    ------
    ConfigurationError : a file is missing or cannot be used.
    """
    if authority is None and certificate is None and key is None:
        return None
    if (certificate is None) != (key is None):
        raise ConfigurationError("--tls-cert and --tls-key: set both or none")
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        given = {"--tls-ca": authority, "--tls-cert": certificate, "--tls-key": key}
        named = ", ".join(f"{option} {str(file)!r}" for option, file in given.items() if file is not None)
        raise ConfigurationError(f"{named} cannot be used: {error}; all must be PEM files") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
