"""The time that a codec adds to workers and to a server on this machine.

Workers and a server exchange vectors on the engine `local`, as in a run, first without and then with the codec. Each message is
encoded right after its vector was written, described, copied and opened, and decoded by another process. A measurement of one
vector after another in one process would lack this time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.calibration.measured_run import columns
from chimera.codecs.codec import CODECS
from chimera.core import call
from chimera.core.engine import Group
from chimera.core.parameters import Layout
from chimera.engines.local.engine import Local
from chimera.engines.simulated.models.compute import CodecCost
from chimera.training.comparison.variation import Choice, read_variations
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.exchange import Exchange

ROUNDS, _REPEATS = 40, 3
_MAX_ELEMENTS, _MAX_WORKERS = 1 << 21, 4
"""The longest measured vector, since times of longer vectors are on the same line; and the largest number of workers."""
_VECTORS = 2

Coded: TypeAlias = tuple[str, Mapping[str, Any]]
_PLAIN: Coded = "identity", {}


class Sender:
    """A worker that sends vectors of noise in place of gradients."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def exchange(self, rounds: int, group: Group, side: int, codec: Coded) -> None:
        """Receive the weights, write a vector, and send it encoded, ``rounds`` times. Codecs of low rank need a matrix."""
        size = side**2
        exchange = Exchange(Layout(("weights",), ((side, side),)), codec, seed=self._rank)
        noise = np.random.default_rng(self._rank).normal(size=(_VECTORS, size)).astype(np.float32)
        weights, vector = np.empty(size, np.float32), call.empty(size)
        for number in range(rounds):
            began_s = call.now()
            exchange.load(list(group.receive([0]).values()), weights)
            np.copyto(vector, noise[number % _VECTORS])
            group.send({0: exchange.packed(vector)[0]})
            call.record("gradient", began_s)


def codec_costs(texts: Sequence[str], elements: int, workers: int = 2, rounds: int = ROUNDS) -> dict[str, CodecCost]:
    """Measure codecs, each a name with options such as ``top-k:ratio=0.01``; return their costs by name.

    Parameters
    ----------
    elements : elements of a message.
    workers : processes that encode at the same time; at most 4 are started.
    rounds : messages of each worker in one measurement.

    Raises
    ------
    ConfigurationError : a codec or an option is unknown.
    """
    if not texts:
        return {}
    [variation] = read_variations([f"codec={','.join(texts)}"])
    side = math.isqrt(min(max(elements, 1), _MAX_ELEMENTS)) + 1
    codecs = [_PLAIN, *map(_of, variation.choices)]
    for codec in codecs:
        CODECS.create(*codec)
    with Local() as engine:
        measure = _exchanges(engine, (side, 2 * side), min(max(workers, 1), _MAX_WORKERS), rounds)
        # Codecs alternate, so that other load of the machine affects all of them.
        parts = [{(codec[0], size): measure(codec, size) for codec in codecs for size in (side, 2 * side)}
                 for _ in range(_REPEATS)]  # fmt: skip
    medians = {key: np.median([each[key] for each in parts], axis=0) for key in parts[0]}
    return {
        name: _cost((side, 2 * side), [medians[name, size] - medians["identity", size] for size in (side, 2 * side)])
        for name, _ in codecs[1:]
    }


def _of(choice: Choice) -> Coded:
    return str(choice.value), {key: value for key, value in (choice.options or {}).items() if key != "downlink"}


def _exchanges(
    engine: Local, sides: Sequence[int], workers: int, rounds: int
) -> Callable[[Coded, int], tuple[float, float]]:
    """Start a server for each size, and workers. Return a function that measures a codec.

    It returns the median seconds of a worker's round, and of the server's round for each message.
    """
    senders = [engine.spawn(Sender, rank, name=f"worker {rank}") for rank in range(workers)]
    servers, groups = {}, {}
    for side in sides:
        layout = Layout(("weights",), ((side, side),))
        weights, name = np.zeros(side**2, np.float32), f"server {side}"
        servers[side] = engine.spawn(ParameterShard, weights, layout, optimizer=OptimizerSettings(), name=name)
        groups[side] = engine.group([servers[side], *senders])

    def measure(codec: Coded, side: int) -> tuple[float, float]:
        pending = [sender.exchange(rounds, groups[side], side, codec) for sender in senders]
        pending.append(servers[side].serve(rounds, groups[side], range(1, workers + 1), first=0, fresh=True))
        while pending:  # without this check, the others would wait forever for a worker that fails
            done, pending = engine.wait(pending)
            engine.get(done)
        work = defaultdict(list)
        for (_, name), calls in columns(engine.trace()).items():
            work[name].append(float(np.median(calls.after_warm_up().work_s)))
        return float(np.mean(work["gradient"])), float(np.mean(work["update"])) / workers

    return measure


def _cost(sides: Sequence[int], seconds: Sequence[Any]) -> CodecCost:
    """Return the costs whose lines go through the times that a codec adds at two sizes."""
    sizes = [side**2 for side in sides]
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
