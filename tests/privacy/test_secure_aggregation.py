"""Secure aggregation: the unmasked sum equals the plain sum if clients drop out; a masked update reveals nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import chi2, ks_2samp

from chimera.core.errors import DataError, PrivacyError
from chimera.privacy.fixed_point import FixedPoint
from chimera.privacy.masks import add_mask
from chimera.privacy.secure_aggregation import Bytes, Client, Revealed, route_shares, unmask


def clients_of(count: int, threshold: int) -> tuple[list[Client], Bytes]:
    """Return clients that have shared their secrets, and the list of their keys."""
    clients = [Client() for _ in range(count)]
    public_keys = np.stack([client.keys() for client in clients])
    for client, sealed in zip(
        clients, route_shares([client.shares(public_keys, threshold) for client in clients]), strict=True
    ):
        client.receive(sealed)
    return clients, public_keys


def flags(count: int, survivors: Sequence[int]) -> Bytes:
    return np.isin(np.arange(count), survivors).astype(np.uint8)


def unmasked_sum(
    words: Sequence[NDArray[Any]], threshold: int, survivors: Sequence[int], revealing: Sequence[int], stream: int = 0
) -> NDArray[Any]:
    """Return the server's sum if only ``survivors`` send the third message and only ``revealing`` send the fourth."""
    clients, public_keys = clients_of(len(words), threshold)
    masked = [client.mask(each, stream) for client, each in zip(clients, words, strict=True)]
    revealed = [clients[place].reveal(flags(len(words), survivors)) for place in revealing]
    return unmask([masked[place] for place in survivors], public_keys, revealed, threshold, stream)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[NDArray[np.float32]], float, int, list[int], list[int]]:
    """Draw vectors in range, the range, a threshold, the survivors, and the survivors that reveal shares."""
    count, size = draw(st.integers(2, 7)), draw(st.integers(0, 9))
    limit = float(np.float32(draw(st.floats(1e-6, 1e6))))
    element = st.floats(-limit, limit, width=32)
    vectors = [draw(arrays(np.float32, size, elements=element)) for _ in range(count)]
    threshold = draw(st.integers(count // 2 + 1, count))
    survivors = sorted(draw(st.permutations(range(count)))[: draw(st.integers(threshold, count))])
    revealing = draw(st.permutations(survivors))[: draw(st.integers(threshold, len(survivors)))]
    return vectors, limit, threshold, survivors, revealing


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_the_unmasked_sum_is_the_plain_fixed_point_sum_to_the_bit(
    drawn: tuple[list[NDArray[np.float32]], float, int, list[int], list[int]],
) -> None:
    vectors, limit, threshold, survivors, revealing = drawn
    code = FixedPoint(limit, len(vectors))
    words = [code.encode(vector) for vector in vectors]
    total = unmasked_sum(words, threshold, survivors, revealing)
    np.testing.assert_array_equal(total, np.sum([words[place] for place in survivors], axis=0, dtype=code.words))
    exact = [math.fsum(float(vectors[place][i]) for place in survivors) for i in range(len(vectors[0]))]
    np.testing.assert_allclose(code.decode(total), exact, rtol=0, atol=len(survivors) * code.step / 2)


@pytest.mark.parametrize("clients", [1, 3, 1000, 3000])
def test_the_sum_of_all_clients_at_the_limit_does_not_overflow(clients: int) -> None:
    code = FixedPoint(0.3, clients)
    assert (code.bits, code.step <= 0.3 * 2**-20) == (32 if clients <= 1000 else 64, True)
    for limit in (0.3, -0.3):
        words = code.encode(np.full(3, limit, np.float32))
        total = np.sum([words] * clients, axis=0, dtype=code.words)
        np.testing.assert_allclose(code.decode(total), limit * clients, rtol=1e-6)


@pytest.mark.parametrize("element", [1.001, -2.0, np.nan, np.inf])
def test_an_element_out_of_range_is_rejected(element: float) -> None:
    with pytest.raises(DataError, match="beyond the agreed limit of 1"):
        FixedPoint(1.0, 3).encode(np.array([0.5, element], np.float32))


def test_words_of_64_bits_and_several_streams_are_masked_as_well() -> None:
    words = [np.arange(4, dtype="<u8") + (1 << 63) for _ in range(3)]
    np.testing.assert_array_equal(
        unmasked_sum(words, 2, [0, 2], [2, 0], stream=5), np.sum([words[0], words[2]], axis=0, dtype="<u8")
    )


def masked_bytes(words: NDArray[np.uint32], times: int) -> NDArray[np.uint8]:
    """Return the bytes of one client's masked update in ``times`` rounds, shape (times, bytes)."""
    found = []
    for _ in range(times):
        clients, _ = clients_of(2, 2)
        found.append(clients[0].mask(words).view(np.uint8))
    return np.stack(found)


@pytest.mark.parametrize("value", [0, 1, 0xFFFFFFFF])
def test_the_bytes_of_any_masked_update_are_uniform(value: int) -> None:
    seen = np.bincount(masked_bytes(np.full(4096, value, np.uint32), 8).ravel(), minlength=256)
    expected = seen.sum() / 256
    statistic = float(((seen - expected) ** 2 / expected).sum())
    assert chi2.sf(statistic, 255) > 1e-6  # one run in a million fails by chance


def test_two_different_masked_updates_have_the_same_distribution() -> None:
    plain = masked_bytes(np.zeros(2048, np.uint32), 8).view("<u4").ravel()
    other = masked_bytes(np.arange(2048, dtype=np.uint32), 8).view("<u4").ravel()
    assert ks_2samp(plain, other).pvalue > 1e-6
    bits = np.unpackbits(other.view(np.uint8)).reshape(-1, 32).mean(axis=0)
    np.testing.assert_allclose(bits, 0.5, atol=0.03)  # 6 standard deviations


@settings(max_examples=20, deadline=None)
@given(arrays(np.uint32, 16), arrays(np.uint32, 16))
def test_any_update_is_possible_behind_a_masked_one(update: NDArray[np.uint32], other: NDArray[np.uint32]) -> None:
    """The mask does not depend on the update and is uniform, so every update is equally likely."""
    clients, _ = clients_of(2, 2)
    twin = copy.copy(clients[0])  # with the same secrets
    twin._streams = set()
    np.testing.assert_array_equal(clients[0].mask(update) - update, twin.mask(other) - other)


def test_the_mask_depends_on_seed_and_stream() -> None:
    def mask(seed: bytes, stream: int, size: int = 100_001) -> NDArray[np.uint32]:
        words = np.zeros(size, np.uint32)
        add_mask(words, seed, stream)
        return words

    first = mask(b"a" * 32, 0)
    np.testing.assert_array_equal(first, mask(b"a" * 32, 0))
    np.testing.assert_array_equal(first[:10], mask(b"a" * 32, 0, 10))
    for other in (mask(b"b" * 32, 0), mask(b"a" * 32, 1)):
        assert (first == other).mean() < 1e-3
    add_mask(first, b"a" * 32, 0, -1)
    assert not first.any()


# Rejections


def test_a_client_never_reveals_both_secrets_of_another() -> None:
    clients, _ = clients_of(4, 3)
    for client in clients:
        client.mask(np.zeros(2, np.uint32))
    first = clients[0].reveal(flags(4, [0, 1, 2]))
    np.testing.assert_array_equal(
        first[2], clients[0].reveal(flags(4, [0, 1, 2]))[2]
    )  # repeating the same request is harmless
    with pytest.raises(PrivacyError, match="both secrets"):
        clients[0].reveal(flags(4, [0, 1, 3]))
    with pytest.raises(PrivacyError, match="before it reveals"):
        clients[0].mask(np.zeros(2, np.uint32), 1)


def test_a_client_reveals_nothing_if_too_few_survived() -> None:
    clients, _ = clients_of(4, 3)
    with pytest.raises(PrivacyError, match="2 survivors are fewer than 3"):
        clients[0].reveal(flags(4, [0, 1]))
    with pytest.raises(PrivacyError, match="one of the survivors"):
        clients[0].reveal(flags(4, [1, 2, 3]))


def test_a_client_masks_one_vector_a_stream() -> None:
    clients, _ = clients_of(2, 2)
    clients[0].mask(np.zeros(2, np.uint32), 1)
    with pytest.raises(PrivacyError, match="masks once"):
        clients[0].mask(np.ones(2, np.uint32), 1)


def test_the_server_rejects_shares_for_different_survivors() -> None:
    clients, public_keys = clients_of(4, 3)
    masked = [client.mask(np.zeros(2, np.uint32)) for client in clients]
    first, second = flags(4, [0, 1, 2]), flags(4, [0, 1, 3])
    revealed: list[Revealed] = [clients[0].reveal(first), clients[1].reveal(first), clients[3].reveal(second)]
    with pytest.raises(PrivacyError, match="different survivors"):
        unmask(masked[:3], public_keys, revealed, 3)


def test_the_server_rejects_too_few_shares_and_updates_of_clients_that_did_not_survive() -> None:
    clients, public_keys = clients_of(4, 3)
    masked = [client.mask(np.zeros(2, np.uint32)) for client in clients]
    revealed = [clients[place].reveal(flags(4, [0, 1, 2])) for place in range(3)]
    with pytest.raises(PrivacyError, match="2 clients revealed their shares where 3 are needed"):
        unmask(masked[:3], public_keys, revealed[:2], 3)
    with pytest.raises(PrivacyError, match="4 clients sent an update, but there are 3 survivors"):
        unmask(masked, public_keys, revealed, 3)


def test_shares_that_were_changed_in_transit_are_detected() -> None:
    clients = [Client() for _ in range(2)]
    public_keys = np.stack([client.keys() for client in clients])
    sealed = route_shares([client.shares(public_keys, 2) for client in clients])
    sealed[0] = sealed[0].copy()
    sealed[0][1, 20] ^= 1
    clients[0].receive(sealed[0])
    clients[0].mask(np.zeros(2, np.uint32))
    with pytest.raises(PrivacyError, match="share of client 1 for client 0 was changed"):
        clients[0].reveal(flags(2, [0, 1]))


@pytest.mark.parametrize(("count", "threshold"), [(4, 2), (2, 3), (5, 0)])
def test_a_threshold_of_half_the_clients_or_of_more_than_all_is_rejected(count: int, threshold: int) -> None:
    clients = [Client() for _ in range(count)]
    with pytest.raises(PrivacyError, match="not above half"):
        clients[0].shares(np.stack([client.keys() for client in clients]), threshold)


def test_a_client_that_is_alone_shares_nothing() -> None:
    """The sum over one client is its update, and it would reveal the seed of its only mask."""
    client = Client()
    with pytest.raises(PrivacyError, match="at least 2 clients"):
        client.shares(client.keys()[None], 1)


@pytest.mark.parametrize("half", [slice(0, 32), slice(32, 64)], ids=["seals", "masks"])
def test_equal_keys_of_two_clients_and_keys_of_low_order_are_rejected(half: slice) -> None:
    client, others = Client(), [Client().keys().copy() for _ in range(2)]
    others[0][half] = others[1][half]
    with pytest.raises(PrivacyError, match="shares its secrets once"):
        client.shares(np.stack([client.keys(), *others]), 2)
    others[0][half] = 0
    clients = [client, Client()]
    public_keys = np.stack([*(each.keys() for each in clients), others[0]])
    with pytest.raises(PrivacyError, match="a key in the list is invalid"):
        client.shares(public_keys, 2)


@pytest.mark.parametrize("what", ["public_keys", "threshold"])
def test_clients_that_received_different_keys_or_thresholds_reveal_nothing(what: str) -> None:
    clients = [Client() for _ in range(3)]
    keys = [client.keys() for client in clients]
    one, other = (np.stack([*keys, Client().keys()]) for _ in range(2))
    received = [(one, 3), (one, 3), (other, 3) if what == "public_keys" else (one, 4)]
    sealed = [client.shares(*each) for client, each in zip(clients, received, strict=True)]
    for client, each in zip(clients, route_shares([*sealed, np.zeros_like(sealed[0])]), strict=False):
        client.receive(each)
    with pytest.raises(PrivacyError, match=r"share of client 2 for client 0 .* different lists of keys"):
        clients[0].reveal(flags(4, [0, 1, 2]))


@pytest.mark.parametrize(("count", "threshold"), [(5, 3), (5, 4), (6, 4), (7, 6)])
def test_a_server_that_lies_about_survivors_needs_2t_minus_n_colluding_clients(count: int, threshold: int) -> None:
    """The server wants both secrets of the last client. Honest clients answer for one list, colluding clients for both."""
    there, gone = flags(count, range(count)), flags(count, range(count - 1))
    for colluding in (2 * threshold - count - 1, 2 * threshold - count):
        clients, _ = clients_of(count, threshold)
        answers = {"there": [clients[-1].reveal(there)], "gone": list[Revealed]()}
        for client in clients[:colluding]:
            answers["there"].append(copy.copy(client).reveal(there))
            answers["gone"].append(copy.copy(client).reveal(gone))
        for client in clients[colluding:-1]:
            which, list_ = ("gone", gone) if len(answers["gone"]) < threshold else ("there", there)
            answers[which].append(client.reveal(list_))
            with pytest.raises(PrivacyError, match="both secrets"):
                client.reveal(there if which == "gone" else gone)
        has_both = all(len(of_kind) >= threshold for of_kind in answers.values())
        assert has_both == (colluding == 2 * threshold - count)


def test_a_client_that_is_not_in_the_list_exactly_once_shares_nothing() -> None:
    client, other = Client(), Client()
    for public_keys in ([other.keys(), Client().keys()], [client.keys(), client.keys()]):
        with pytest.raises(PrivacyError, match="shares its secrets once"):
            client.shares(np.stack(public_keys), 2)
