"""`chimera.run`: start the workers, wait until they are well, serve the master, stop the workers."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.nodes.health import unwell
from chimera.nodes.launchers.launcher import Launcher, LauncherError, Worker, choose_launcher, workers_of
from chimera.nodes.settings import Settings
from chimera.nodes.state import State
from chimera.nodes.table import read_training_data
from chimera.nodes.waiting import Waiting

if TYPE_CHECKING:
    from fastapi import FastAPI

DEFAULT_PORT = 8081
POLL_S = 0.05
LOG_LINES = 15


class Master(Protocol):
    """What `run` serves."""

    @property
    def settings(self) -> Settings:
        """The settings that the master was made with."""

    def app(self) -> FastAPI:
        """Return the application that answers its requests."""


class _Ended(BaseException):
    """SIGTERM came; not an `Exception`, like `KeyboardInterrupt`."""


def run(master: Master, port: int = DEFAULT_PORT, launcher: str | None = None) -> None:
    """Start the workers, wait until each answers its health check, and serve the master until it is stopped.

    The master listens on ``CHIMERA_WORKERS_HOST``, beyond loopback only with a token or certificates of clients; Ctrl-C and
    SIGTERM stop it. However this ends, by an error or a signal, all workers that it started have ended.

    Parameters
    ----------
    master : an `AggregationMaster` or a `ParameterServerMaster`.
    port : the port of the master.
    launcher : ``docker``, ``process`` or ``auto``; by default what ``CHIMERA_LAUNCHER`` says.

    Raises
    ------
    ConfigurationError : a file, a folder or a port that is missing or taken, a host open to all, or data that cannot be used;
        nothing was started.
    LauncherError : a worker did not come up; the message ends with the last lines of its log.
    """
    try:
        _run(master, port, launcher)
    except ChimeraError as error:
        _tell_plainly(error)
        raise
    except KeyboardInterrupt:  # while the workers came up
        raise SystemExit(128 + signal.SIGINT) from None
    except _Ended:
        raise SystemExit(128 + signal.SIGTERM) from None


def _run(master: Master, port: int, launcher: str | None) -> None:
    settings = master.settings
    workers = workers_of(settings)
    _check_data(workers)
    from chimera.web.app import serve
    from chimera.web.security import check_exposure

    check_exposure(settings.workers_host, settings)
    served = False
    with Waiting(worker.name for worker in workers) as waiting, State() as state, _sigterm_raises():
        chosen = choose_launcher(launcher or settings.launcher, settings, waiting.say)
        chosen.clear(workers)
        _check_ports(settings, workers, port)
        url = f"{'https' if settings.tls_cert else 'http'}://localhost:{port}"
        content: dict[str, Any] = {"master": url, "launcher": chosen.name, "tls_cert": str(settings.tls_cert or "")}
        content["tls_key"] = str(settings.client_key or "")
        try:
            chosen.start(workers)
            content["workers"] = {
                worker.name: {"url": worker.url, "log": chosen.log_places()[worker.name]} for worker in workers
            }
            state.write({**content, "serving": False})
            wait_until_well(workers, chosen, settings, waiting)
            waiting.end()

            def on_started() -> None:
                state.write({**content, "serving": True})
                waiting.say(f"the master serves at {url}; Ctrl-C stops it and its workers")

            with contextlib.suppress(KeyboardInterrupt, _Ended):  # how a server is stopped
                served = True
                serve(
                    master.app(),
                    host=settings.workers_host,
                    port=port,
                    settings=settings,
                    on_started=on_started,
                )
        finally:
            with _deaf():
                waiting.end()
                if served:
                    waiting.say("stopping the workers")
                chosen.stop()


def wait_until_well(workers: Sequence[Worker], launcher: Launcher, settings: Settings, waiting: Waiting) -> None:
    """Return when every worker has answered its health check.

    Raises
    ------
    LauncherError : one ended, or some were not well in time; with the last lines of its log.
    """
    begin = time.monotonic()
    pending = {worker.name: worker for worker in workers}
    why: dict[str, str] = {}
    while pending:
        for name, how in launcher.ended().items():
            if name in pending:
                raise LauncherError(f"the worker {name} {how} before it was ready{_last_words(launcher, name)}")
        for name, worker in list(pending.items()):
            why[name] = unwell(
                worker.url, token=settings.token, tls_cert=settings.tls_cert, tls_key=settings.client_key
            )
            if not why[name]:
                del pending[name]
                waiting.ready(name, f"ready at {worker.url} after {time.monotonic() - begin:.1f} s")
        if pending and time.monotonic() - begin > settings.start_timeout:
            told = "; ".join(f"{name} ({why[name]})" for name in pending)
            raise LauncherError(
                f"not ready within {settings.start_timeout:g} s (CHIMERA_START_TIMEOUT): {told}"
                + "".join(_last_words(launcher, name) for name in pending)
            )
        if pending:
            time.sleep(POLL_S)


def _last_words(launcher: Launcher, name: str) -> str:
    log = launcher.log(name, LOG_LINES).strip()
    return f"\n--- the end of the log of {name}\n{log}" if log else f"; the log of {name} is empty"


def _check_data(workers: Sequence[Worker]) -> None:
    """Refuse data that no worker could be fitted on, before anything is started."""
    for worker in workers:
        try:
            read_training_data(worker.data)
        except DataError as error:
            raise ConfigurationError(f"the worker {worker.name} has data that cannot be used: {error}") from None


def _check_ports(settings: Settings, workers: Sequence[Worker], port: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
        raise ConfigurationError(f"port: {port!r} cannot be used; allowed: a port from 1 to 65535")
    for worker in workers:
        if worker.port == port:
            raise ConfigurationError(f"port {port} is that of the worker {worker.name}; the master needs another")
        check_free("127.0.0.1", worker.port, f"the worker {worker.name}")
    check_free(settings.workers_host, port, "the master")


def check_free(host: str, port: int, who: str) -> None:
    """Refuse an address that cannot be listened on.

    Raises
    ------
    ConfigurationError : names the address, and who wanted it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what lingers does not count
            probe.bind(address)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "something listens there already" if taken else error.strerror or str(error)
        raise ConfigurationError(f"{who} cannot listen on {host} port {port}: {why}; choose another port") from None


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM end what is inside as Ctrl-C does. Signals reach the main thread alone: in another, this does nothing."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        raise _Ended

    with _handlers({signal.SIGTERM: end}):
        yield


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Let nothing interrupt what is inside, which takes a few seconds at most."""
    with _handlers({signal.SIGTERM: signal.SIG_IGN, signal.SIGINT: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_plainly(error: ChimeraError) -> None:
    """Let this error, where a program does not catch it, end it with its message and no traceback."""
    before: Callable[..., Any] = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        if value is error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - where tracebacks go
        else:
            before(kind, value, traceback)

    sys.excepthook = hook
