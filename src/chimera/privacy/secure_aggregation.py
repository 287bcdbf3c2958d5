"""Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning": a client's side of a round.

The protocol has four messages, all through the server, which may be honest but curious:

1. Each client advertises two public keys (`Client.keys`). The server sends the list of all keys to all clients.
2. Each client shares its self mask's seed and its mask key among all clients (`Client.shares`). Shares are sealed, so that the
   server, which forwards them (`route_shares`), cannot read them.
3. Each client sends its update under its self mask and one mask for each other client (`Client.mask`). Of each pair, one client
   adds the mask and the other subtracts it.
4. The server names the survivors. Each survivor reveals its share of the self mask's seed of each survivor, and its share of
   the mask key of each other client (`Client.reveal`). `unmask` then removes the remaining masks from the sum.

An honest client never reveals both for one client. With n clients and a threshold of t, a server that follows the protocol
learns no single update from fewer than t clients that collude with it. A server that reports different survivors to different
clients needs t answers of each kind, and honest clients give one. Fewer than 2t - n clients may collude with such a server.
Shares are bound to the list of keys and the threshold: clients that received different ones cannot open each other's shares,
and reveal nothing. There are no signatures: clients cannot detect a server that replaces keys by its own (see
docs/explanation/threat-model.md). All messages are arrays of bytes; a client's place is its row in the list of keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from chimera.core.errors import PrivacyError
from chimera.privacy.masks import add_mask
from chimera.privacy.shamir import SECRET_BYTES, SHARE_BYTES, Interpolation, shares_of

Bytes: TypeAlias = NDArray[np.uint8]
Revealed: TypeAlias = tuple[int, Bytes, Bytes]
"""The answer of a survivor: its place; the survivors, shape (n,), 1 or 0; and a share of each client, shape (n, 33)."""

_KEY_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 12, 16
KEYS_BYTES = 2 * _KEY_BYTES
"""Size of the public keys of a client, in bytes."""
_MIN_CLIENTS = 2  # minimum number of clients of a round
_SEALED_BYTES = _NONCE_BYTES + 2 * SHARE_BYTES + _TAG_BYTES


class Client:
    """One client in one round. Its keys come from the operating system, and are used in this round only."""

    def __init__(self) -> None:
        self._sealing, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._self_seed = os.urandom(SECRET_BYTES)
        self._public_keys: Bytes = np.empty((0, 2 * _KEY_BYTES), np.uint8)
        self._place, self._threshold = -1, 0
        self._own_share, self._agreed = b"", b""
        self._seals: dict[int, AESGCM] = {}  # by the place of the other client
        self._pair_seeds: dict[int, bytes] = {}  # of the masks with the others, by their places
        self._sealed: Bytes | None = None
        self._streams: set[int] = set()
        self._survivors: Bytes | None = None

    def keys(self) -> Bytes:
        """Return its public keys, shape (64,): the key for seals, then the key for masks."""
        both = (self._sealing.public_key().public_bytes_raw(), self._masking.public_key().public_bytes_raw())
        return np.frombuffer(b"".join(both), np.uint8)

    def shares(self, public_keys: Bytes, threshold: int) -> Bytes:
        """Return its shares for each client, sealed for that client, shape (n, 94).

        Parameters
        ----------
        public_keys : keys of all clients, shape (n, 64).
        threshold : number of clients that must survive, more than half. With fewer, the server could report different survivors
            to two halves of the clients, and get both secrets of a client.

        Raises
        ------
        PrivacyError : this client is not in the list exactly once, or is alone in it; two clients have the same key; a key is
            invalid; the threshold is not above half of the clients and at most all; or this client has shared already.
        """
        count = _checked(public_keys)
        found = np.flatnonzero((public_keys == self.keys()).all(axis=1))
        if self._place >= 0 or len(found) != 1 or not _all_differ(public_keys):
            raise PrivacyError("a client shares its secrets once, and each client must be in the list of keys once")
        if not count < 2 * threshold <= 2 * count:
            raise PrivacyError(f"a threshold of {threshold} is not above half of {count} clients and at most all")
        self._public_keys, self._place, self._threshold = public_keys, int(found[0]), threshold
        self._agreed = sha256(public_keys.tobytes() + threshold.to_bytes(4, "big")).digest()
        others = (place for place in range(count) if place != self._place)
        self._pair_seeds = {place: _pair_seed(self._masking, public_keys[place]) for place in others}
        places = range(1, count + 1)
        seeds = shares_of(self._self_seed, threshold, places)
        keys = shares_of(self._masking.private_bytes_raw(), threshold, places)
        sealed = np.zeros((count, _SEALED_BYTES), np.uint8)
        for place, both in enumerate(map(bytes.__add__, seeds, keys)):
            if place == self._place:
                self._own_share = both
                continue
            nonce = os.urandom(_NONCE_BYTES)
            self._seals[place] = self._seal(place)
            text = self._seals[place].encrypt(nonce, both, self._bound(self._place, place))
            sealed[place] = np.frombuffer(nonce + text, np.uint8)
        return sealed

    def receive(self, sealed: Bytes) -> None:
        """Store the shares from each client, sealed, shape (n, 94)."""
        if self._place < 0 or self._sealed is not None or sealed.shape != (len(self._public_keys), _SEALED_BYTES):
            raise PrivacyError("shares arrived twice, before the keys, or not one for each client")
        self._sealed = sealed

    def mask(self, words: NDArray[Any], stream: int = 0) -> NDArray[Any]:
        """Return the words of its update, unsigned, shape (n,), with all masks; ``stream`` distinguishes several vectors.

        Raises
        ------
        PrivacyError : this client has no shares yet, has masked another vector of this stream, or has revealed its shares.
        """
        if self._sealed is None or self._survivors is not None or stream in self._streams:
            raise PrivacyError("a client masks once, after it received all shares and before it reveals any")
        self._streams.add(stream)
        masked = words.copy()
        add_mask(masked, self._self_seed, stream)
        for place, seed in self._pair_seeds.items():
            add_mask(masked, seed, stream, _sign(self._place, place))
        return masked

    def reveal(self, survivors: Bytes) -> Revealed:
        """Return its shares of the self mask's seeds of all survivors, and of the mask keys of the others.

        Parameters
        ----------
        survivors : 1 for each client whose masked update the server has, else 0, shape (n,).

        Raises
        ------
        PrivacyError : there are fewer survivors than the threshold, an earlier call had other survivors (which would reveal
            both secrets of a client), or a share was changed after its sender sealed it.
        """
        if self._sealed is None or survivors.shape != (len(self._public_keys),) or not survivors[self._place]:
            raise PrivacyError("a client reveals shares of the clients of its round, if it is one of the survivors")
        if np.count_nonzero(survivors) < self._threshold:
            left = np.count_nonzero(survivors)
            raise PrivacyError(f"{left} survivors are fewer than {self._threshold}: nothing is revealed")
        if self._survivors is not None and not np.array_equal(self._survivors, survivors):
            raise PrivacyError(
                "the survivors differ from those of an earlier call: that would reveal both secrets of a client"
            )
        self._survivors = np.array(survivors != 0, np.uint8)
        shares = np.empty((len(survivors), SHARE_BYTES), np.uint8)
        for place, survived in enumerate(survivors):
            both = self._own_share if place == self._place else self._opened(place, self._sealed[place].tobytes())
            shares[place] = np.frombuffer(both[:SHARE_BYTES] if survived else both[SHARE_BYTES:], np.uint8)
        return self._place, self._survivors, shares

    def _opened(self, place: int, sealed: bytes) -> bytes:
        try:
            nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            return self._seals[place].decrypt(nonce, text, self._bound(place, self._place))
        except InvalidTag:
            raise PrivacyError(
                f"the share of client {place} for client {self._place} was changed in transit, or the server sent them "
                "different lists of keys: nothing is revealed"
            ) from None

    def _bound(self, sender: int, receiver: int) -> bytes:
        """Return the data that a sealed share is bound to: sender, receiver, keys and threshold."""
        return f"{sender} to {receiver} ".encode() + self._agreed

    def _seal(self, place: int) -> AESGCM:
        other = X25519PublicKey.from_public_bytes(self._public_keys[place, :_KEY_BYTES].tobytes())
        return AESGCM(_derived(_agreed(self._sealing, other), b"chimera seal"))


def route_shares(sealed: Sequence[Bytes]) -> list[Bytes]:
    """Return the shares for each client from those of each client, each shape (n, 94); the server's part of step 2."""
    return list(np.stack(sealed).swapaxes(0, 1))


