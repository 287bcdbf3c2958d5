"""A node of a federation from its folder, its data and its policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from chimera.core.errors import ConfigurationError
from chimera.engines.federation.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import node_actors
from chimera.federation.data.loading import loaded
from chimera.federation.node.budget import budget_of
from chimera.federation.node.revocations import Revocations
from chimera.federation.node.service import Service, serve
from chimera.federation.policy.gate import Gate
from chimera.federation.policy.participants import Member, Participants, certified
from chimera.federation.policy.policy import Policy


def serve_node(
    folder: Path,
    data: Path,
    policy: Policy,
    options: Mapping[str, Any],
    joined: Callable[[Credentials], None],
    on_held: Callable[[int, str], None],
) -> None:
    """Serve the data of a node by its policy until SIGINT or SIGTERM.

    Parameters
    ----------
    folder : folder of the identity; it also keeps answers, the ledger, the audit log and the seed of the division.
    data, options : the data, see `chimera.federation.data.loading.load`.
    joined, on_held : see `Service`.

    Raises
    ------
    ConfigurationError : the folder has no identity, another process serves it, or an option is invalid.
    DataError : the data cannot be read.
    AuditError : the audit log was changed.
    HubRefusedError : the hub does not accept this node.
    """
    credentials = Credentials.read(folder, "node")
    credentials.tls()  # an error for a missing or damaged file, before the data are read
    own = loaded(data, credentials.name, options, folder)
    member = _member(folder)
    revoked = Revocations(folder)
    authority = (folder / AUTHORITY).read_bytes()
    participants = Participants(authority, member.fingerprint, known=policy.known_nodes, revoked=revoked)

    def renewed(certificate: bytes) -> None:
        member.renew(certificate)
        participants.renewed(member.fingerprint)

    training = int((~own.test).sum())
    kinds = certified(node_actors(own, disclosure_of(policy)), member)
    with closing(Gate(policy, folder, rows=lambda: training, participants=participants, revoked=revoked)) as gate:
        budget = budget_of(policy, gate.spent)
        serve(Service(credentials, kinds, gate, lambda: joined(credentials), on_held, revoked, renewed, budget))


def disclosure_of(policy: Policy) -> Disclosure:
    """Return the figures about its data that a node with this policy gives to drivers."""
    release = policy.release
    return Disclosure(
        metrics="merged" if release.metrics else "none",
        named=release.metrics,
        statistics=release.statistics,
        min_rows=policy.limits.min_rows,
        models={name: model.folder for name, model in policy.models.items() if model.folder is not None},
    )


def _member(folder: Path) -> Member:
    """Return the certificate and key of a node.

    Raises
    ------
    ConfigurationError : they cannot be used.
    """
    try:
        key = load_pem_private_key((folder / KEY).read_bytes(), None)
        certificate = (folder / CERTIFICATE).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"the identity in {folder} cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"the key in {folder} is no key of an elliptic curve: join the hub again")
    return Member(certificate, key)
