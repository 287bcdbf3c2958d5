"""The hook and its state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from chimera.codecs.codec import CODECS, Codec, Table
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, Layout
from chimera.ddp.collectives import Collectives
from chimera.ddp.exchanges import Exchange, Gathered, Reduced

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed import ProcessGroup

_log = logging.getLogger(__name__)


class _Bucket(NamedTuple):
    """Gradients that DDP sends together.

    Attributes
    ----------
    parameters : addresses of the parameters, which show that DDP has rebuilt its buckets.
    """

    parameters: tuple[int, ...]
    layout: Layout
    exchange: Exchange


class State:
    """The state of a hook in one process: a codec for each bucket of gradients. One bucket is exchanged after the other.

    A thread does this during the backward pass; only the last bucket is exchanged by the thread of that pass.

    Parameters
    ----------
    codec : the codec: a name, or a table of ``name`` and options.
    process_group : the group of the ``DistributedDataParallel`` module; None: all processes.
    seed : seed of random codecs, the same in all processes.

    Attributes
    ----------
    steps : steps so far.
    bytes_plain : bytes that this process would have sent for these gradients without a codec.

    Raises
    ------
    ConfigurationError : the codec is unknown, or is not for gradients.
    """

    def __init__(self, codec: Table, process_group: ProcessGroup | None = None, seed: int = 0) -> None:
        self.codec: dict[str, Any] = {"name": codec} if isinstance(codec, str) else dict(codec)
        self._seed = seed
        if self._made(0).chained:
            raise ConfigurationError(
                f"codec {self.codec['name']!r} is for weights that a server sends, not for gradients"
            )
        self._group = process_group
        self._collectives: Collectives | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._latest: Future[None] | None = None  # the exchange that was submitted last
        self._buckets: dict[int, _Bucket] = {}
        self._loaded: dict[int, Mapping[str, Any]] = {}
        self._begun = False  # whether a step has ended in this process
        self.steps, self.bytes_plain, self._sent_before = 0, 0, 0

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent, as ring algorithms send them."""
        return self._sent_before + (self._collectives.bytes_sent if self._collectives is not None else 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this process, of tensors and plain values. Each process must save its own.

        DDP rebuilds its buckets after the first step of a process. That step sends gradients whole, and then the state of
        a bucket applies again.
        """
        import torch

        buckets = {
            index: {
                "shapes": [list(shape) for shape in bucket.layout.shapes],
                "state": {name: torch.tensor(value) for name, value in bucket.exchange.state().items()},
            }
            for index, bucket in self._buckets.items()
        }
        sent = {"bytes_sent": self.bytes_sent, "bytes_plain": self.bytes_plain}
        return {"codec": self.codec, "steps": self.steps, "buckets": {**self._loaded, **buckets}, **sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned in the process of the same rank.

        Raises
        ------
        ConfigurationError : it is the state of another codec.
        """
        if state.get("codec") != self.codec:
            raise ConfigurationError(
                f"this is the state of the codec {state.get('codec')}, and the hook has {self.codec}"
            )
        self._loaded, self._buckets = dict(state["buckets"]), {}
        self.steps, self.bytes_plain = state["steps"], state["bytes_plain"]
        self._sent_before = state["bytes_sent"] - (self._collectives.bytes_sent if self._collectives else 0)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings of the hook for another process, without the group and the thread."""
        return {"codec": self.codec, "seed": self._seed, "state": self.state_dict()}

    def __setstate__(self, kept: Mapping[str, Any]) -> None:
        State.__init__(self, kept["codec"], None, kept["seed"])
        self.load_state_dict(kept["state"])

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start to replace the gradients of a bucket by their means; return the future of its buffer."""
        import torch

        buffer = bucket.buffer()
        on_gpu = buffer.is_cuda
        future: Any = torch.futures.Future(devices=[buffer.device] if on_gpu else [])
        if self._collectives is None:
            self._collectives = Collectives(self._group)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="chimera-ddp")
        ready = torch.cuda.current_stream(buffer.device).record_event() if on_gpu else None
        exchange, layout = self._exchange_of(bucket)
        if bucket.is_last():
            self.steps += 1
            self._begun = True

        def work() -> None:
            try:
                if ready is not None:
                    ready.synchronize()
                self._mean(buffer, layout, exchange)
                future.set_result(buffer)
            except Exception as error:  # raised by the backward pass
                future.set_exception(error)

        assert self._thread is not None
        if not bucket.is_last():
            self._latest = self._thread.submit(work)
        else:  # the backward pass has ended, so another thread would only take time
            if self._latest is not None:
                self._latest.result()
            work()
        return future  # type: ignore[no-any-return]

    def _mean(self, buffer: torch.Tensor, layout: Layout, exchange: Exchange | None) -> None:
        """Replace a buffer by its mean; ``exchange`` None means without a codec."""
        import torch

        collectives = self._collectives
        assert collectives is not None
        host = buffer.detach().to("cpu", torch.float32)  # the buffer itself, if it is on the host
        vector: Flat = host.numpy()
        if exchange is None:
            collectives.mean(vector)
        else:
            exchange.mean(vector, layout, collectives)
        self.bytes_plain += 2 * buffer.nbytes * (collectives.size - 1) // collectives.size
        if host.data_ptr() != buffer.data_ptr():
            buffer.copy_(host)
            if buffer.is_cuda:
                torch.cuda.current_stream(buffer.device).synchronize()

    def _exchange_of(self, bucket: GradBucket) -> tuple[Exchange | None, Layout]:
        """Return how to exchange a bucket; None: whole, as DDP may rebuild its buckets before the next step."""
        index, parameters = bucket.index(), bucket.parameters()
        places = tuple(each.data_ptr() for each in parameters)
        known = self._buckets.get(index)
        if known is not None and known.parameters == places:
            return known.exchange, known.layout
        shapes = tuple(tuple(each.shape) for each in parameters)
        layout = Layout(tuple(map(str, range(len(shapes)))), shapes)
        kept = self._loaded.get(index)
        fits = kept is not None and [list(shape) for shape in shapes] == kept["shapes"]
        if not fits and not self._begun:
            return None, layout
        if known is not None or (kept is not None and not fits):
            _log.warning("bucket %d has other parameters than before: the state of its codec is dropped", index)
        exchange = self._new(index)
        if kept is not None and fits:
            exchange.restore({name: value.numpy() for name, value in kept["state"].items()})
        self._loaded.pop(index, None)
        self._buckets[index] = _Bucket(places, layout, exchange)
        return exchange, layout

    def _new(self, index: int) -> Exchange:
        """Return a new exchange for a bucket. A form for groups needs equal seeds, messages need different ones."""
        assert self._collectives is not None
        reduction = self._made(index << 20).reduction()
        return (
            Gathered(self._made((index << 20) + self._collectives.rank + 1))
            if reduction is None
            else Reduced(reduction)
        )

    def _made(self, number: int) -> Codec:
        codec = CODECS.of(self.codec)
        codec.reseed(self._seed + number)
        return codec


