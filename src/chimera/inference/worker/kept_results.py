"""The results of a worker that its coordinator has not acknowledged yet."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from chimera.inference.worker.protocol import BatchId, Finished, Piece

_RESEND_S = 1.0  # a result is sent again if it was not acknowledged for this long
_MAX_BYTES = 64 << 20  # of results in one answer; a single result may be larger
_MAX_PIECES = 10_000  # that wait for a coordinator; further ones are dropped, and their texts come with the results


@dataclass
class _Kept:
    finished: Finished
    sent_s: float | None = None


class KeptResults:
    """The results, oldest first, and the pieces of answers that are being generated. The owner's lock protects them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[BatchId, _Kept] = OrderedDict()
        self._pieces: list[Piece] = []

    def add_piece(self, piece: Piece) -> None:
        """Keep a piece until `take_pieces`, unless there are too many."""
        if len(self._pieces) < _MAX_PIECES:
            self._pieces.append(piece)

    def take_pieces(self) -> list[Piece]:
        """Return the pieces, and drop them."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def forget_pieces(self, jobs: Collection[str]) -> None:
        """Drop the pieces of these jobs."""
        self._pieces = [piece for piece in self._pieces if piece.job not in jobs]

    def batches(self) -> list[BatchId]:
        """Return the batches that have a result here."""
        return list(self._kept)

    def add(self, finished: Finished) -> None:
        """Keep a result."""
        self._kept[finished.batch_id] = _Kept(finished)

    def drop(self, done: Iterable[BatchId]) -> None:
        """Drop acknowledged results.

        A result that was not sent yet stays: the acknowledgement is that of an earlier failure of its batch.
        """
        for batch_id in done:
            if batch_id in self._kept and self._kept[batch_id].sent_s is not None:
                del self._kept[batch_id]

    def answered(self) -> set[BatchId]:
        """Return the batches whose results are here, without failures."""
        return {batch_id for batch_id, kept in self._kept.items() if not kept.finished.failure}

    def due(self) -> list[Finished]:
        """Return the results to send, at most about 64 MiB."""
        now_s = time.monotonic()
        found: list[Finished] = []
        size = 0
        for kept in self._kept.values():
            if kept.sent_s is not None and now_s < kept.sent_s + _RESEND_S:
                continue
            size += len(kept.finished.results)
            if found and size > _MAX_BYTES:
                break
            found.append(kept.finished)
        return found

    def sent(self, results: Iterable[Finished]) -> None:
        """Record that results are sent. They are due again if they are not acknowledged within a second."""
        now_s = time.monotonic()
        for one in results:
            self._kept[one.batch_id].sent_s = now_s

    def send_again(self) -> None:
        """Make all results due, for another coordinator."""
        for kept in self._kept.values():
            kept.sent_s = None
