"""Pieces of a submission: parts of its queries that are short to send, to read and to write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.engines.http import wire

MAX_QUERIES = 10_000_000
"""Maximum number of queries of a job."""
MAX_BYTES = 1 << 30
"""Maximum bytes of all queries of a job."""
MAX_CHUNK_QUERIES = 1000
"""Maximum number of queries in a chunk of the journal, and in a piece of a submission."""
MAX_CHUNK_BYTES = 1 << 20
"""Maximum size of both, unless a single query is larger. A write must be short compared to the lease."""
MAX_QUERY_BYTES = 64 << 20
"""Maximum size of a query."""
MAX_PIECE_BYTES = MAX_QUERY_BYTES + (8 << 20)
"""Maximum size of a request with a piece."""
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)


def check_key(key: str) -> None:
    """Raise ConfigurationError if the key of a submission is invalid."""
    if not _KEY.fullmatch(key) or key in (".", ".."):
        raise ConfigurationError(
            "the key of a submission has 1 to 100 letters, digits, '-', '_' and '.', and is not '.' or '..'"
        )


def pieces(queries: Iterable[Any]) -> Iterator[tuple[int, list[Any], int]]:
    """Yield queries in pieces: the index of the first query, the queries, and their approximate bytes. They are read lazily."""
    first, size, chunk = 0, 0, list[Any]()
    for query in queries:
        more = size_of(query)
        if chunk and (size + more > MAX_CHUNK_BYTES or len(chunk) == MAX_CHUNK_QUERIES):
            yield first, chunk, size
            first, size, chunk = first + len(chunk), 0, []
        chunk.append(query)
        size += more
    if chunk:
        yield first, chunk, size


def packed_chunks(queries: Sequence[Any]) -> Iterator[tuple[int, int, bytes]]:
    """Yield the queries in few packed chunks, each with the index of its first query and their number."""
    for first, piece, _ in pieces(queries):
        parts = [(first, piece)]
        while parts:
            at, part = parts.pop()
            body = wire.pack(part)
            if len(body) <= MAX_CHUNK_BYTES or len(part) == 1:
                yield at, len(part), body
            else:  # the estimated size was too small
                half = len(part) // 2
                parts += [(at + half, part[half:]), (at, part[:half])]


def size_of(query: Any) -> int:
    """Return the approximate size of a query in bytes; an image counts as its name."""
    if isinstance(query, np.ndarray):
        return query.nbytes
    if isinstance(query, str | bytes | bytearray):
        return len(query)
    if isinstance(query, list | tuple):
        return sum(map(size_of, query)) + 2
    if isinstance(query, dict):
        return sum(size_of(key) + size_of(part) for key, part in query.items()) + 2
    return 8
