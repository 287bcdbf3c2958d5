"""The time that a codec adds to workers and to a server on this machine.

Workers and a server exchange vectors with the tensors of a run's model on the engine `local`, first without and then with the
codec. Each message is encoded right after its vector was written, described, copied and opened, and decoded by another process.
Between messages, each worker computes products of matrices as large as those of a layer with so many weights, for as long as
the workers of the runs computed, at most 10 ms. They replace the codec's data in the caches, and the scheduler moves processes
as in a run.
With shorter computations, a codec added half of the time that it added to real rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.calibration.codec_exchange import Coded, Sender
from chimera.calibration.measured_run import MeasuredRun, columns, until_received
from chimera.codecs.codec import CODECS
from chimera.core.errors import ConfigurationError, DataError
from chimera.core.parameters import Layout
from chimera.core.safe_path import safe_path
from chimera.engines.local.engine import Local
from chimera.engines.simulated.models.compute import CodecCost
from chimera.training.artifacts.rebuild import WEIGHTS
from chimera.training.artifacts.tensor_file import read_tensors
from chimera.training.comparison.variation import Choice, read_variations
from chimera.training.experiment.resolve import preload_of
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

ROUNDS, _REPEATS, _STARTS = 40, 7, 3
_MAX_ELEMENTS, _MAX_WORKERS = 1 << 21, 4
"""The longest measured vector, since times of longer vectors are on the same line; and the largest number of workers."""
_MAX_WORK_S = 0.01
"""The longest computation between messages: after it, the caches have none of the codec's data, and all processes wait."""

Shapes: TypeAlias = Sequence[Sequence[int]]
_PLAIN: Coded = "identity", {}


def work_of(runs: Sequence[MeasuredRun]) -> float:
    """Return the seconds that the workers of these runs computed between messages: the mean of the runs' medians."""
    calls = [[run.training_calls(worker).after_warm_up().work_s for worker in run.workers] for run in runs]
    medians = [float(np.median(np.concatenate(each))) for each in calls if each]
    return float(np.mean(medians)) if medians else 0.0


def shapes_of(run: MeasuredRun) -> Shapes:
    """Return the shapes of the tensors in the messages of a run.

    It is a square matrix if only their number of elements is known, and for messages of more than `_MAX_ELEMENTS` elements.
    """
    elements = run.elements_per_message()
    if 0 < elements <= _MAX_ELEMENTS:
        with contextlib.suppress(OSError, DataError, ConfigurationError):
            shapes = tuple(array.shape for array in read_tensors(safe_path(run.files.folder, WEIGHTS)).values())
            if sum(map(math.prod, shapes)) == elements:
                return shapes
    return _square(elements)


def _doubled(shape: Sequence[int]) -> list[int]:
    """Return the shape of a tensor with at most four times as many elements."""
    return [*(2 * length for length in shape[:2]), *shape[2:]]


def codec_costs(
    texts: Sequence[str], shapes: Shapes, workers: int = 2, rounds: int = ROUNDS, work_s: float = 0.0
) -> dict[str, CodecCost]:
    """Measure codecs, each a name with options such as ``top-k:ratio=0.01``; return their costs by name.

    Parameters
    ----------
    shapes : shapes of the tensors in a message.
    workers : processes that encode at the same time; at most 4 are started.
    rounds : messages of each worker in one measurement.
    work_s : seconds that a worker computes between two messages with such tensors; at most 0.01 count.

    Raises
    ------
    ConfigurationError : a codec or an option is unknown.
    """
    if not texts:
        return {}
    codecs, layouts = _codecs(texts), (_layout(shapes), _layout([_doubled(shape) for shape in shapes]))
    with _engine(codecs) as engine:
        exchanges = _Exchanges(engine, layouts, workers, rounds, work_s)
        # Codecs alternate, and each is compared with the identity measured beside it: the machine's speed changes.
        parts = [[[exchanges.measure(codec, place)[:3] for place in range(len(layouts))] for codec in codecs]
                 for _ in range(_REPEATS)]  # fmt: skip
    seconds = np.array(parts)  # shape (repeats, codecs, layouts, actions)
    added_s = np.maximum(np.median(seconds - seconds[:, :1], axis=0), 0.0)
    sizes = [layout.size for layout in layouts]
    return {name: _cost(sizes, added_s[number]) for number, (name, _) in enumerate(codecs) if number}


def codec_starts(texts: Sequence[str], shapes: Shapes, workers: int = 2, *, preloaded: bool = True) -> dict[str, float]:
    """Return the seconds that the first message of each codec takes longer in new processes, by name; see `codec_costs`.

    Parameters
    ----------
    preloaded : whether processes start with the code of the codecs, as on the engine `local`. Otherwise they import it at the
        first message.
    """
    if not texts:
        return {}
    codecs, found = _codecs(texts), defaultdict[str, list[float]](list)
    with _engine(codecs if preloaded else ()) as engine:
        for _, codec in itertools.product(range(_STARTS), codecs):
            exchanges = _Exchanges(engine, [_layout(shapes)], workers, rounds=1)
            found[codec[0]].append(exchanges.exchange(codec, 0)[2])
            for (
                actor
            ) in exchanges.actors:  # otherwise the processes of all measurements would be in memory until the last one
                engine.kill(actor)
    plain_s = np.median(found[_PLAIN[0]])
    return {name: max(float(np.median(found[name]) - plain_s), 0.0) for name, _ in codecs[1:]}


