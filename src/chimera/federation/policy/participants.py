"""Certified keys of masked sums: a node checks which nodes are in a sum before it shares secrets with them.

In secure aggregation the server distributes the public keys of all clients. A server that invents clients, or replaces keys by
its own, can read updates. In a federation each node signs its keys of a round with the key of its certificate.
`Participants` checks the list at each node.

Signatures contain no number of a round. A server that sends keys of an earlier round gains nothing. The owner of these
keys cannot open the shares for them, and a node whose shares another client cannot answer reveals nothing
(`Client.reveal`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from chimera.core.errors import ConfigurationError, PrivacyError
from chimera.federation.policy.rules import LEARNER, PRIVATE
from chimera.privacy.secure_aggregation import KEYS_BYTES, Bytes
from chimera.training.privacy.worker import PrivateWorker

ROW_BYTES = 2048
"""Size of the keys, signature and certificate of one node, in bytes."""
MAX_NODES = 10_000
_PURPOSE = b"chimera keys of secure aggregation\0"
_SIGNS = ec.ECDSA(hashes.SHA256())
_ROLE = "chimera:node:"


class Member:
    """The certificate of a node and its key, which sign the node's keys of each round.

    Parameters
    ----------
    certificate : the certificate, PEM.
    key : its private key, EC P-256.

    Raises
    ------
    ConfigurationError : the certificate cannot be read, is too large, or has another key.
    """

    def __init__(self, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.renew(certificate)

    def renew(self, certificate: bytes) -> None:
        """Use another certificate of the same key, PEM; it raises what the constructor raises."""
        try:
            loaded = x509.load_pem_x509_certificate(certificate)
        except ValueError as error:
            raise ConfigurationError(f"the certificate of this node cannot be read: {error}") from error
        self._certificate = loaded.public_bytes(serialization.Encoding.DER)
        if loaded.public_key() != self._key.public_key():
            raise ConfigurationError("the certificate of this node belongs to another key")
        if len(self._certificate) > ROW_BYTES - KEYS_BYTES - 4 - 80:
            raise ConfigurationError(
                f"the certificate of this node has {len(self._certificate)} bytes, which is too large"
            )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, hexadecimal."""
        return sha256(self._certificate).hexdigest()

    def signed(self, keys: Bytes) -> Bytes:
        """Return the keys of `Client.keys` with signature and certificate, shape (2048,)."""
        signature = self._key.sign(_PURPOSE + keys.tobytes(), _SIGNS)
        parts = [keys.tobytes(), *(len(part).to_bytes(2, "big") + part for part in (signature, self._certificate))]
        return np.frombuffer(b"".join(parts).ljust(ROW_BYTES, b"\0"), np.uint8)


def keys_in(rows: Bytes) -> Bytes:
    """Return the keys in a list of signed keys, shape (n, 64).

    Raises
    ------
    PrivacyError : it is no list of signed keys, shape (n, 2048).
    """
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != ROW_BYTES:
        raise PrivacyError("a masked sum needs a list of keys that nodes have signed")
    if len(rows) > MAX_NODES:
        raise PrivacyError(f"a list of keys names more than {MAX_NODES} nodes")
    return np.ascontiguousarray(rows[:, :KEYS_BYTES])