def unmask(
    masked: Sequence[NDArray[Any]], public_keys: Bytes, revealed: Sequence[Revealed], threshold: int, stream: int = 0
) -> NDArray[Any]:
    """Return the sum of the survivors' words; the server's part of step 4.

    Parameters
    ----------
    masked : masked words of the survivors, each shape (n,), in the order of their places.
    public_keys : keys of all clients.
    revealed : shares from at least ``threshold`` of the survivors.
    stream : as in `Client.mask`.

    Raises
    ------
    PrivacyError : too few clients revealed shares, they did so for different survivors, or the survivors are not the senders.
    """
    if len(revealed) < threshold:
        raise PrivacyError(f"{len(revealed)} clients revealed their shares where {threshold} are needed")
    survivors = revealed[0][1]
    if any(not np.array_equal(survivors, each) for _, each, _ in revealed):
        raise PrivacyError("shares were revealed for different survivors: that would reveal both secrets of a client")
    if np.count_nonzero(survivors) != len(masked):
        raise PrivacyError(
            f"{len(masked)} clients sent an update, but there are {np.count_nonzero(survivors)} survivors"
        )
    chosen = revealed[:threshold]
    interpolation = Interpolation([place + 1 for place, _, _ in chosen])
    total = masked[0].copy()
    for words in masked[1:]:
        np.add(total, words, out=total)
    for place, survived in enumerate(survivors):
        secret = interpolation.secret([shares[place].tobytes() for _, _, shares in chosen])
        if survived:
            add_mask(total, secret, stream, -1)
            continue
        key = X25519PrivateKey.from_private_bytes(secret)
        if key.public_key().public_bytes_raw() != public_keys[place, _KEY_BYTES:].tobytes():
            raise PrivacyError(f"the shares of client {place} do not give its mask key")
        for other in np.flatnonzero(survivors).tolist():
            add_mask(total, _pair_seed(key, public_keys[other]), stream, -_sign(other, place))
    return total


