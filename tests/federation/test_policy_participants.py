"""Lists of certified keys: a node refuses a sum with forged, repeated, unknown or too few participants."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from safetensors.numpy import load_file

import chimera
from chimera.core.errors import ConfigurationError, PrivacyError
from chimera.engines.simulated.engine import Simulated
from chimera.federation.policy.participants import ROW_BYTES, CertifiedLearner, Member, Participants, keys_in
from chimera.federation.policy.requests import NOT_ALLOWED, PARTICIPANTS, Allowed, Refused
from chimera.privacy.secure_aggregation import Bytes, Client
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner
from federation.policy_kit import ALICE, MASKED, MASKED_SETTINGS, Requests, gate_of

NOW = datetime.now(UTC)


class Authority:
    """An authority that signs certificates."""

    def __init__(self, name: str = "hub") -> None:
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), name
        self.certificate = self.issue(f"authority {name}", self.key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        uri: str,
        key: Any,
        *,
        begin: datetime = NOW - timedelta(days=1),
        days: int = 365,
    ) -> x509.Certificate:
        """Return a certificate for a name such as ``chimera:node:a``."""
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {self.name}")])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, uri[:64])])
        built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        built = built.serial_number(x509.random_serial_number()).not_valid_before(begin)
        built = built.not_valid_after(begin + timedelta(days=days))
        if uri.startswith("chimera:"):
            uris = [x509.UniformResourceIdentifier(each) for each in uri.split()]
            built = built.add_extension(x509.SubjectAlternativeName(uris), critical=False)
        return built.sign(self.key, hashes.SHA256())


class Node:
    """A node with a certificate, and its client in one round."""

    def __init__(self, authority: Authority, name: str, **options: Any) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = authority.issue(name if ":" in name else f"chimera:node:{name}", self.key, **options)
        self.member = Member(self.certificate.public_bytes(serialization.Encoding.PEM), self.key)
        self.client = Client()
        self.row = self.member.signed(self.client.keys())

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()


HUB = Authority()
OWN, B, C, D = (Node(HUB, name) for name in "abcd")
HONEST = np.stack([each.row for each in (OWN, B, C, D)])
REVOKED = Node(HUB, "x")
CHECK = Participants(HUB.pem, OWN.fingerprint)


def test_a_list_of_certified_nodes_is_accepted() -> None:
    assert OWN.member.fingerprint == OWN.fingerprint
    assert CHECK(HONEST) == 4
    assert Participants(HUB.pem, OWN.fingerprint, known=[B.fingerprint, C.fingerprint, D.fingerprint])(HONEST) == 4
    np.testing.assert_array_equal(keys_in(HONEST)[2], C.client.keys())


def with_row(place: int, row: Bytes) -> Bytes:
    rows = HONEST.copy()
    rows[place] = row
    return rows


def forged_keys() -> Bytes:
    """A server replaces the keys of another node by its own, and cannot sign them."""
    row = B.row.copy()
    row[:64] = Client().keys()
    return with_row(1, row)


def signature_of_another() -> Bytes:
    row = Node(Authority("other"), "b").row
    return with_row(1, row)


def self_signed() -> Bytes:
    other = Authority("other")
    key = ec.generate_private_key(ec.SECP256R1())
    other.key = key
    member = Member(other.issue("chimera:node:b", key).public_bytes(serialization.Encoding.PEM), key)
    return with_row(1, member.signed(Client().keys()))


def issued_by_a_node() -> Bytes:
    """A node signs a certificate with its own key, in the name of the authority."""
    forger = Authority()
    forger.key = B.key
    return with_row(1, Node(forger, "x").row)


FORGED: dict[str, Callable[[], Any]] = {
    "keys of the server": forged_keys,
    "another authority": signature_of_another,
    "self-signed": self_signed,
    "issued by a node": issued_by_a_node,
    "node twice": lambda: np.vstack([HONEST, B.row]),
    "node twice with other keys": lambda: np.vstack([HONEST, B.member.signed(Client().keys())]),
    "one name, two certificates": lambda: np.vstack([HONEST, Node(HUB, "b").row]),
    "own row missing": lambda: HONEST[1:],
    "own row twice": lambda: np.vstack([HONEST, OWN.member.signed(Client().keys())]),
    "requester": lambda: np.vstack([HONEST, Node(HUB, "chimera:requester:alice").row]),
    "no name": lambda: np.vstack([HONEST, Node(HUB, "chimera:node:").row]),
    "two names": lambda: np.vstack([HONEST, Node(HUB, "chimera:node:x chimera:node:y").row]),
    "expired": lambda: np.vstack([HONEST, Node(HUB, "x", begin=NOW - timedelta(days=9), days=8).row]),
    "not valid yet": lambda: np.vstack([HONEST, Node(HUB, "x", begin=NOW + timedelta(days=1)).row]),
    "revoked": lambda: np.vstack([HONEST, REVOKED.row]),
    "zeros": lambda: np.vstack([HONEST, np.zeros(ROW_BYTES, np.uint8)]),
    "ones": lambda: np.vstack([HONEST, np.full(ROW_BYTES, 255, np.uint8)]),
    "keys without certificates": lambda: keys_in(HONEST),
    "other type": lambda: HONEST.astype(np.int64),
    "no array": lambda: [1, 2, 3],
    "too many": lambda: np.zeros((10_001, ROW_BYTES), np.uint8),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_list_is_refused(kind: str) -> None:
    with pytest.raises(PrivacyError) as caught:
        Participants(HUB.pem, OWN.fingerprint, revoked=lambda: {REVOKED.fingerprint})(FORGED[kind]())
    assert "\n" not in str(caught.value)


def test_a_node_with_a_renewed_certificate_is_in_lists_with_either_and_not_with_both() -> None:
    check = Participants(HUB.pem, OWN.fingerprint)
    member = Member(OWN.certificate.public_bytes(serialization.Encoding.PEM), OWN.key)
    member.renew(HUB.issue("chimera:node:a", OWN.key).public_bytes(serialization.Encoding.PEM))
    assert member.fingerprint != OWN.fingerprint
    with_new = with_row(0, member.signed(OWN.client.keys()))
    with pytest.raises(PrivacyError, match="this node is not"):
        check(with_new)
    check.renewed(member.fingerprint)
    assert check(with_new) == check(HONEST) == 4
    with pytest.raises(PrivacyError):
        check(np.vstack([HONEST, member.signed(Client().keys())]))


def test_no_changed_byte_of_keys_signature_or_certificate_passes() -> None:
    length = len(HONEST[1].tobytes().rstrip(b"\0")) - len(B.certificate.signature) - 1  # its bits have two encodings
    for place in range(0, length, 5):
        row = B.row.copy()
        row[place] ^= 1
        with pytest.raises(PrivacyError):
            CHECK(with_row(1, row))


def test_only_known_nodes_count_if_they_are_listed() -> None:
    """A hub that lies can issue certificates to nodes that do not exist."""
    check = Participants(HUB.pem, OWN.fingerprint, known=[B.fingerprint, C.fingerprint])
    assert check(HONEST[:3]) == 3
    with pytest.raises(PrivacyError, match="does not know"):
        check(HONEST)


def test_certificates_that_cannot_be_used() -> None:
    with pytest.raises(ConfigurationError, match="belongs to another key"):
        Member(OWN.certificate.public_bytes(serialization.Encoding.PEM), B.key)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Member(b"x", B.key)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Participants(b"x", "")
    large = HUB.issue("chimera:node:" + "a" * 2000, B.key).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(ConfigurationError, match="too large"):
        Member(large, B.key)


def test_keys_of_an_earlier_round_reveal_nothing() -> None:
    """A server that repeats the keys of other nodes cannot answer for them, so a node reveals nothing."""
    own = Client()
    rows = with_row(0, OWN.member.signed(own.keys()))
    assert CHECK(rows) == 4
    sealed = own.shares(keys_in(rows), 3)
    own.receive(sealed)  # the server has nothing better
    own.mask(np.zeros(4, np.uint32))
    with pytest.raises(PrivacyError, match="nothing is revealed"):
        own.reveal(np.ones(4, np.uint8))


def test_calls_that_share_a_request_are_those_of_the_learner() -> None:
    """The driver names them by its class, and the node by the class that it hosts."""
    assert CertifiedLearner.brief == PrivateWorker.brief == Learner.brief


class Checked(CertifiedLearner):
    """A node's learner behind a check of the list, as its gate makes it."""

    check: Participants

    def share_secrets(self, rows: Bytes) -> Bytes:
        self.check(rows)
        return super().share_secrets(rows)


