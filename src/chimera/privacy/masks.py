"""Masks: what a seed expands to, added to words modulo 2^32 or 2^64 (AES-256 in counter mode)."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_CHUNK = 1 << 17  # bytes: what is generated at once stays in cache
_ZEROS = bytes(_CHUNK)


def add_mask(words: NDArray[Any], seed: bytes, stream: int, sign: int = 1) -> None:
    """Add to ``words``, shape (n,), in place, the mask of a seed; or take it away, where ``sign`` is -1.

    Parameters
    ----------
    seed : 32 bytes.
    stream : which of the masks of this seed; no two have a bit in common but by chance.
    """
    counter = stream.to_bytes(8, "big") + bytes(8)  # the lower half counts blocks
    generator = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
    mask = np.empty(_CHUNK // words.itemsize, words.dtype)
    room = memoryview(mask.view(np.uint8))  # type: ignore[arg-type]
    add = np.add if sign > 0 else np.subtract
    for low in range(0, len(words), len(mask)):
        piece = words[low : low + len(mask)]
        generator.update_into(memoryview(_ZEROS)[: piece.nbytes], room)
        add(piece, mask[: len(piece)], out=piece)
