"""Speed of codecs on vectors that are on a GPU; a part of ``gpu.py``.

The table has encoding and decoding, a copy on the device, and copies of the whole vector from and to page-locked memory of the
host. A codec without kernels for devices needs at least these copies. Encoded messages are in the memory of the host, and their
copies count. Messages to decode are in memory that is not page-locked, like received messages.
"""

from __future__ import annotations

import runpy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call, by events of the device."""
    import torch

    call()
    seconds = []
    for _ in range(repeats):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(seconds)


def compare(elements: int, repeats: int) -> None:
    """Print the speed of each codec for a square matrix of about ``elements`` elements."""
    import torch

    from chimera.codecs.codec import CODECS, decode_with
    from chimera.codecs.held import Held
    from chimera.core.message import Encoded
    from chimera.core.parameters import Layout

    cases = runpy.run_path(str(Path(__file__).with_name("codecs.py")))["CASES"]
    side = int(elements**0.5)
    layout = Layout(("matrix",), ((side, side),))
    vector = torch.randn(side * side, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    copy, room = torch.empty_like(vector), torch.empty_like(vector)
    host, locked = torch.empty(len(vector)), torch.empty(len(vector), pin_memory=True)
    size_gb = vector.nbytes / 1e9
    bare = [size_gb / timed(lambda to=to: to.copy_(vector), repeats) for to in (copy, host, locked)]
    back = [size_gb / timed(lambda to=to: copy.copy_(to), repeats) for to in (host, locked)]
    print(
        f"\ncodecs: {len(vector):,} float32, GB/s of the vector's bytes: a copy on the device {bare[0]:,.0f}, to the host "
        f"{bare[1]:.1f}, page-locked {bare[2]:.1f}, from the host {back[0]:.1f}, page-locked {back[1]:.1f}"
    )
    print(f"{'':28}{'encode':>9}{'on device':>11}{'to host':>9}{'decode':>10}{'on device':>11}{'from host':>11}")
    for name, (options, _) in cases.items():
        codec, held = CODECS.of(options), Held()
        if codec.chained:
            held = decode_with(held, codec.pack(torch.zeros_like(vector), layout), len(vector))[1]
        own = codec.pack(vector, layout)
        message = Encoded(own.codec, own.size, tuple(array.copy() for array in own.arrays), own.meta)
        encode = size_gb / timed(lambda c=codec: c.pack(vector, layout), repeats)
        decode = size_gb / timed(lambda h=held, m=message: decode_with(h, m, len(vector), room), repeats)
        shown = f"{encode:9.2f}{encode / bare[0]:11.3f}{encode / bare[2]:9.2f}"
        print(f"{name:28}{shown}{decode:10.2f}{decode / bare[0]:11.3f}{decode / back[1]:11.2f}", flush=True)