def _codecs(texts: Sequence[str]) -> list[Coded]:
    """Return the codecs, with `identity` as the first."""
    [variation] = read_variations([f"codec={','.join(texts)}"])
    codecs = [_PLAIN, *map(_of, variation.choices)]
    for codec in codecs:
        CODECS.create(*codec)
    return codecs


def _engine(codecs: Sequence[Coded]) -> Local:
    return Local(preload=preload_of(codecs=[{"name": name} for name, _ in codecs]))


def _square(elements: int) -> Shapes:
    """Return the shape of a square matrix with at least so many elements. Codecs of low rank need a matrix."""
    return ((math.isqrt(min(max(elements, 1), _MAX_ELEMENTS)) + 1,) * 2,)


def _layout(shapes: Iterable[Sequence[int]]) -> Layout:
    given = tuple(map(tuple, shapes))
    return Layout(tuple(f"tensor {place}" for place in range(len(given))), given)


def _of(choice: Choice) -> Coded:
    return str(choice.value), {key: value for key, value in (choice.options or {}).items() if key != "downlink"}


class _Exchanges:
    """Workers, and a server for each layout.

    Parameters
    ----------
    workers : number of workers; at most 4 are started.
    rounds : messages of each worker in one measurement.
    work_s : seconds between two messages of the first layout; at most 0.01 count.
    """

    def __init__(
        self, engine: Local, layouts: Sequence[Layout], workers: int, rounds: int, work_s: float = 0.0
    ) -> None:
        self._engine, self._layouts, self._rounds = engine, layouts, rounds
        count = min(max(workers, 1), _MAX_WORKERS)
        self._senders = [engine.spawn(Sender, rank, name=f"worker {rank}") for rank in range(count)]
        self._servers = [_server(engine, layout, f"server {place}") for place, layout in enumerate(layouts)]
        self._groups = [engine.group([server, *self._senders]) for server in self._servers]
        self._group = engine.group(self._senders)
        work_s = min(work_s, _MAX_WORK_S)
        self._products = min(self._all([sender.products(layouts[0].size, work_s) for sender in self._senders]))
        engine.trace()

    @property
    def actors(self) -> list[Any]:
        """All workers and servers."""
        return [*self._servers, *self._senders]

    def measure(self, codec: Coded, place: int) -> tuple[float, float, float]:
        """Return the median seconds of a worker's round, of the server's round for each message, and of a reduction.

        The last one is NaN if the codec has no form for all-reduce.
        """
        return (*self.exchange(codec, place)[:2], self._reduce(codec, place))

    def exchange(self, codec: Coded, place: int) -> tuple[float, float, float]:
        """Return the first two values of `measure`, and the seconds of all rounds."""
        arguments, count = (self._groups[place], self._layouts[place], codec, self._products), len(self._senders)
        calls = [sender.exchange(self._rounds, *arguments) for sender in self._senders]
        calls.append(self._servers[place].serve(self._rounds, arguments[0], range(1, count + 1), first=0, fresh=True))
        self._all(calls)
        found = columns(self._engine.trace())
        [updates] = (calls for (_, name), calls in found.items() if name == "update")
        sent = [until_received(calls, updates) for (_, name), calls in found.items() if name == "gradient"]
        worker_s, server_s = (
            float(np.mean([np.median(each.after_warm_up().work_s) for each in calls])) for calls in (sent, [updates])
        )
        return worker_s, server_s / count, float(updates.end_s.max() - min(calls.start_s.min() for calls in sent))

    def _reduce(self, codec: Coded, place: int) -> float:
        if CODECS.create(*codec).reduction() is None:
            return np.nan
        arguments = self._rounds, self._group, self._layouts[place], codec, self._products
        return float(np.mean(self._all([sender.reduce(*arguments) for sender in self._senders])))

    def _all(self, refs: Sequence[Any]) -> list[Any]:
        """Return the values of calls that wait for each other; raise the error of the first one that fails."""
        pending = list(refs)
        while pending:  # without this check, the others would wait forever for an actor that fails
            done, pending = self._engine.wait(pending)
            self._engine.get(done)
        values: list[Any] = self._engine.get(refs)
        return values


def _server(engine: Local, layout: Layout, name: str) -> Any:
    weights = np.zeros(layout.size, np.float32)
    return engine.spawn(ParameterShard, weights, layout, optimizer=OptimizerSettings(), name=name)


def _cost(sizes: Sequence[int], added_s: NDArray[np.float64]) -> CodecCost:
    """Return the costs whose lines go through the times that a codec adds at two numbers of elements, shape (2, actions)."""
    (fixed, each), (decode_fixed, decode_each) = (_line(sizes, seconds) for seconds in added_s.T[:2])
    reduce_fixed, reduce_each = (None, None) if np.isnan(added_s).any() else _line(sizes, added_s.T[2])
    return CodecCost(
        seconds_per_message=fixed,
        seconds_per_element=each,
        decode_per_message=decode_fixed,
        decode_per_element=decode_each,
        reduce_per_message=reduce_fixed,
        reduce_per_element=reduce_each,
    )


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the fixed seconds and the seconds per element of a line through two points, both at least 0."""
    each = max((seconds[1] - seconds[0]) / (sizes[1] - sizes[0]), 0.0)
    fixed = seconds[0] - each * sizes[0]
    return (float(fixed), float(each)) if fixed >= 0 else (0.0, float(seconds[0] / sizes[0]))