Hook = Callable[[State, "GradBucket"], "torch.futures.Future[torch.Tensor]"]


def hook(
    codec: Table, /, *, process_group: ProcessGroup | None = None, seed: int = 0, **options: Any
) -> tuple[State, Hook]:
    """Return the two arguments of ``DistributedDataParallel.register_comm_hook`` for a codec.

    Codecs with a form for groups (``identity``, ``powersgd``) reduce. For all others, each process decodes the messages of all.
    A codec that is not exact needs ``error_feedback=True`` to reach the loss of plain DDP, see docs/how-to/ddp.md.

    Parameters
    ----------
    codec : name of a codec, or a table of ``name`` and options.
    process_group : the group of the module; None: all processes.
    seed : seed of random codecs, the same in all processes.
    options : options of the codec, such as ``ratio`` and ``error_feedback``.

    Raises
    ------
    ConfigurationError : the codec or an option is unknown, or the codec is not for gradients.
    """
    table = {"name": codec} if isinstance(codec, str) else dict(codec)
    return State({**table, **options}, process_group, seed), compress


def compress(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are texts
    """Exchange a bucket; the hook that `hook` returns.

    Parameters
    ----------
    state : a `State`.
    bucket : a ``torch.distributed.GradBucket``.
    """
    return state.exchange(bucket)