class CertifiedEngine(Simulated):
    """Virtual time; workers sign their keys and check lists."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [Node(HUB, f"node-{rank}") for rank in range(3)]

    def spawn(self, actor_type: Any, /, *given: Any, name: str | None = None, **named: Any) -> Any:
        if actor_type is PrivateWorker:
            node = self.nodes[given[0]]
            check = Participants(HUB.pem, node.fingerprint)
            kind = type("Here", (Checked,), {"check": check})
            actor_type = partial(PrivateWorker, learner=partial(kind, Learner, node.member))
        return super().spawn(actor_type, *given, name=name, **named)


def trained(engine: Any, out: Path) -> Any:
    options = {"batch_size": 8, "rounds": 2, "workers": 3, "model": {"name": "mlp", "hidden": [4]}, "optimizer": "sgd"}
    strategy = {"name": "fed-avg", "local_steps": 1, "shards": 2}
    privacy = {"clip": 0.1, "secure_aggregation": True}
    with engine:
        return chimera.train(data="digits", engine=engine, out=out, strategy=strategy, privacy=privacy, **options)


@pytest.mark.takes("the first run of a process imports torch")
def test_a_run_with_certified_keys_has_the_same_bits(tmp_path: Path) -> None:
    for place, engine in enumerate((Simulated(), CertifiedEngine())):
        trained(engine, tmp_path / str(place))
    plain, certified = (load_file(tmp_path / str(place) / "weights.safetensors") for place in range(2))
    assert plain.keys() == certified.keys()
    for name, weights in plain.items():
        np.testing.assert_array_equal(weights, certified[name])


def test_a_run_whose_server_replaces_keys_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ParameterShard.public_keys

    def lying(self: ParameterShard, *keys: Bytes) -> Bytes:
        rows = honest(self, *keys).copy()
        rows[1, :64] = Client().keys()
        return rows

    refused: list[str] = []

    def check(self: Checked, rows: Bytes) -> Bytes:
        try:
            return honest_check(self, rows)
        except PrivacyError as error:
            refused.append(str(error))
            raise

    honest_check = Checked.share_secrets
    monkeypatch.setattr(Checked, "share_secrets", check)
    monkeypatch.setattr(ParameterShard, "public_keys", lying)
    with pytest.raises(PrivacyError, match="a client masks once, after it received all shares"):
        trained(CertifiedEngine(), tmp_path / "lying")
    assert refused == ["keys in the list are not signed by a certified node"] * 3


def test_a_gate_refuses_lists_of_too_few_certified_nodes(tmp_path: Path) -> None:
    gate, run = gate_of(tmp_path, MASKED, participants=CHECK), Requests(settings=MASKED_SETTINGS)
    assert gate.request(ALICE, run.start()) == Allowed()
    for rows in (HONEST[:2], forged_keys(), np.vstack([HONEST[:2], HONEST[:2]])):
        assert gate.request(ALICE, run.call("share_secrets", rows)) == Refused(PARTICIPANTS)
        assert gate.request(ALICE, run.update()) == Refused(NOT_ALLOWED)
    assert gate.request(ALICE, run.call("share_secrets", HONEST)) == Allowed()
    assert gate.request(ALICE, run.update()) == Allowed()
    gate.close()
