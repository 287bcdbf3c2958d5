"""The messages between a machine with remote workers and the coordinator.

The machine opens all connections. It sends a `Report` of a worker. The answer, `Next`, has the coordinator's next request to
that worker: one of those that local workers get (`chimera.inference.worker.routes`). The next report has the worker's answer.
Requests and answers are sent in pieces, so that a slow connection shows progress.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from chimera.core.errors import ConfigurationError

PATH = "/v1/dial"
"""The prefix of the route for remote workers."""
HOLD_S = 0.5
"""Maximum seconds for which the coordinator holds a report without a request for the worker."""
PIECE_BYTES = 64 << 10
"""Maximum size of a piece. A piece must arrive within two seconds."""
MAX_REPORT_BYTES = 1 << 20
"""Maximum size of a report."""
MAX_MESSAGE_BYTES = 256 << 20
"""Maximum size of a whole request or answer."""
FILE_PIECE_BYTES = 1 << 19
"""Maximum size of a piece of a model's file."""
MAX_FILES = 1000
"""Maximum number of files of a model."""
FILE_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\.(json|txt|jinja|safetensors)\Z"
"""Names of files that are sent: weights and texts, which run no code."""
GONE, LATE = 1, 2
"""Statuses of an answer that the machine itself sends: the worker's process is dead, or has not answered in time."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}")
_WORKER = re.compile(_NAME.pattern + r"\.w[0-9]{1,3}")

Text: TypeAlias = Annotated[str, Meta(max_length=200, pattern=r"\A[ -~]*\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]


class Piece(Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a request or an answer.

    Attributes
    ----------
    number : number of the request.
    what : name of the request (`chimera.inference.worker.routes`); the media type of an answer.
    status : HTTP status of an answer, or `GONE` or `LATE`; 0 for a request.
    at : position of the piece, in bytes.
    size : size of the whole request or answer, in bytes.
    """

    number: Count
    what: Text
    status: Annotated[int, Meta(ge=0, le=599)]
    at: Count
    size: Annotated[int, Meta(ge=0, le=MAX_MESSAGE_BYTES)]
    data: Annotated[bytes, Meta(max_length=PIECE_BYTES)]


class PieceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The next piece of a request that the machine needs."""

    number: Count
    at: Count


class Report(Struct, frozen=True, forbid_unknown_fields=True):
    """The report of a machine about one of its workers.

    Attributes
    ----------
    machine : random text that identifies the program on the machine.
    address : address of the worker on its machine; a worker that restarts has a new one.
    host, pid, state, epoch : see `chimera.inference.membership.Member`.
    handled : numbers of the requests that the machine has not answered yet; these are in progress, even if the network
        is slow.
    answer : a piece of the worker's answer to a request.
    wanted : the piece of a request to send.
    leaves : whether the worker has left the cluster.
    hold_s : seconds for which the coordinator may hold the report.
    warning : what is unusual about the machine, such as a disk that is nearly full; empty: nothing.
    versions : versions of Chimera and of libraries on the machine (`chimera.inference.remote_workers.versions`).
    """

    machine: Annotated[str, Meta(min_length=16, max_length=64)]
    address: Text
    host: Text
    pid: Count
    state: Text = ""
    epoch: Count = 0
    handled: Annotated[list[Count], Meta(max_length=16)] = []
    answer: Piece | None = None
    wanted: PieceRequest | None = None
    leaves: bool = False
    hold_s: Annotated[float, Meta(ge=0, le=HOLD_S)] = HOLD_S
    warning: Text = ""
    versions: Annotated[dict[Text, Text], Meta(max_length=20)] = {}


class FilesRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request of a machine for a folder of a model that one of its workers has to load.

    Attributes
    ----------
    machine : see `Report`.
    path : the folder on the coordinator's machine.
    name : name of a file in it; empty: the list of its files.
    at : position in that file, in bytes.
    """

    machine: Annotated[str, Meta(min_length=16, max_length=64)]
    path: Annotated[str, Meta(max_length=4096)]
    name: Text = ""
    at: Count = 0


class SharedFile(Struct, frozen=True):
    """A file of a model: its name, its size in bytes, and the SHA-256 of its content."""

    name: Annotated[str, Meta(pattern=FILE_NAME)]
    size: Annotated[int, Meta(ge=0, le=1 << 40)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class FilesAnswer(Struct, frozen=True):
    """The answer to a `FilesRequest`: the list of files, None until their hashes are computed; or the bytes of a file."""

    files: Annotated[list[SharedFile], Meta(max_length=MAX_FILES)] | None = None
    data: Annotated[bytes, Meta(max_length=FILE_PIECE_BYTES)] = b""


class Next(Struct, frozen=True):
    """The coordinator's answer to a report.

    Attributes
    ----------
    request : a piece of a request to the worker; None if there is none now.
    kill : whether the machine must kill the worker, because it hangs.
    warning : a line for the console of the machine; empty: none.
    """

    request: Piece | None = None
    kill: bool = False
    warning: str = ""


def worker_token(token: str) -> str:
    """Return the token of remote workers, which opens no other route. It does not reveal the cluster's token."""
    return hmac.new(token.encode(), b"chimera: remote workers", hashlib.sha256).hexdigest()


def check_name(name: str) -> None:
    """Raise ConfigurationError if workers of a machine cannot be called ``NAME.w0``."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name of a machine has letters, digits, '-' and '_', at most 41, not {name[:80]!r}"
        )


def check_worker(name: str) -> None:
    """Raise ConfigurationError if no remote worker can have a name. Names of local workers have no dot."""
    if not _WORKER.fullmatch(name):
        raise ConfigurationError(f"the name of a remote worker is NAME.w0, NAME.w1 and so on, not {name[:80]!r}")
