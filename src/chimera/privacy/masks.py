"""Masks: pseudorandom words from a seed, added to words modulo 2^32 or 2^64 (AES-256 in counter mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_CHUNK = 1 << 17  # bytes generated at once, which fit into the cache
_ZEROS = bytes(_CHUNK)


def add_mask(words: NDArray[Any], seed: bytes, stream: int, sign: int = 1) -> None:
    """Add the mask of a seed to ``words``, shape (n,), in place; subtract it if ``sign`` is -1.

    Parameters
    ----------
    seed : 32 bytes.
    stream : number of the mask of this seed. Masks with different numbers are independent.
    """
    counter = stream.to_bytes(8, "big") + bytes(8)  # the lower half counts blocks
    generator = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
    mask = np.empty(_CHUNK // words.itemsize, words.dtype)
    view = memoryview(mask.view(np.uint8))  # type: ignore[arg-type]
    add = np.add if sign > 0 else np.subtract
    for low in range(0, len(words), len(mask)):
        piece = words[low : low + len(mask)]
        generator.update_into(memoryview(_ZEROS)[: piece.nbytes], view)
        add(piece, mask[: len(piece)], out=piece)
