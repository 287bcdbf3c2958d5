"""The machines of a cluster, as ``workers.toml`` lists them, and Ray on them: started over ssh, or by hand."""

from __future__ import annotations

import shlex
import socket
import subprocess
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.engines.ray.session import check_reachable

START_S = 120.0
"""How long a machine may take to start Ray."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


class Host(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine.

    Attributes
    ----------
    host : its name or address, as ssh and the other machines know it.
    user : who logs in there; by default whoever ssh takes.
    ray : where the command ``ray`` lies, if not on the search path there.
    """

    host: Annotated[str, Meta(min_length=1, pattern=r"^[A-Za-z0-9_.:][A-Za-z0-9_.:-]*$")]
    user: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.][A-Za-z0-9_.-]*)?$")] = ""
    ray: str = "ray"

    @property
    def login(self) -> str:
        """What ssh is given."""
        return f"{self.user}@{self.host}" if self.user else self.host


class Hosts(Struct, frozen=True, forbid_unknown_fields=True):
    """The machines of a cluster: the server, on which the jobs are kept, and the workers."""

    server: Host
    worker: list[Host] = []
    port: Annotated[int, Meta(ge=1, le=65535)] = 6379

    @classmethod
    def load(cls, path: Path) -> Hosts:
        """Read a file; raise ConfigurationError if it cannot be used."""
        try:
            return msgspec.convert(read_toml(path.read_text(encoding="utf-8")), cls)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the file of machines {str(path)!r} cannot be read: {error}") from error
        except (ValueError, msgspec.ValidationError) as error:
            said = 'it has [server] host = "..." and for each worker [[worker]] host = "..."'
            raise ConfigurationError(f"the file of machines {str(path)!r} cannot be used: {error}; {said}") from error

    @property
    def address(self) -> str:
        """The address of the cluster's Ray."""
        return f"{self.server.host}:{self.port}"

    def commands(self) -> list[tuple[Host, list[str]]]:
        """Return what is to be typed on each machine, the server first."""
        head = ["start", "--head", f"--port={self.port}", f"--node-ip-address={self.server.host}"]
        return [
            (self.server, [self.server.ray, *head]),
            *((host, [host.ray, "start", f"--address={self.address}"]) for host in self.worker),
        ]

    def _runs(self) -> bool:
        try:
            check_reachable(self.address)
        except ConfigurationError:
            return False
        return True

    def start(self) -> str:
        """Start Ray on all machines over ssh, on this one without, and return its address; one that runs there stays as it is.

        Raises
        ------
        ConfigurationError : a machine cannot be reached or did not start it, or this one is not the server; says what to type.
        """
        then = f"on {self.server.host}: chimera cluster up --ray {self.address}"
        commands = [] if self._runs() else self.commands()
        for at, (host, command) in enumerate(commands):
            local = _is_here(host.host)
            try:
                done = subprocess.run(  # noqa: S603 - no shell here; ssh gets words that shlex has quoted
                    command if local else [*_SSH, host.login, shlex.join(command)],
                    capture_output=True, text=True, check=False, timeout=START_S, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                why = "" if done.returncode == 0 else (done.stderr or done.stdout).strip().rpartition("\n")[2]
                failed = done.returncode != 0
            except (OSError, subprocess.TimeoutExpired) as error:
                why, failed = str(error), True
            if failed:
                left = "; ".join(f"on {other.host}: {shlex.join(words)}" for other, words in commands[at:])
                raise ConfigurationError(
                    f"Ray could not be started on {host.host} ({why or 'no reason given'}). "
                    f"Type it yourself, {left}; then, {then}"
                )
        if not _is_here(self.server.host):
            raise ConfigurationError(f"Ray runs on all machines, but jobs are kept on the server: type there, {then}")
        return self.address


def _is_here(host: str) -> bool:
    """Return whether a machine is this one."""
    if host in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        places = {info[4][0] for info in socket.getaddrinfo(host, None)}
        for place in places:  # whoever can bind an address has it
            family = socket.AF_INET6 if ":" in str(place) else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.bind((place, 0))
                return True
    except OSError:
        pass
    return False
