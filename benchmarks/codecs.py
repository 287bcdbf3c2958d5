"""Speed of encoding and decoding of every codec, compared with a copy of the same vector, on one core.

The vector has 25 million float32 of a normal distribution. Each measurement is compared with a copy to allocated memory just
before it; the table shows medians of processor time. GB/s refer to the vector, not to the message. Run it on an idle machine::

    python benchmarks/codecs.py [--size 25000000] [--repeats 9] [--only int8 qsgd ...]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from chimera.codecs.codec import CODECS, decode_with
from chimera.codecs.held import Held
from chimera.codecs.kernels import on_cpu
from chimera.core.parameters import Layout

PLAIN = {"error_feedback": False}
CASES: dict[str, tuple[dict[str, Any], float | None]] = {  # options, and the goal as a share of the speed of the copy
    "cast to fp16": ({"name": "cast"}, 1.0),
    "cast to bf16": ({"name": "cast", "to": "bf16"}, 1.0),
    "int8": ({"name": "int8"}, 1.0),
    "int8, stochastic": ({"name": "int8", "stochastic": True}, 1.0),
    "int8, blocks of 256": ({"name": "int8", "block": 256}, 0.6),
    "sign": ({"name": "sign"}, 1.0),
    "sign, unscaled": ({"name": "sign", "scaled": False}, 1.0),
    "onebit": ({"name": "onebit", **PLAIN}, None),
    "binary": ({"name": "binary"}, None),
    "terngrad": ({"name": "terngrad"}, 1.0),
    "terngrad, unclipped": ({"name": "terngrad", "clip": 0}, 1.0),
    "qsgd, 4 levels": ({"name": "qsgd"}, 1.0),
    "qsgd, 1 level": ({"name": "qsgd", "levels": 1}, 1.0),
    "qsgd, 4 levels, l2": ({"name": "qsgd", "norm": "l2"}, 1.0),
    "qsgd, 127 levels, tensors": ({"name": "qsgd", "levels": 127, "block": 0}, 1.0),
    "natural": ({"name": "natural"}, None),
    "nonuniform": ({"name": "nonuniform"}, None),
    "top-k 1%": ({"name": "top-k"}, None),
    "top-k 1%, sampled": ({"name": "top-k", "sampled": True}, 0.6),
    "random-k 1%": ({"name": "random-k"}, None),
    "threshold": ({"name": "threshold", "value": 2.5758}, None),
    "dgc 0.1%": ({"name": "dgc"}, None),
    "powersgd, rank 4": ({"name": "powersgd", "rank": 4, **PLAIN}, None),
    "loss-aware, 2 bits": ({"name": "loss-aware"}, None),
    "loss-aware, 4 bits": ({"name": "loss-aware", "bits": 4}, None),
    "adaptive": ({"name": "adaptive"}, None),
    "rows, all": ({"name": "rows"}, None),
    "delta of int8": ({"name": "delta", "codec": "int8"}, None),
    "int8, error feedback": ({"name": "int8", "error_feedback": True}, None),
    "sign, lossless": ({"name": "sign", "lossless": True}, None),
}


def seconds(function: Any, *arguments: Any) -> float:
    """Return the processor time of a call in one thread: other load affects it less than wall time."""
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began


def measure(function: Any, vector: Any, copy: Any, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a call, and of the copy."""
    function()
    pairs = [(seconds(np.copyto, copy, vector), seconds(function)) for _ in range(repeats)]
    return statistics.median(own for _, own in pairs), statistics.median(copied for copied, _ in pairs)


def products(layout: Layout, vector: Any, rank: int, repeats: int) -> float:
    """Return the median seconds of the two matrix products of PowerSGD in a fast memory order."""
    rows, columns = layout.shapes[0]
    matrix = vector.reshape(rows, columns)
    p, q = np.ones((rows, rank), np.float32), np.ones((rank, columns), np.float32)
    return statistics.median(seconds(lambda: (matrix @ q.T, p.T @ matrix)) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="codecs to measure")
    options = parser.parse_args()
    threadpool_limits(1)
    side = int(options.size**0.5)
    size = side * side
    vector = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    copy, room = np.zeros_like(vector), np.zeros_like(vector)
    matrix = Layout(("matrix",), ((side, side),))
    print(f"{size:,} float32, {on_cpu().__name__.rpartition('.')[2]} kernels, load {os.getloadavg()[0]:.1f}")
    print(f"{'':28}{'bits per':>9}{'encode':>9}{'of copy':>9}{'decode':>9}{'of copy':>9}{'goal':>6}")
    print(f"{'':28}{'element':>9}{'GB/s':>9}{'':9}{'GB/s':>9}")
    for name, (table, goal) in CASES.items():
        if options.only and table["name"] not in options.only:
            continue
        codec = CODECS.of(table)
        held = codec.encode_for(Held(), np.zeros_like(vector), matrix)[1] if codec.chained else Held()
        codec.encode_for(held, vector, matrix)
        there, copied_there = measure(
            lambda c=codec, h=held: c.encode_for(h, vector, matrix), vector, copy, options.repeats
        )
        encoded, _ = codec.encode_for(held, vector, matrix)
        back, copied_back = measure(
            lambda h=held, e=encoded: decode_with(h, e, size, room), vector, copy, options.repeats
        )
        speeds = vector.nbytes / 1e9 / there, copied_there / there, vector.nbytes / 1e9 / back, copied_back / back
        shown = "".join(f"{speed:9.2f}" for speed in speeds)
        print(f"{name:28}{encoded.bits_per_element:9.3f}{shown}{goal or '':>6}", flush=True)
        if table["name"] == "powersgd":
            bare = products(matrix, vector, table["rank"], options.repeats)
            print(f"{'':28}encoding takes {there / bare:.2f} times the two products (goal 1.5)")


if __name__ == "__main__":
    main()
