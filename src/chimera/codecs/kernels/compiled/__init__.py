"""The kernels compiled by numba: each passes over its vectors once, and needs no temporary vector.

They process `CHUNK` elements at a time, so that intermediate values stay in the cache. `plain` has the same functions in
NumPy, which give the same bits.
"""

from __future__ import annotations

from chimera.codecs.kernels.compiled.bits import pack, pack_signs, unpack, unpack_signs
from chimera.codecs.kernels.compiled.floats import (
    from_bfloat,
    from_exponents,
    from_half,
    from_table,
    to_bfloat,
    to_exponents,
    to_half,
    to_table,
)
from chimera.codecs.kernels.compiled.hashing import random_bits
from chimera.codecs.kernels.compiled.indices import from_bitmap, histogram, nonzero_rows, select, to_bitmap
from chimera.codecs.kernels.compiled.levels import dequantize, quantize
from chimera.codecs.kernels.compiled.moments import abs_max, moments
from chimera.codecs.kernels.compiled.tables import fit_table

__all__ = [
    "abs_max",
    "dequantize",
    "fit_table",
    "from_bfloat",
    "from_bitmap",
    "from_exponents",
    "from_half",
    "from_table",
    "histogram",
    "moments",
    "nonzero_rows",
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
