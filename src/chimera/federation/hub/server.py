"""The server of a hub: mutual TLS, the routes ``/node``, ``/requester`` and ``/join``, and the watch for revocations."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import ssl
import sys
import time
from asyncio import sslproto
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.address import host_in_url
from chimera.core.errors import ChimeraError, ConfigurationError, ConflictError, DataError
from chimera.core.private import FILE, write
from chimera.engines.federation.wire.frames import CHUNK, MAX_FRAME_BYTES
from chimera.engines.federation.wire.pages import keep_pages
from chimera.federation.audit.journal import AuditJournal
from chimera.federation.hub.listeners import bounded_handshakes, listen
from chimera.federation.hub.member import ConnectedMember, refuse
from chimera.federation.hub.relay import HELLO_S, Relay
from chimera.federation.hub.state import State
from chimera.federation.hub.traffic import Traffic, about
from chimera.federation.identity import messages
from chimera.federation.identity.authority import Authority, key_pem, new_key
from chimera.federation.identity.invitations import digest_of

_WATCH_S, _REPORT_S = 0.5, 5.0
_BACKLOG = 1024  # all nodes dial at once when the hub starts again
_MAX_UNAUTHENTICATED = 100  # sides without a certificate, each for at most 10 s
_TLS_BUFFER = 1 << 16
"""Size of the buffer that asyncio fills with zeros for each connection with TLS, in bytes. Its default, four times as much,
would be most of the memory of a hub with many idle nodes."""


class Hub:
    """A hub.

    Parameters
    ----------
    folder : folder of its authority and state.
    host, port : where it listens; port 0 is any free port.
    names : further names of its host, for the certificate that it makes itself.
    certificate, key : files of a certificate of its server that was made elsewhere.
    audit_mb : size of the audit log above which its oldest file is removed, in MB.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 8443,
        names: Sequence[str] = (),
        certificate: Path | None = None,
        key: Path | None = None,
        audit_mb: int = 1024,
    ) -> None:
        if (certificate is None) != (key is None):
            raise ConfigurationError("give both --certificate and --key, or neither")
        self._folder, self._host, self._port = folder, host, port
        self._names = [*names, *([] if host in ("0.0.0.0", "::") else [host]), "localhost", "127.0.0.1", "::1"]  # noqa: S104 - a comparison
        self._files = certificate, key
        self.authority = Authority(folder)
        self.state = State(folder)
        self._audit_bytes = audit_mb * 10**6
        self._traffic = Traffic(self._note)
        self._relay = Relay(self._traffic, self._renew)
        self._valid: dict[str, tuple[str, str]] = {}
        self._joining: dict[Any, None] = {}  # the oldest first
        self._handshakes = bounded_handshakes()

    async def run(self, started: Callable[[str], None] = lambda _: None) -> None:
        """Serve until the task is cancelled.

        Parameters
        ----------
        started : called with the hub's address once it listens.

        Raises
        ------
        ConfigurationError : it cannot listen, or another hub uses the folder.
        AuditError : the audit log was changed.
        NoSpaceError : the disk of the audit log is full.
        """
        from websockets.asyncio.server import serve

        from chimera.engines.federation.wire.prompt import ToMember

        logger = logging.getLogger("chimera.federation.websockets")
        logger.setLevel(logging.CRITICAL + 1)  # the library logs each failed handshake with a traceback
        with _locked(self._folder), self._auditing():
            self.state.forget_presence()
            self._valid = self.state.valid()
            self._relay.revoke(self.state.revoked())
            tls = self._tls()
            async with contextlib.AsyncExitStack() as stack:
                listeners = listen(self._host, self._port, self._handshakes, stack)
                port = listeners[0].getsockname()[1]
                for listener in listeners:
                    await stack.enter_async_context(
                        serve(
                            self._serve, sock=listener, ssl=tls, compression=None, max_size=MAX_FRAME_BYTES, max_queue=8,
                            write_limit=2 * CHUNK, ping_interval=None, open_timeout=HELLO_S, close_timeout=1.0,
                            server_header=None, logger=logger, backlog=_BACKLOG, create_connection=ToMember,
                        )
                    )  # fmt: skip
                url = f"https://{host_in_url(self._names[0])}:{port}"
                self.state.remember(url=url, own_certificate=str(int(self._files[0] is None)))
                started(url)
                try:
                    await self._watch()
                finally:
                    for member in self._relay.members():
                        member.port.abort()
                    self.state.report(self._relay.seen(), self._relay.runs())
                    self.state.forget_presence()

    @contextlib.contextmanager
    def _auditing(self) -> Iterator[None]:
        """Keep the audit log open."""
        self._audit = AuditJournal(self._folder, max_bytes=self._audit_bytes)
        try:
            yield
        finally:
            if self._audit.error is None:
                self._traffic.close()
            self._audit.close()

    def _note(self, decision: str, **entry: Any) -> None:
        self._audit.note(decision, **entry)

    async def _watch(self) -> None:
        """Send revocations to nodes, close connections of revoked members, and record the connected nodes and runs."""
        version, reported_s = self.state.changes(), 0.0
        while True:
            await asyncio.sleep(_WATCH_S)
            self._handshakes.break_off_older(time.monotonic() - HELLO_S)
            if (now := self.state.changes()) != version:
                version, self._valid = now, self.state.valid()
                self._relay.revoke(self.state.revoked())
                for member in self._relay.members():
                    if member.serial not in self._valid:
                        await member.refuse("its certificate is revoked")
            if self._audit.error is not None:  # a hub relays nothing that its audit log cannot record
                raise self._audit.error
            if time.monotonic() - reported_s >= _REPORT_S:
                reported_s = time.monotonic()
                self._relay.close_idle()
                self._traffic.drop_disconnected_runs(self._relay.drivers, reported_s)
                with contextlib.suppress(ChimeraError):  # the report is for display; the relay continues
                    self.state.report(self._relay.seen(), self._relay.runs())

    async def _serve(self, connection: Any) -> None:
        route = connection.request.path
        self._handshakes.end(connection.transport.get_extra_info("socket").fileno())
        try:
            if route == "/join":
                await self._join(connection)
            elif route in ("/node", "/requester"):
                await self._member(connection, route[1:])
            else:
                connection.transport.abort()
        except Exception as error:  # an error of one connection; the library would log it with a traceback
            if type(error).__module__.partition(".")[0] != "websockets" and not isinstance(error, OSError):
                sys.stderr.write(f"chimera hub: a connection failed: {type(error).__name__}: {error}\n")

    async def _member(self, connection: Any, role: str) -> None:
        """Serve a node or driver, if its certificate is of this role and not revoked."""
        secure = connection.transport.get_extra_info("ssl_object")
        certificate = secure.getpeercert()
        if not certificate:
            await refuse(connection, "it has no certificate: join the hub first")
            return
        serial = f"{int(certificate['serialNumber'], 16):x}"
        named = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        known = self._valid.get(serial) or self.state.valid().get(serial)
        if known is None:
            await refuse(connection, "its certificate is revoked, or unknown to this hub")
        elif named != [f"chimera:{known[0]}:{known[1]}"] or known[0] != role:
            await refuse(connection, f"its certificate is of a {known[0]}, and a {role} is expected here")
        else:
            fingerprint = hashlib.sha256(secure.getpeercert(binary_form=True)).hexdigest()
            await self._relay.serve(connection, role, known[1], serial, fingerprint)

    def _renew(self, member: ConnectedMember, request: bytes) -> bytes:
        """Return a further certificate of a member."""
        if len(request) > messages.MAX_BYTES:
            raise DataError("a request for a certificate that is too large")
        issued = self.state.renew(member.serial, lambda role, name: self.authority.member(request, role, name))
        self._valid[issued.serial] = member.role, member.name
        self._note("renewed", fingerprint=issued.fingerprint, **about(member.role, member.name))
        return issued.pem

    async def _join(self, connection: Any) -> None:
        """Sign the certificate of a new member that has the code of an invitation."""
        self._joining[connection] = None
        if len(self._joining) > _MAX_UNAUTHENTICATED:  # silent strangers must keep no new member out
            oldest = next(iter(self._joining))
            del self._joining[oldest]
            oldest.transport.abort()
        try:
            await self._admit(connection)
        finally:
            self._joining.pop(connection, None)

    async def _admit(self, connection: Any) -> None:
        await connection.send(messages.pack(messages.Hub(self.authority.pem)))
        try:
            async with asyncio.timeout(HELLO_S):
                request = messages.decoder.decode(await connection.recv())
        except (TimeoutError, msgspec.MsgspecError, TypeError):
            connection.transport.abort()
            return
        if not isinstance(request, messages.Request):
            connection.transport.abort()
            return
        try:
            issued, role, name = self.state.redeem(
                digest_of(request.secret), lambda role, name: self.authority.member(request.request, role, name)
            )
        except (ConflictError, DataError) as error:
            await connection.send(messages.pack(messages.NotJoined(str(error)[:300])))
        else:
            self._valid[issued.serial] = role, name
            self._note("joined", fingerprint=issued.fingerprint, **about(role, name))
            await connection.send(messages.pack(messages.Certificate(issued.pem, role, name)))
        await connection.close()

    def _tls(self) -> ssl.SSLContext:
        certificate, key = self._files
        if certificate is None or key is None:
            certificate, key = self._own_certificate()
        self.server_files = certificate, key
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            tls.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the certificate {certificate} or its key cannot be used: {error}") from error
        tls.load_verify_locations(cadata=self.authority.pem.decode())
        tls.verify_mode = ssl.CERT_OPTIONAL  # only the route /join is open to a side without a certificate
        tls.num_tickets = 0  # a resumed session would not check the certificate's dates again
        return tls

    def _own_certificate(self) -> tuple[Path, Path]:
        """Return files of a new certificate of the server. It is made at each start, so that it does not expire."""
        certificate, file = self._folder / "server.pem", self._folder / "server.key"
        key = new_key()
        write(file, key_pem(key))
        write(certificate, self.authority.server(key.public_key(), list(dict.fromkeys(self._names))).pem)
        return certificate, file


@contextlib.contextmanager
def _locked(folder: Path) -> Any:
    """Hold the lock of a folder, so that one hub uses it."""
    lock = os.open(folder / "hub.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another hub runs in {folder}") from None
        yield
    finally:
        os.close(lock)


def serve(hub: Hub, started: Callable[[str], None]) -> None:
    """Run a hub until SIGINT or SIGTERM. Its state is then closed, so that the file ``hub.sqlite`` has all of it."""

    async def main() -> None:
        task = asyncio.ensure_future(hub.run(started))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    keep_pages()
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    try:
        asyncio.run(main())
    finally:
        hub.state.close()
