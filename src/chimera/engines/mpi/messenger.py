"""The messenger of a rank: a thread that receives the messages of other ranks, also while actors of this rank compute.

All calls of MPI are calls that return at once, and one thread at a time makes them (`lock`). So a library that offers
MPI_THREAD_SERIALIZED is enough. The thread sleeps while there is nothing to do, see `chimera.engines.mpi.wake_ups`.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from chimera.core.pickling import marshalled, unmarshalled
from chimera.engines.mpi import transfers
from chimera.engines.mpi.library import MPI
from chimera.engines.mpi.wake_ups import MESSENGER, Pause, WakeUps

_TAG = 0
_POLLS = 3  # a message may need several calls of MPI until a probe finds it
_NEAR_S = 0.1  # messages wake this rank; this bounds the delay of other work
_FAR_S = 2e-3  # other machines cannot wake this rank
_MOVING_S = 1e-3  # a large message needs calls of both sides

Deliver = Callable[[int, tuple[Any, ...], list[memoryview]], None]


class Messenger:
    """Sending to other ranks, by any thread, and receiving from them, by the thread of this object.

    Parameters
    ----------
    comm : communicator of all ranks, which create this object together.
    deliver : receives the sender, the plain part, and the arrays of each message; in the thread of the messenger, or in the
        sending thread of a message of this rank to itself.
    when_idle : called when there is nothing to receive.

    Attributes
    ----------
    lock : held around each call of MPI.
    """

    def __init__(self, comm: Any, deliver: Deliver, when_idle: Callable[[], None]) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.wake_ups = WakeUps(comm)
        self.lock = threading.Lock()
        self._channel = transfers.Channel(comm.Dup(), comm.Dup())
        self.group_messages = transfers.Channel(comm.Dup(), comm.Dup())
        self.collectives = comm.Dup()
        self._incoming = [transfers.Incoming(self._channel, source, _TAG) for source in range(self.size)]
        self._busy: list[transfers.Incoming] = []
        self._status = MPI.Status()
        self._outgoing: list[Any] = []
        self._deliver, self._when_idle = deliver, when_idle
        self._ending = self._ended = False
        self._thread = threading.Thread(target=self._run, name="chimera-mpi-messenger", daemon=True)
        self._thread.start()

    def send(self, rank: int, message: tuple[Any, ...], buffers: Sequence[memoryview] = ()) -> None:
        """Send a plain tuple, and the bytes of arrays, which must not change any more."""
        if rank == self.rank:
            self._deliver(rank, message, list(buffers))
            return
        with self.lock:
            requests = transfers.send(self._channel, rank, _TAG, marshalled(message), buffers)
            done = MPI.Request.Testall(requests)
        self.wake_ups.wake(rank, MESSENGER)
        if not done:
            self.complete(requests)

    def complete(self, requests: list[Any]) -> None:
        """Complete requests to send while the caller continues."""
        with self.lock:
            self._outgoing += requests
        self.wake_ups.wake(self.rank, MESSENGER)

    def end(self) -> None:
        """Receive all messages on their way, and stop. All ranks do this together, after their last message of interest."""
        self._ending = True
        self.wake_ups.wake(self.rank, MESSENGER)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            pause = Pause()
            while not self._ending:
                seen = self.wake_ups.seen(MESSENGER)
                if any(self._step() for _ in range(_POLLS)):
                    pause.reset()
                    continue
                self._when_idle()
                moving = self._outgoing or self._busy
                sleep_s = _MOVING_S if moving else _NEAR_S if self.wake_ups.all_near else _FAR_S
                if self.wake_ups.sleep(MESSENGER, seen, pause.next_s(sleep_s)):
                    pause.reset()
            self._drain()
        except BaseException:  # without this thread the job would hang
            traceback.print_exc()
            MPI.COMM_WORLD.Abort(1)

    def _step(self) -> bool:
        """Receive what has arrived; return whether there was anything."""
        received = self._receive()
        # A probe finds messages of several senders in any order; a message may depend on an earlier one of another sender.
        received.sort(key=lambda each: each[1].sent_ns)
        for source, message in received:
            self._deliver(source, unmarshalled(message.text), message.buffers)
        return bool(received)

    def _receive(self) -> list[tuple[int, transfers.Message]]:
        received = []
        with self.lock:
            while (message := self._channel.heads.Improbe(MPI.ANY_SOURCE, _TAG, self._status)) is not None:
                incoming = self._incoming[self._status.Get_source()]
                incoming.match(message, self._status.Get_count(MPI.BYTE))
                if incoming not in self._busy:
                    self._busy.append(incoming)
            for incoming in list(self._busy):
                while (message := incoming.poll(probe=False)) is not None:
                    received.append((incoming.source, message))
                if not incoming.busy:
                    self._busy.remove(incoming)
            if self._outgoing:
                self._outgoing = [request for request in self._outgoing if not request.Test()]
        return received

    def _drain(self) -> None:
        """Complete all messages. Once all ranks have done so, none is in flight. Then drop messages that no reader awaits."""
        pause, barrier = Pause(), None
        while True:
            self._receive()
            with self.lock:
                self._drop_group_messages()
                if not self._outgoing and barrier is None:
                    barrier = self.collectives.Ibarrier()
                if barrier is not None and barrier.Test():
                    return
            self.wake_ups.sleep(MESSENGER, self.wake_ups.seen(MESSENGER), pause.next_s(_MOVING_S))

    def _drop_group_messages(self) -> None:
        for comm in (*self.group_messages, self.collectives):
            while (message := comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)) is not None:
                message.Recv([bytearray(self._status.Get_count(MPI.BYTE)), MPI.BYTE])