class Participants:
    """Checks the lists of keys that a node receives.

    Parameters
    ----------
    authority : certificate of the federation's authority, PEM, which the node has had since it joined.
    own : fingerprint of the node's own certificate: SHA-256, hexadecimal.
    known : fingerprints of the other certificates that may be in a list; empty: all that the authority signed.
    revoked : returns the fingerprints of revoked certificates that the node knows.
    now : returns the time, with a time zone.

    Raises
    ------
    ConfigurationError : the certificate of the authority cannot be read.
    """

    def __init__(
        self,
        authority: bytes,
        own: str,
        *,
        known: Collection[str] = (),
        revoked: Callable[[], Collection[str]] = tuple,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        try:
            self._authority = x509.load_pem_x509_certificate(authority)
        except ValueError as error:
            raise ConfigurationError(f"the certificate of the authority cannot be read: {error}") from error
        self._own, self._known, self._revoked, self._now = frozenset({own.lower()}), frozenset(known), revoked, now

    def renewed(self, own: str) -> None:
        """Note that this node has a further certificate. Rounds that have begun name the former one.

        Parameters
        ----------
        own : its fingerprint: SHA-256, hexadecimal.
        """
        self._own |= {own.lower()}

    def __call__(self, rows: Any) -> int:
        """Return the number of nodes in a list, each certified and listed once.

        Raises
        ------
        PrivacyError : a signature or certificate is not valid, two rows have the same node or keys, this node is not in
            the list, or this node does not know a node of the list.
        """
        keys = keys_in(rows)
        certificates = [self._certified(row.tobytes()) for row in rows]
        prints = [each.fingerprint(hashes.SHA256()).hex() for each in certificates]
        names = {_name(each) for each in certificates}
        public = {_key_of(each).public_numbers() for each in certificates}
        if min(len(names), len(public), len(np.unique(keys, axis=0))) < len(rows):
            raise PrivacyError("a node is in the list of keys more than once")
        if sum(each in self._own for each in prints) != 1:
            raise PrivacyError("this node is not in the list of keys")
        if self._known and not set(prints) - self._own <= self._known:
            raise PrivacyError("the list of keys names a node that this node does not know")
        return len(rows)

    def _certified(self, row: bytes) -> x509.Certificate:
        """Return the certificate in a row, if its key signed the keys and the authority signed it."""
        signature, end = _part(row, KEYS_BYTES)
        data, _ = _part(row, end)
        now = self._now()
        try:
            certificate = x509.load_der_x509_certificate(data)
            certificate.verify_directly_issued_by(self._authority)
            _key_of(certificate).verify(signature, _PURPOSE + row[:KEYS_BYTES], _SIGNS)
            valid = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
        except Exception:  # the library has many errors for bytes that are no certificate
            raise PrivacyError("keys in the list are not signed by a certified node") from None
        if not valid or certificate.fingerprint(hashes.SHA256()).hex() in self._revoked():
            raise PrivacyError("a certificate in the list has expired or was revoked")
        return certificate


class CertifiedLearner:
    """A learner whose keys of secure aggregation are signed. `Participants` checks lists before they arrive here.

    Parameters
    ----------
    learner : creates the learner.
    member : signs the keys.
    given, options : arguments of the learner.
    """

    brief = PrivateWorker.brief  # a node looks it up in the class that it hosts

    def __init__(self, learner: Callable[..., Any], member: Member, *given: Any, **options: Any) -> None:
        self._learner, self._member = learner(*given, **options), member

    def advertise_keys(self) -> Bytes:
        """Start a round; return the signed keys of this node, shape (2048,)."""
        return self._member.signed(self._learner.advertise_keys())

    def share_secrets(self, rows: Bytes) -> Bytes:
        """Return the sealed secret shares for all nodes in a list of signed keys, see `Client.shares`."""
        shares: Bytes = self._learner.share_secrets(keys_in(rows))
        return shares

    def __getattr__(self, call: str) -> Any:
        if call.startswith("_"):
            raise AttributeError(call)
        return getattr(self._learner, call)


def certified(kinds: Mapping[str, Callable[..., Any]], member: Member) -> dict[str, Callable[..., Any]]:
    """Return the classes that a node hosts, see `Host`, with private workers whose keys are signed."""
    if LEARNER not in kinds:
        return dict(kinds)
    learner: Callable[..., Any] = partial(CertifiedLearner, kinds[LEARNER], member)
    return {**kinds, PRIVATE: partial(PrivateWorker, learner=learner)}


def _part(row: bytes, begin: int) -> tuple[bytes, int]:
    """Return a part of a row, which its length precedes, and the index of its end."""
    end = begin + 2 + int.from_bytes(row[begin : begin + 2], "big")
    if end > len(row):
        raise PrivacyError("a row of the list of keys is cut off")
    return row[begin + 2 : end], end


def _name(certificate: x509.Certificate) -> str:
    """Return the name of the node that a certificate belongs to.

    Raises
    ------
    PrivacyError : it belongs to no node.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.UniformResourceIdentifier)
    except Exception:  # the library has many errors for extensions that it cannot read
        found = []
    if len(found) != 1 or not found[0].startswith(_ROLE) or len(found[0]) == len(_ROLE):
        raise PrivacyError("a certificate in the list is not that of a node")
    return found[0].removeprefix(_ROLE)


def _key_of(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("another type of key")
    return key
