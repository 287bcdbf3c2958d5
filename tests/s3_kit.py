"""A server of S3 for tests: moto's, in a process of its own.

Usage: ``python s3_kit.py`` prints the port; the lines ``away`` and ``back`` on stdin close and open it. Objects are in memory.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

KEY, SECRET, BUCKET = "AKIAKEYOFTHETESTS000", "the-secret-of-the-tests", "bucket"


@dataclass
class S3:
    """A running server, and the environment of its clients."""

    process: subprocess.Popen[str]
    port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_MAX_ATTEMPTS": "2",
            "FSSPEC_S3": '{"config_kwargs": {"read_timeout": 110}}',  # the server joins the parts of a file slowly
        }

    def files(self) -> Any:
        """Return a file system of the server without caches."""
        import s3fs

        where = {"endpoint_url": f"http://127.0.0.1:{self.port}", "region_name": "eu-west-1"}
        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, client_kwargs=where, use_listings_cache=False, skip_instance_cache=True
        )

    def say(self, word: str) -> None:
        """Close the server's port (``away``), or open it again (``back``)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{word}\n"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Start a server with an empty bucket."""
    if not all(map(find_spec, ("s3fs", "moto", "flask", "flask_cors"))):
        pytest.skip("a server of S3 needs packages: pip install 's3fs' 'moto[s3]' flask flask-cors")
    command = [sys.executable, __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        server = S3(process, int(process.stdout.readline()))
        server.files().mkdir(BUCKET)
        yield server
    finally:
        process.kill()
        process.communicate()


def answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    answer(str(port))
    for line in sys.stdin:
        if line == "away\n":
            server.stop()
        else:
            server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
            server.start()
        answer(line.strip())


if __name__ == "__main__":
    main()
