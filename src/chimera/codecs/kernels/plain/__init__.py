"""The kernels in NumPy, for systems without numba: the functions of `compiled`, with the same bits, but slower."""

from __future__ import annotations

from chimera.codecs.kernels.plain.bits import pack, pack_signs, unpack, unpack_signs
from chimera.codecs.kernels.plain.floats import (
    from_bfloat,
    from_exponents,
    from_half,
    from_table,
    to_bfloat,
    to_exponents,
    to_half,
    to_table,
)
from chimera.codecs.kernels.plain.hashing import random_bits
from chimera.codecs.kernels.plain.indices import from_bitmap, histogram, nonzero_rows, select, to_bitmap
from chimera.codecs.kernels.plain.levels import dequantize, quantize
from chimera.codecs.kernels.plain.moments import abs_max, moments
from chimera.codecs.kernels.plain.tables import fit_table

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
