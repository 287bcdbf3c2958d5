"""The server of the live page: standard library only, on loopback, with a token. It sends the files of runs."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.version import __version__
from chimera.web.live.description import describe, version
from chimera.web.live.pieces import FILES, read_piece
from chimera.web.page.document import document
from chimera.web.security import has_token, host_and_port, may_serve_page, selected_headers

HOST = "127.0.0.1"
MAX_RUNS = 6
_MAX_CONNECTIONS = 32
_CHECK_INTERVAL_S = 0.05  # between checks whether the page has ended
_REQUEST_S = 10.0  # a connection that takes longer is closed
_MAX_TARGET_CHARACTERS = 2048
_SCRIPTS = (
    "follow.js",
    "curves.js",
    "timeline.js",
    "messages.js",
    "graph.js",
    "motion.js",
    "together.js",
    "tables.js",
    "page.js",
)


@dataclass(frozen=True)
class Followed:
    """A run that a page follows.

    Attributes
    ----------
    name : shown as the title of the run.
    folder : its folder, which need not exist yet.
    refresh : called before the state of the run is read, for a folder that is a copy; returns a note, or an empty text.
    """

    name: str
    folder: Path
    refresh: Callable[[], str] = str


class LivePage:
    """Serves a page that follows runs, in threads of this process.

    Parameters
    ----------
    runs : the runs to show, 1 to `MAX_RUNS`.
    port : port on loopback; 0 is any free port.

    Attributes
    ----------
    token : the token that requests for data need.

    Raises
    ------
    ConfigurationError : the port cannot be used, or there are too many runs.
    """

    def __init__(self, runs: Sequence[Followed], port: int = 0) -> None:
        if not 0 < len(runs) <= MAX_RUNS:
            raise ConfigurationError(f"a page shows 1 to {MAX_RUNS} runs, not {len(runs)}")
        names = {run.name for run in runs}
        if len(names) < len(runs):
            runs = [replace(run, name=str(run.folder)) for run in runs]
        self.token = secrets.token_urlsafe(32)
        try:
            self._server = _Server(("127.0.0.1", port), list(runs), self.token)
        except OSError as error:
            raise ConfigurationError(f"cannot listen on port {port} of {HOST}: {error.strerror or error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CHECK_INTERVAL_S,), name="chimera-page", daemon=True
        )

    @property
    def address(self) -> str:
        """The address of the page, without the token."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    @property
    def link(self) -> str:
        """The address with the token, which opens the page."""
        return f"{self.address}#token={self.token}"

    def follow(self, runs: Sequence[Followed]) -> None:
        """Show these runs from now on."""
        self._server.runs = list(runs)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self, wait_s: float = 3.0) -> None:
        """Stop to serve. Browsers that show the page can first read the rest, for at most ``wait_s`` seconds."""
        self._server.end(wait_s if self._thread.is_alive() else 0)
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], runs: list[Followed], token: str) -> None:
        super().__init__(address, _Handler)
        self.runs, self.token = runs, token
        self.document = document("chimera.web.live", "Chimera run", scripts=_SCRIPTS, shared=("base.js", "charts.js"))
        self.ended = False
        self._polled_s = -60.0
        self._read_to_end = threading.Event()
        self._lock, self._open = threading.Lock(), dict[socket.socket, float]()

    def polled(self) -> bool:
        """Note that a browser asked for the state; return whether the process ends, which the browser then knows."""
        self._polled_s = time.monotonic()
        return self.ended

    def read_to_end(self) -> None:
        """Note that a browser has read all files after it knew that the process ends."""
        self._read_to_end.set()

    def end(self, wait_s: float) -> None:
        self.ended = True
        if time.monotonic() - self._polled_s < 5:
            self._read_to_end.wait(wait_s)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= _MAX_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic()
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections that take too long; called 20 times a second."""
        late = time.monotonic() - _REQUEST_S
        with self._lock:
            slow = [request for request, since_s in self._open.items() if since_s < late]
        for request in slow:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has just ended

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a browser that closes its connection is no error of the run."""


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "chimera", ""
    timeout = _REQUEST_S

    def do_GET(self) -> None:
        """Answer one request."""
        try:
            target = urlsplit(self.path)
            if len(self.path) > _MAX_TARGET_CHARACTERS:
                raise _RefusedError(414, "the address is too long")
            route = self.ROUTES.get(target.path)
            self._check(open_path=target.path == "/")
            if route is None:
                raise _RefusedError(404, "there is no such path")
            route(self, parse_qs(target.query, max_num_fields=8))
        except _RefusedError as error:
            self._send(json.dumps({"error": str(error)}).encode(), "application/json", status=error.status)
        except (ChimeraError, ValueError) as error:
            self._send(json.dumps({"error": str(error)}).encode(), "application/json", status=400)

    def _check(self, *, open_path: bool) -> None:
        given = selected_headers(
            (name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()
        )
        host_port = host_and_port(given.get(b"host"))
        if host_port is None:
            raise _RefusedError(400, "the header Host is missing or malformed")
        scope = {"scheme": "http", "server": self.server.server_address, "client": self.client_address}
        if not may_serve_page(scope, host_port, given):
            raise _RefusedError(403, "this page is for requests to a loopback address, from no other site")
        if not open_path and not has_token(given, self.server.token):
            raise _RefusedError(401, "the token is missing or wrong")

    def _page(self, _: Mapping[str, list[str]]) -> None:
        shown = self.server.document
        self._send(shown.content, "text/html; charset=utf-8", {"Content-Security-Policy": shown.policy})

    def _state(self, query: Mapping[str, list[str]]) -> None:
        if "end" in query:
            self.server.read_to_end()
        ended = self.server.polled()
        runs = [
            {"name": run.name, "note": run.refresh(), "version": version(run.folder), "exists": run.folder.is_dir()}
            for run in self.server.runs
        ]
        self._send(json.dumps({"runs": runs, "ended": ended, "chimera": __version__}).encode(), "application/json")

    def _run(self, query: Mapping[str, list[str]]) -> None:
        self._send(json.dumps(describe(self._asked(query).folder)).encode(), "application/json")

    def _rows(self, query: Mapping[str, list[str]]) -> None:
        name = query.get("file", [""])[0]
        if name not in FILES:
            raise _RefusedError(404, "there is no such file")
        last = _number(query, "last") if "last" in query else None
        piece = read_piece(self._asked(query).folder, name, at=_number(query, "at"), last=last)
        where = {
            "Chimera-At": str(piece.at),
            "Chimera-Size": str(piece.size),
            "Chimera-Restarted": str(int(piece.restarted)),
        }
        self._send(piece.lines, "application/jsonl; charset=utf-8", where)

    ROUTES: ClassVar[dict[str, Callable[[_Handler, Mapping[str, list[str]]], None]]] = {
        "/": _page, "/v1/live/state": _state, "/v1/live/run": _run, "/v1/live/rows": _rows,
    }  # fmt: skip

    def _asked(self, query: Mapping[str, list[str]]) -> Followed:
        number = _number(query, "run")
        if number >= len(self.server.runs):
            raise _RefusedError(404, "there is no such run")
        return self.server.runs[number]

    def _send(self, body: bytes, kind: str, headers: Mapping[str, str] | None = None, *, status: int = 200) -> None:
        own = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        self.send_response(status)
        for name, value in {"Content-Security-Policy": "frame-ancestors 'none'", **own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is malformed, or whose method is not GET."""
        reason = (message or explain or "malformed").partition("(")[0].strip()
        self._send(json.dumps({"error": reason}).encode(), "application/json", status=code)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Write nothing."""


ROUTES = tuple(_Handler.ROUTES)
"""The paths that the page's server answers; all but ``/`` need the token."""


def _number(query: Mapping[str, list[str]], name: str) -> int:
    text = query.get(name, ["0"])[0]
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise _RefusedError(400, f"{name} must be a number")
    return int(text)
