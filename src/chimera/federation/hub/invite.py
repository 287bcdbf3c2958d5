"""Invitations and the state of a hub, for commands beside the running hub."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.federation.audit.journal import add
from chimera.federation.hub.state import State
from chimera.federation.hub.traffic import about
from chimera.federation.identity.authority import Authority, Role
from chimera.federation.identity.invitations import Invitation


@contextmanager
def opened(folder: Path) -> Iterator[State]:
    """Yield the state of an existing hub.

    Raises
    ------
    ConfigurationError : there is no hub in the folder.
    """
    if not (folder / "hub.sqlite").is_file():
        raise ConfigurationError(f"there is no hub in {folder}: {_up(folder)!r} creates one")
    state = State(folder)
    try:
        yield state
    finally:
        state.close()


def invite(folder: Path, role: Role, name: str) -> tuple[str, str]:
    """Store an invitation; return the address of the hub and the code.

    Raises
    ------
    ConfigurationError : there is no hub in the folder, it was never started, or the name has another form.
    ConflictError : a member has this name.
    """
    with opened(folder) as state:
        url = state.fact("url")
        if url is None:
            raise ConfigurationError(f"the hub in {folder} was never started: {_up(folder)!r}")
        invitation = Invitation.new(Authority(folder).fingerprint, state.fact("own_certificate") != "0")
        state.invite(role, name, invitation.digest)
    add(folder, "invited", **about(role, name))
    return url, invitation.code


def revoke(folder: Path, name: str) -> tuple[int, int]:
    """Revoke all certificates and invitations of a name; return the number of certificates, and that of invitations.

    Raises
    ------
    ConfigurationError : there is no hub in the folder, or the name has nothing to revoke.
    """
    with opened(folder) as state:
        revoked, withdrawn = state.revoke(name)
    if not revoked and not withdrawn:
        listing = f"chimera hub nodes --folder {shlex.quote(str(folder))}"
        raise ConfigurationError(f"{name!r} has no certificate or invitation to revoke: {listing!r} lists the members")
    for role, fingerprint in revoked:
        add(folder, "revoked", fingerprint=fingerprint, **about(role, name))
    return len(revoked), withdrawn


def _up(folder: Path) -> str:
    return f"chimera hub up --folder {shlex.quote(str(folder))}"
