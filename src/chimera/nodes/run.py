"""`chimera.run`: start the workers, wait until they are healthy, serve the master, stop the workers."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.core.stop_signals import exit_code_of_stop, handlers, terminable
from chimera.nodes.health import health_problem
from chimera.nodes.launchers.launcher import Launcher, LauncherError, Worker, choose_launcher, configured_workers
from chimera.nodes.one_line import print_in_one_line
from chimera.nodes.settings import Settings
from chimera.nodes.startup_display import StartupDisplay
from chimera.nodes.state import SERVES, State
from chimera.nodes.table import read_training_data

if TYPE_CHECKING:
    from fastapi import FastAPI

DEFAULT_PORT = 8081
POLL_S = 0.05
LOG_LINES = 15


class Master(Protocol):
    """A master, as `run` needs it."""

    @property
    def settings(self) -> Settings:
        """The master's settings."""

    def app(self) -> FastAPI:
        """Return the master's web application."""


def run(master: Master, port: int = DEFAULT_PORT, launcher: str | None = None) -> None:
    """Start the workers, wait until each passes its health check, and serve the master until it is stopped.

    The master listens on ``CHIMERA_WORKERS_HOST``; beyond loopback it needs a token or client certificates. Ctrl-C and SIGTERM
    stop it. When the call returns or raises, all workers that it started have ended.

    Parameters
    ----------
    master : an `AggregationMaster` or a `ParameterServerMaster`.
    port : port of the master.
    launcher : ``docker``, ``process`` or ``auto``; default: ``CHIMERA_LAUNCHER``.

    Raises
    ------
    ConfigurationError : a file or folder is missing, a port is in use, the server would be open to the network, or data are
        invalid. No worker was started.
    LauncherError : a worker did not start; the message ends with the last lines of its log.
    """
    try:
        _run(master, port, launcher)
    except ChimeraError as error:
        print_in_one_line(error)
        raise
    except KeyboardInterrupt as error:  # while the workers were starting
        raise SystemExit(exit_code_of_stop(error)) from None


def _run(master: Master, port: int, launcher: str | None) -> None:
    settings = master.settings
    workers = configured_workers(settings)
    _check_data(workers)
    from chimera.web.app import serve
    from chimera.web.security import check_exposure

    check_exposure(settings.workers_host, settings)
    served = False
    with StartupDisplay(worker.name for worker in workers) as display, State() as state, terminable([signal.SIGTERM]):
        chosen = choose_launcher(launcher or settings.launcher, settings, display.echo)
        chosen.clear(workers)
        _check_ports(settings, workers, port)
        url = f"{'https' if settings.tls_cert else 'http'}://localhost:{port}"
        content: dict[str, Any] = {"master": url, "launcher": chosen.name, "tls_cert": str(settings.tls_cert or "")}
        content["tls_key"] = str(settings.client_key or "")
        try:
            chosen.start(workers)
            content["workers"] = {
                worker.name: {"url": worker.url, "log": chosen.log_locations()[worker.name]} for worker in workers
            }
            state.write({**content, "serving": False})
            wait_until_healthy(workers, chosen, settings, display)
            display.end()

            def on_started() -> None:
                state.write({**content, "serving": True})
                display.echo(f"{SERVES} {url}; Ctrl-C stops it and its workers")

            with contextlib.suppress(KeyboardInterrupt):  # these stop the server normally
                served = True
                serve(
                    master.app(),
                    host=settings.workers_host,
                    port=port,
                    settings=settings,
                    on_started=on_started,
                )
        finally:
            with handlers(dict.fromkeys([signal.SIGTERM, signal.SIGINT], signal.SIG_IGN)):  # a few seconds at most
                display.end()
                if served:
                    display.echo("stopping the workers")
                chosen.stop()


def wait_until_healthy(
    workers: Sequence[Worker], launcher: Launcher, settings: Settings, display: StartupDisplay
) -> None:
    """Wait until every worker passes its health check.

    Raises
    ------
    LauncherError : a worker ended, or some were not healthy in time; the message has the last lines of their logs.
    """
    begin = time.monotonic()
    pending = {worker.name: worker for worker in workers}
    reason: dict[str, str] = {}
    while pending:
        for name, how in launcher.exited().items():
            if name in pending:
                raise LauncherError(f"the worker {name} {how} before it was ready{_log_tail(launcher, pending[name])}")
        for name, worker in list(pending.items()):
            reason[name] = health_problem(
                worker.url, token=settings.token, tls_cert=settings.tls_cert, tls_key=settings.client_key
            )
            if not reason[name]:
                del pending[name]
                display.ready(name, f"ready at {worker.url} after {time.monotonic() - begin:.1f} s")
        if pending and time.monotonic() - begin > settings.start_timeout:
            reasons = "; ".join(f"{name} ({reason[name]})" for name in pending)
            raise LauncherError(
                f"not ready within {settings.start_timeout:g} s (CHIMERA_START_TIMEOUT): {reasons}"
                + "".join(_log_tail(launcher, worker) for worker in pending.values())
            )
        if pending:
            time.sleep(POLL_S)


def _log_tail(launcher: Launcher, worker: Worker) -> str:
    if worker.port is None:
        return ""
    log = launcher.log(worker.name, LOG_LINES).strip()
    return f"\n--- the end of the log of {worker.name}\n{log}" if log else f"; the log of {worker.name} is empty"


def _check_data(workers: Sequence[Worker]) -> None:
    """Refuse invalid training data before any worker is started."""
    for worker in workers:
        if worker.port is None:  # it was started elsewhere, where its data are
            continue
        try:
            read_training_data(worker.data)
        except DataError as error:
            raise ConfigurationError(f"the data of the worker {worker.name} are invalid: {error}") from None


def _check_ports(settings: Settings, workers: Sequence[Worker], port: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
        raise ConfigurationError(f"port: {port!r} cannot be used; allowed: a port from 1 to 65535")
    for worker in workers:
        if worker.port is None:
            continue
        if worker.port == port:
            raise ConfigurationError(
                f"port {port} belongs to the worker {worker.name}; choose another port for the master"
            )
        check_can_listen("127.0.0.1", worker.port, f"the worker {worker.name}")
    check_can_listen(settings.workers_host, port, "the master")


def check_can_listen(host: str, port: int, node: str) -> None:
    """Check that a node can listen on an address.

    Raises
    ------
    ConfigurationError : it cannot; the message names the address and the node.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
            probe.bind(address)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        reason = "another process listens there" if in_use else error.strerror or str(error)
        raise ConfigurationError(f"{node} cannot listen on {host} port {port}: {reason}; choose another port") from None
