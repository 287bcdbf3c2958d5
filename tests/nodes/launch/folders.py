"""Folders with plain workers and a master, and free ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

# A worker with the standard library only: it starts in 0.1 s, and answers every GET with its environment.
PLAIN_WORKER = """
import http.server, json, os, sys

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        environment = {name: value for name, value in os.environ.items() if name.startswith(("CHIMERA_", "OMP_"))}
        main = sys.modules["__main__"].__file__
        process = {"pid": os.getpid(), "uid": os.getuid(), "path": sys.path[0], "main": main}
        body = json.dumps({**process, "environment": environment})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

if __name__ == "__main__":
    print("plain worker", os.environ["CHIMERA_WORKER_NAME"], flush=True)
    address = os.environ["CHIMERA_WORKERS_HOST"], int(os.environ["CHIMERA_WORKERS_PORT"])
    http.server.ThreadingHTTPServer(address, Answer).serve_forever()
"""


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(condition, what: str, timeout_s: float = 30.0):
    """Wait until ``condition`` returns a true value, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def get(url: str) -> bytes:
    """Return the answer to a GET."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


class Folder:
    """A folder with plain workers and the program ``master.py``."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names
        *self.ports, self.port = free_ports(len(names) + 1)
        for name in names:
            self.write(f"chimera_workers/{name}.py", PLAIN_WORKER)
            self.write(f"chimera_train_data/{name}/X_train.csv", "x\n1\n2\n")
            self.write(f"chimera_train_data/{name}/y_train.csv", "y\n0\n1\n")
        self.write("master.py", MASTER)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("CHIMERA_")},
            "CHIMERA_WORKERS_NODES_NAMES": repr(names),
            "CHIMERA_WORKERS_CPU_SHARES": repr([2] * len(names)),
            "CHIMERA_WORKERS_MAPPED_PORTS": repr(self.ports),
            "CHIMERA_WORKERS_HOST": "127.0.0.1",
            "CHIMERA_LAUNCHER": "process",
            "MASTER_PORT": str(self.port),
        }
        self._started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def start(self, *command: object, **environment: str) -> "subprocess.Popen[str]":
        """Start Python with these arguments; default: the master's file."""
        process = subprocess.Popen(
            [sys.executable, *map(str, command or ("master.py",))],
            cwd=self.path,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def chimera(self, *arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run the program ``chimera`` to its end."""
        process = self.start("-m", "chimera", *arguments, **environment)
        out, _ = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out)

    def wait_until_served(self, process: "subprocess.Popen[str]", timeout_s: float = 60.0) -> None:
        """Wait until the master answers."""

        def answers() -> bool:
            assert process.poll() is None, process.stdout.read() if process.stdout else "it ended"
            try:
                return bool(get(f"http://localhost:{self.port}/health"))
            except OSError:
                return False

        wait_for(answers, "the master serves", timeout_s)

    def workers_pids(self) -> list[int]:
        """Return the process ids of the plain workers, from their answers."""
        import json

        return [json.loads(get(f"http://localhost:{port}/"))["pid"] for port in self.ports]

    def close(self) -> None:
        """Kill processes that a failed test left."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


# A minimal master for `chimera.run`.
MASTER = """
import os

import chimera
from fastapi import FastAPI
from chimera.nodes.settings import read_settings


class Master:
    def __init__(self):
        self.settings = read_settings()

    def app(self):
        app = FastAPI()
        app.get("/health")(lambda: {"status": "ok"})
        return app


if __name__ == "__main__":
    chimera.run(Master(), int(os.environ["MASTER_PORT"]))
"""
