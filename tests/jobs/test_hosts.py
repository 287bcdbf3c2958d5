"""Start of Ray on the machines of a file, or the commands to run by hand."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from chimera.core.errors import ConfigurationError
from chimera.jobs.hosts import Hosts, _is_this_machine

FILE = """
[server]
host = "{server}"

[[worker]]
host = "10.255.0.2"
user = "ada"

[[worker]]
host = "10.255.0.3"
ray = "/opt/venv/bin/ray"
"""


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **codes: int) -> Path:
    """Put programs on the search path that log their arguments and exit with a code; return the log."""
    for name, code in codes.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/notes"\necho "not today" >&2\nexit {code}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "notes"


def hosts(folder: Path, server: str = "localhost") -> Hosts:
    """Return machines with a port that no process listens on."""
    (folder / "workers.toml").write_text("port = 6\n" + FILE.format(server=server))
    return Hosts.load(folder / "workers.toml")


def test_ray_starts_locally_without_ssh_and_remotely_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = programs(tmp_path, monkeypatch, ray=0, ssh=0)
    assert hosts(tmp_path).start() == "localhost:6"
    head, first, second = notes.read_text().splitlines()
    assert head == "ray start --head --port=6 --node-ip-address=localhost"
    assert first.startswith("ssh ")
    assert first.endswith(" ada@10.255.0.2 ray start --address=localhost:6")
    assert second.endswith(" 10.255.0.3 /opt/venv/bin/ray start --address=localhost:6")


def test_if_ssh_fails_the_error_has_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, ray=0, ssh=255)
    with pytest.raises(ConfigurationError, match=r"on 10\.255\.0\.2 \(not today\)") as caught:
        hosts(tmp_path).start()
    assert "on 10.255.0.2: ray start --address=localhost:6; on 10.255.0.3: /opt/venv/bin/ray start" in str(caught.value)
    assert "on localhost: chimera cluster up --ray localhost:6" in str(caught.value)


def test_the_server_stores_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, ray=0, ssh=0)
    with pytest.raises(
        ConfigurationError, match=r"run there, on 10\.255\.0\.1: chimera cluster up --ray 10\.255\.0\.1:6"
    ):
        hosts(tmp_path, server="10.255.0.1").start()


def test_a_running_ray_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = programs(tmp_path, monkeypatch, ray=1, ssh=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (tmp_path / "workers.toml").write_text(f"port = {port}\n" + FILE.format(server="127.0.0.1"))
        assert Hosts.load(tmp_path / "workers.toml").start() == f"127.0.0.1:{port}"
    assert not notes.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\n", "missing required field `host`"),
        ('[server]\nhost = "a"\nport = 3\n', "unknown field `port`"),
        ('[server]\nhost = "a; rm -rf /"\n', "matching regex"),
        ('[server]\nhost = "-oProxyCommand=evil"\n', "matching regex"),
        ("[server\n", "Expected"),
    ],
)
def test_an_invalid_file_of_machines_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "workers.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Hosts.load(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Hosts.load(tmp_path / "none.toml")


OTHERS = [f"203.0.113.{number}" for number in range(1, 10)]  # of documentation, so no address of this machine


@pytest.mark.parametrize("own", [["127.0.0.1"], []])
def test_a_host_is_this_machine_if_one_of_its_addresses_is(own: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in [*OTHERS, *own]]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    assert _is_this_machine("server.example") is bool(own)