def _pair_seed(masking: X25519PrivateKey, keys: Bytes) -> bytes:
    """Return the seed of the mask between the owner of a mask key and the client with these public keys."""
    return _derived(_agreed(masking, X25519PublicKey.from_public_bytes(keys[_KEY_BYTES:].tobytes())), b"chimera mask")


def _agreed(own: X25519PrivateKey, other: X25519PublicKey) -> bytes:
    """Return the shared secret of two keys. A key of low order, which gives all clients the same secret, is rejected."""
    try:
        return own.exchange(other)
    except ValueError:
        raise PrivacyError("a key in the list is invalid: every client would derive the same secret with it") from None


def _checked(public_keys: Bytes) -> int:
    """Return the number of clients in a list of keys, after checking its shape."""
    if (
        public_keys.dtype != np.uint8
        or public_keys.ndim != 2
        or public_keys.shape[1] != 2 * _KEY_BYTES
        or len(public_keys) < _MIN_CLIENTS
    ):
        raise PrivacyError(
            f"a round needs the keys of at least {_MIN_CLIENTS} clients: the sum over one client is its update"
        )
    return len(public_keys)


def _all_differ(public_keys: Bytes) -> bool:
    """Return whether all keys are different, of both kinds."""
    return all(len(np.unique(half, axis=0)) == len(public_keys) for half in np.split(public_keys, 2, axis=1))


def _sign(own: int, other: int) -> int:
    return 1 if own < other else -1


def _derived(agreed: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), _KEY_BYTES, None, purpose).derive(agreed)
