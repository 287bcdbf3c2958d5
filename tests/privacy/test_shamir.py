"""Shamir's secret sharing: enough shares recover the secret, fewer leave every secret possible."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import PrivacyError
from chimera.privacy.shamir import Interpolation, shares_of


@given(st.data(), st.binary(min_size=32, max_size=32))
def test_any_threshold_shares_recover_the_secret(data: st.DataObject, secret: bytes) -> None:
    count = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, count))
    shares = shares_of(secret, threshold, range(1, count + 1))
    places = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert Interpolation(places).secret([shares[place - 1] for place in places]) == secret


def test_fewer_shares_than_the_threshold_are_consistent_with_any_secret() -> None:
    """Two of three shares and any third one are shares of some secret: only the third share determines it."""
    secret = bytes([128] * 32)
    shares = shares_of(secret, 3, [1, 2, 3])
    third = int.from_bytes(shares[2], "little")
    forged = [(third ^ change).to_bytes(33, "little") for change in (1, 2, 3)]
    others = {Interpolation([1, 2, 3]).secret([*shares[:2], share]) for share in forged}
    assert len(others) == 3
    assert secret not in others


def test_shares_of_the_same_secret_differ_each_time() -> None:
    secret = os.urandom(32)
    assert len({shares_of(secret, 2, [1])[0] for _ in range(20)}) == 20


def test_values_that_are_not_shares_of_one_secret_are_rejected_if_detectable() -> None:
    with pytest.raises(PrivacyError, match="not shares of one secret"):
        Interpolation([1]).secret([(2**256 + 1).to_bytes(33, "little")])
