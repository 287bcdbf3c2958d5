"""Ray's session in this process: start or join one, and end only what this process started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.user_code import CHIMERA, stage

HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""Settings of Ray with which a killed node is reported as dead within about 2 s: see docs/reference/engines/ray.md."""

_NORMAL_PRIORITY = {
    "worker_niceness": 0
}  # Ray's default is 15: on a busy machine, Ray's workers would get little processor time beside the driver

_ENVIRONMENT = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # a ref that no process reads may fail
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # an actor that requested no GPU sees none
}
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # binds Ray to loopback, so that only this machine can reach it
_PRINTS, _OPEN = "_worker_logs_enabled", "ENABLE_RAY_CLUSTER"
_CONNECT_TIMEOUT_S = 5.0
_MAX_STORE_BYTES = 2 << 30
_MAX_FOLDER_CHARACTERS = 40  # Ray's sockets have paths about 65 characters longer, and a socket's path has at most 107


class Session:
    """The session that the engines of this process share. The last engine ends it, if Chimera started it."""

    _current: ClassVar[Session | None] = None

    def __init__(self, ours: contextlib.ExitStack | None) -> None:
        self._ours, self._users = ours, 0

    @classmethod
    def enter(
        cls,
        *,
        address: str | None,
        cpus: int | None = None,
        object_store_bytes: int | None = None,
        working_dir: str | None = None,
        show_output: bool = False,
    ) -> Session:
        """Return the session of this process. If there is none, start Ray here, or join the cluster at ``address``.

        Raises
        ------
        ConfigurationError : there is no Ray cluster at ``address``.
        """
        import ray

        session = cls._current
        if session is None or not ray.is_initialized():
            if ray.is_initialized():  # the user's session: used and not ended
                session = cls(None)
            else:
                with contextlib.ExitStack() as stack:  # everything started so far ends if the rest fails
                    if address is None:
                        _start(stack, cpus, object_store_bytes, show_output)
                    else:
                        _join(stack, address, working_dir, show_output)
                    session = cls(stack.pop_all())
            cls._current = session
        session._users += 1
        return session

    def leave(self) -> None:
        """Leave the session; the last engine ends a session that Chimera started."""
        self._users -= 1
        if self._users > 0:
            return
        if Session._current is self:
            Session._current = None
        if self._ours is not None:
            self._ours.close()


def _start(stack: contextlib.ExitStack, cpus: int | None, object_store_bytes: int | None, show_output: bool) -> None:
    import ray

    folder = stack.enter_context(_short_folder())
    stack.enter_context(_environment({**_ENVIRONMENT, **_LOOPBACK}))
    stack.enter_context(_switches(show_output, only_this_machine=True))
    stack.callback(ray.shutdown)
    with _sigterm_handler_kept(), _start_errors():
        ray.init(
            num_cpus=cpus or max(os.cpu_count() or 1, 64),
            object_store_memory=object_store_bytes or _default_store_bytes(),
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=show_output,
            _temp_dir=folder,
            _system_config={**HEALTH_CHECKS, **_NORMAL_PRIORITY, "prestart_worker_first_driver": False},
        )


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    """Raise RunError, with the reason in one line, in place of the plain exceptions with which Ray fails to start."""
    try:
        yield
    except Exception as error:
        reason = next(filter(None, str(error).splitlines()), type(error).__name__)
        raise RunError(
            f"Ray could not be started: {reason}; if other programs keep the machine busy, start the run again when they have "
            "ended"
        ) from error


def _join(stack: contextlib.ExitStack, address: str, working_dir: str | None, show_output: bool) -> None:
    import ray

    check_reachable(address)
    stack.enter_context(_environment(_ENVIRONMENT))
    stack.enter_context(_switches(show_output, only_this_machine=False))
    stack.callback(ray.shutdown)
    with contextlib.ExitStack() as shipping:
        if working_dir is None:
            working_dir = shipping.enter_context(tempfile.TemporaryDirectory(prefix="chimera-code-"))
            stage(Path(working_dir))
        try:
            with _sigterm_handler_kept():
                ray.init(
                    address=address,
                    logging_level="ERROR",
                    log_to_driver=show_output,
                    runtime_env={"working_dir": working_dir, "py_modules": [str(CHIMERA)]},
                )
        except (ConnectionError, ValueError) as error:
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "AuthToken" in str(
                error.__cause__
            ):  # recent versions of Ray protect what `ray start` starts, if there is a token
                message = "it asks for Ray's token: set RAY_AUTH_MODE=token"
            raise ConfigurationError(f"no Ray could be joined at address {address!r}: {message}") from error


def check_reachable(address: str) -> None:
    """Try to connect to the address. Ray itself would try for minutes, also if the cluster has ended.

    Raises
    ------
    ConfigurationError : no process listens there, or ``address`` is not an address.
    """
    found = _address_from_ray() if address == "auto" else address
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigurationError(f"the address of a Ray is 'auto' or 'host:port', not {found!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        where = "" if found == address else f", which is {found}"
        raise ConfigurationError(f"no Ray could be joined at address {address!r}{where}: {error}") from error


def _address_from_ray() -> str:
    """Return the address that Ray uses for ``"auto"``."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise ConfigurationError(
            "no Ray could be joined at address 'auto': none runs on this machine, and RAY_ADDRESS names none"
        )
    return str(found)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for Ray's processes."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _switches(show_output: bool, only_this_machine: bool) -> Iterator[None]:
    """Set two settings that are not options of Ray: printing of the raylet's messages, and binding to loopback only."""
    from ray._private import ray_constants, worker

    before = [
        (module, name, getattr(module, name, None)) for module, name in ((worker, _PRINTS), (ray_constants, _OPEN))
    ]
    setattr(worker, _PRINTS, show_output)
    setattr(ray_constants, _OPEN, not only_this_machine)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextlib.contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Restore the program's handler of SIGTERM, if it has one, at the end of the block: `ray.init` replaces it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        main = threading.current_thread() is threading.main_thread()
        if main and before not in (signal.SIG_DFL, None):
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _short_folder() -> Iterator[str]:
    usual = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="chimera-", dir=usual if len(usual) <= _MAX_FOLDER_CHARACTERS else "/tmp")  # noqa: S108 - mkdtemp makes a folder of its own in it, for this user alone
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _default_store_bytes() -> int:
    """Return the size limit of the object store: two gigabytes, or half of the free shared memory."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - only asked for its free space
    except OSError:
        return _MAX_STORE_BYTES
    return max(min(_MAX_STORE_BYTES, status.f_bavail * status.f_frsize // 2), 80 << 20)
