"""The kernels in torch, for vectors on a device: the functions of `compiled`.

Vectors, codes and indices are tensors on the device. Messages are NumPy arrays on the host; the kernel that writes or reads one
copies it. The bits are those of the other kernels, except for the sums of `moments`, which are in float64 and more exact.
"""

from __future__ import annotations

from chimera.codecs.kernels.device.bits import pack, pack_signs, unpack, unpack_signs
from chimera.codecs.kernels.device.floats import (
    from_bfloat,
    from_exponents,
    from_half,
    from_table,
    to_bfloat,
    to_exponents,
    to_half,
    to_table,
)
from chimera.codecs.kernels.device.hashing import random_bits
from chimera.codecs.kernels.device.indices import from_bitmap, histogram, select, to_bitmap
from chimera.codecs.kernels.device.levels import dequantize, quantize
from chimera.codecs.kernels.device.moments import abs_max, moments

__all__ = [
    "abs_max",
    "dequantize",
    "from_bfloat",
    "from_bitmap",
    "from_exponents",
    "from_half",
    "from_table",
    "histogram",
    "moments",
    "pack",
    "pack_signs",
    "quantize",
    "random_bits",
    "select",
    "to_bfloat",
    "to_bitmap",
    "to_exponents",
    "to_half",
    "to_table",
    "unpack",
    "unpack_signs",
]
