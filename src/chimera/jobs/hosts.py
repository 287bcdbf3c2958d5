"""Machines of a cluster, as listed in ``workers.toml``, and the start of Ray on them over ssh."""

from __future__ import annotations

import shlex
import socket
import subprocess
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from chimera.core.address import is_own_address
from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.engines.ray.session import check_reachable

START_S = 120.0
"""Time for a machine to start Ray, in seconds."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine.

    Attributes
    ----------
    host : name or address of the machine, for ssh and for the other machines.
    user : user for ssh; default: that of ssh.
    ray : path of the command ``ray`` on the machine; default: found on its search path.
    """

    host: Annotated[str, Meta(min_length=1, pattern=r"^[A-Za-z0-9_.:][A-Za-z0-9_.:-]*$")]
    user: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.][A-Za-z0-9_.-]*)?$")] = ""
    ray: str = "ray"

    @property
    def login(self) -> str:
        """Destination for ssh."""
        return f"{self.user}@{self.host}" if self.user else self.host


class Hosts(Struct, frozen=True, forbid_unknown_fields=True):
    """Machines of a cluster: the server, which stores the jobs, and the workers.

    Attributes
    ----------
    server, worker : the server and the workers.
    port : port of Ray on the server.
    """

    server: Host
    worker: list[Host] = []
    port: Annotated[int, Meta(ge=1, le=65535)] = 6379

    @classmethod
    def load(cls, path: Path) -> Hosts:
        """Read a file of machines; raise ConfigurationError if it is not valid."""
        try:
            return msgspec.convert(read_toml(path.read_text(encoding="utf-8")), cls)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the file of machines {str(path)!r} cannot be read: {error}") from error
        except (ValueError, msgspec.ValidationError) as error:
            expected = 'it must have [server] host = "..." and for each worker [[worker]] host = "..."'
            raise ConfigurationError(
                f"the file of machines {str(path)!r} cannot be used: {error}; {expected}"
            ) from error

    @property
    def address(self) -> str:
        """Address of Ray."""
        return f"{self.server.host}:{self.port}"

    def commands(self) -> list[tuple[Host, list[str]]]:
        """Return the command for each machine, the server first."""
        head = ["start", "--head", f"--port={self.port}", f"--node-ip-address={self.server.host}"]
        return [
            (self.server, [self.server.ray, *head]),
            *((host, [host.ray, "start", f"--address={self.address}"]) for host in self.worker),
        ]

    def _is_running(self) -> bool:
        try:
            check_reachable(self.address)
        except ConfigurationError:
            return False
        return True

    def start(self) -> str:
        """Start Ray on all machines, on remote ones over ssh, and return its address; a running Ray is used as it is.

        Raises
        ------
        ConfigurationError : a machine cannot be reached, Ray did not start, or this machine is not the server. The message has
            the commands to run by hand.
        """
        then = f"on {self.server.host}: chimera cluster up --ray {self.address}"
        commands = [] if self._is_running() else self.commands()
        for at, (host, command) in enumerate(commands):
            local = _is_this_machine(host.host)
            try:
                done = subprocess.run(  # noqa: S603 - no shell here; ssh gets words that shlex has quoted
                    command if local else [*_SSH, host.login, shlex.join(command)],
                    capture_output=True, text=True, check=False, timeout=START_S, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                reason = "" if done.returncode == 0 else (done.stderr or done.stdout).strip().rpartition("\n")[2]
                failed = done.returncode != 0
            except (OSError, subprocess.TimeoutExpired) as error:
                reason, failed = str(error), True
            if failed:
                left = "; ".join(f"on {other.host}: {shlex.join(words)}" for other, words in commands[at:])
                raise ConfigurationError(
                    f"Ray could not be started on {host.host} ({reason or 'no reason given'}). "
                    f"Start it by hand, {left}; then, {then}"
                )
        if not _is_this_machine(self.server.host):
            raise ConfigurationError(f"Ray runs on all machines, but the server stores the jobs: run there, {then}")
        return self.address


def _is_this_machine(host: str) -> bool:
    """Return whether a host is this machine."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(is_own_address(address) for address in addresses)
