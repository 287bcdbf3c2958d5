"""Shamir 1979, "How to Share a Secret": any ``threshold`` shares recover the secret, fewer reveal nothing about it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from chimera.core.errors import PrivacyError

SECRET_BYTES = 32
SHARE_BYTES = 33
_PRIME = 2**256 + 297  # the smallest prime above all secrets


def shares_of(secret: bytes, threshold: int, places: Sequence[int]) -> list[bytes]:
    """Return a share for each place: the value there of a random polynomial of degree ``threshold - 1``.

    Parameters
    ----------
    secret : 32 bytes, the polynomial's value at 0.
    places : distinct integers from 1.
    """
    coefficients = [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    coefficients.append(int.from_bytes(secret, "little"))
    shares = []
    for place in places:
        value = 0
        for coefficient in coefficients:
            value = value * place + coefficient  # places are small: one reduction at the end is faster
        shares.append((value % _PRIME).to_bytes(SHARE_BYTES, "little"))
    return shares


class Interpolation:
    """Recovery of secrets from shares at certain places. The weights are computed once, for many secrets.

    Parameters
    ----------
    places : distinct places of the shares, as many as the threshold.
    """

    def __init__(self, places: Sequence[int]) -> None:
        self._weights = []
        for place in places:
            above = below = 1
            for other in places:
                if other != place:
                    above = above * other % _PRIME
                    below = below * (other - place) % _PRIME
            self._weights.append(above * pow(below, -1, _PRIME))

    def secret(self, shares: Sequence[bytes]) -> bytes:
        """Return the secret of these shares, in the order of the places.

        Raises
        ------
        PrivacyError : the shares are not of the same secret, as far as that is detectable.
        """
        pairs = zip(self._weights, shares, strict=True)
        value = sum(weight * int.from_bytes(share, "little") for weight, share in pairs) % _PRIME
        if value.bit_length() > 8 * SECRET_BYTES:
            raise PrivacyError("the revealed shares are not shares of one secret")
        return value.to_bytes(SECRET_BYTES, "little")
