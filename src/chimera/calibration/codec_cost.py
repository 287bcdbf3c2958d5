"""The time that a codec adds to workers and to a server on this machine.

Workers and a server exchange vectors with the tensors of a run's model on the engine `local`, first without and then with the
codec. Each message is encoded right after its vector was written, described, copied and opened, and decoded by another process.
Between messages, each worker computes products of matrices as large as those of a layer with so many weights, which replace the
codec's data in the caches. A measurement of one vector after another in one process would lack this time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.calibration.measured_run import MeasuredRun, columns, until_received
from chimera.codecs.codec import CODECS
from chimera.core import call
from chimera.core.engine import Group
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
from chimera.training.worker.exchange import Exchange

ROUNDS, _REPEATS = 40, 3
_MAX_ELEMENTS, _MAX_WORKERS = 1 << 21, 4
"""The longest measured vector, since times of longer vectors are on the same line; and the largest number of workers."""
_VECTORS, _SAMPLES = 2, 64

Coded: TypeAlias = tuple[str, Mapping[str, Any]]
Shapes: TypeAlias = Sequence[Sequence[int]]
_PLAIN: Coded = "identity", {}


class Sender:
    """A worker that sends vectors of noise in place of gradients."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def exchange(self, rounds: int, group: Group, layout: Layout, codec: Coded) -> None:
        """Receive weights, compute, write a vector, and send it encoded, ``rounds`` times."""
        size, side = layout.size, math.isqrt(layout.size)
        exchange = Exchange(layout, codec, seed=self._rank)
        rng = np.random.default_rng(self._rank)
        noise = rng.normal(size=(_VECTORS, size)).astype(np.float32)
        weights, vector = np.empty(size, np.float32), call.empty(size)
        inputs, product = rng.random((_SAMPLES, side), np.float32), np.empty((side, side), np.float32)
        for number in range(rounds):
            began_s = call.now()
            exchange.load(list(group.receive([0]).values()), weights)
            np.matmul(inputs.T, inputs @ weights[: side**2].reshape(side, side), out=product)
            np.copyto(vector, noise[number % _VECTORS])
            group.send({0: exchange.packed(vector)[0]})
            call.record("gradient", began_s)


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


def codec_costs(texts: Sequence[str], shapes: Shapes, workers: int = 2, rounds: int = ROUNDS) -> dict[str, CodecCost]:
    """Measure codecs, each a name with options such as ``top-k:ratio=0.01``; return their costs by name.

    Parameters
    ----------
    shapes : shapes of the tensors in a message.
    workers : processes that encode at the same time; at most 4 are started.
    rounds : messages of each worker in one measurement.

    Raises
    ------
    ConfigurationError : a codec or an option is unknown.
    """
    if not texts:
        return {}
    codecs, layouts = _codecs(texts), (_layout(shapes), _layout([_doubled(shape) for shape in shapes]))
    with _engine(codecs) as engine:
        measure, _ = _exchanges(engine, layouts, min(max(workers, 1), _MAX_WORKERS), rounds)
        # Codecs alternate, so that other load of the machine affects all of them.
        parts = [{(codec[0], place): measure(codec, place) for codec in codecs for place in range(len(layouts))}
                 for _ in range(_REPEATS)]  # fmt: skip
    medians = {key: np.median([each[key] for each in parts], axis=0) for key in parts[0]}
    sizes = [layout.size for layout in layouts]
    return {
        name: _cost(sizes, [medians[name, place] - medians["identity", place] for place in range(len(layouts))])
        for name, _ in codecs[1:]
    }


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
        for _, codec in itertools.product(range(_REPEATS), codecs):
            exchange, actors = _exchanges(engine, [_layout(shapes)], min(max(workers, 1), _MAX_WORKERS), rounds=1)
            found[codec[0]].append(exchange(codec, 0)[2])
            for actor in actors:  # otherwise the processes of all measurements would be in memory until the last one
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


def _exchanges(
    engine: Local, layouts: Sequence[Layout], workers: int, rounds: int
) -> tuple[Callable[[Coded, int], tuple[float, float, float]], list[Any]]:
    """Start a server for each layout, and workers. Return a function that measures a codec, and these actors.

    The function takes a codec and the place of a layout. It returns the median seconds of a worker's round, of the server's
    round for each message, and the seconds of all rounds.
    """
    senders = [engine.spawn(Sender, rank, name=f"worker {rank}") for rank in range(workers)]
    servers, groups = [], []
    for place, layout in enumerate(layouts):
        weights, name = np.zeros(layout.size, np.float32), f"server {place}"
        servers.append(engine.spawn(ParameterShard, weights, layout, optimizer=OptimizerSettings(), name=name))
        groups.append(engine.group([servers[-1], *senders]))

    def measure(codec: Coded, place: int) -> tuple[float, float, float]:
        pending = [sender.exchange(rounds, groups[place], layouts[place], codec) for sender in senders]
        pending.append(servers[place].serve(rounds, groups[place], range(1, workers + 1), first=0, fresh=True))
        while pending:  # without this check, the others would wait forever for a worker that fails
            done, pending = engine.wait(pending)
            engine.get(done)
        found = columns(engine.trace())
        [updates] = (calls for (_, name), calls in found.items() if name == "update")
        sent = [until_received(calls, updates) for (_, name), calls in found.items() if name == "gradient"]
        worker_s, server_s = (
            float(np.mean([np.median(each.after_warm_up().work_s) for each in calls])) for calls in (sent, [updates])
        )
        return worker_s, server_s / workers, float(updates.end_s.max() - min(calls.start_s.min() for calls in sent))

    return measure, [*servers, *senders]


def _cost(sizes: Sequence[int], seconds: Sequence[Any]) -> CodecCost:
    """Return the costs whose lines go through the times that a codec adds at two numbers of elements."""
    (fixed, each), (decode_fixed, decode_each) = (_line(sizes, [max(s[part], 0.0) for s in seconds]) for part in (0, 1))
    return CodecCost(
        seconds_per_message=fixed,
        seconds_per_element=each,
        decode_per_message=decode_fixed,
        decode_per_element=decode_each,
    )


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the fixed seconds and the seconds per element of a line through two points, both at least 0."""
    each = max((seconds[1] - seconds[0]) / (sizes[1] - sizes[0]), 0.0)
    fixed = seconds[0] - each * sizes[0]
    return (float(fixed), float(each)) if fixed >= 0 else (0.0, float(seconds[0] / sizes[0]))
