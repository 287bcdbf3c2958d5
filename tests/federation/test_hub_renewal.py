"""Certificates are renewed over the connection to the hub after two thirds of their lifetime, if they are not revoked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from chimera.core.errors import ConflictError, DataError
from chimera.engines.federation.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from chimera.engines.federation.renewal import DUE, Renewal, request_for
from chimera.engines.federation.wire.frames import PROTOCOL, REVISION, Hello
from chimera.engines.federation.wire.link import Link
from chimera.federation.audit.verify import verify
from chimera.federation.identity.authority import DAYS, Authority, Role, fingerprint_of, key_pem, new_key
from chimera.federation.node.hosting import _member
from federation.federation_kit import Federation, Running, federation, until
from federation.test_hub_audit import entries

LIFE_S = DAYS * 86_400.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as made:
        yield made


class Peer:
    """A side without calls."""

    busy = False

    def __init__(self) -> None:
        self.times = 0

    def joined(self, *_: Any) -> None:
        self.times += 1

    def received(self, *_: Any) -> None: ...

    def parted(self) -> None: ...


def linked(place: Federation, member: Credentials, later_s: float) -> tuple[Running, list[bytes], Peer]:
    """Connect a member whose clock is ahead; return also its renewed certificates."""
    renewed: list[bytes] = []
    peer, run = Peer(), "0" * 32 if member.role == "requester" else ""
    hello = Hello(PROTOCOL, "boot", "1", run, REVISION)
    running = Running(lambda: Link(member, hello, peer, renewed.append, lambda: time.time() + later_s).run())
    place.stack.callback(running.stop)
    until(lambda: peer.times)
    return running, renewed, peer


def ahead(place: Federation, later_s: float) -> None:
    place.hub.state._clock = lambda: time.time() + later_s


@pytest.mark.parametrize("role", ["node", "requester"])
def test_a_certificate_is_renewed_after_two_thirds_of_its_lifetime(place: Federation, role: Role) -> None:
    member = place.join(role, "m")
    before, key = (member.folder / CERTIFICATE).read_bytes(), (member.folder / KEY).read_bytes()
    ahead(place, LIFE_S * 0.7)
    _, renewed, _ = linked(place, member, LIFE_S * 0.7)
    until(lambda: renewed)
    after = (member.folder / CERTIFICATE).read_bytes()
    assert renewed == [after]
    assert after != before
    assert (member.folder / KEY).read_bytes() == key
    assert member.mistake() == ""
    (known,) = place.hub.state.members()
    assert (known.name, known.revoked, len(place.hub.state.valid())) == ("m", False, 2)  # the former one stays valid
    guests = place.hub._relay.members()
    first = guests[0].serial
    guests[0].port.abort()
    until(lambda: [guest for guest in place.hub._relay.members() if guest.serial != first])
    revoked = {(role, fingerprint_of(pem).hex()) for pem in (before, after)}
    assert set(place.hub.state.revoke("m")[0]) == revoked
    assert not place.hub.state.valid()
    (known,) = place.hub.state.members()
    assert known.revoked
    place.stop_hub()
    (line,) = (entry for entry in entries(place.folder / "hub") if entry["decision"] == "renewed")
    assert (line[role], line["fingerprint"]) == ("m", fingerprint_of(after).hex())
    verify(place.folder / "hub")


def test_before_that_time_nothing_is_renewed(place: Federation) -> None:
    member = place.join("node", "m")
    begin_s = time.time()
    assert Renewal(member, lambda: begin_s + LIFE_S * (DUE - 0.01)).request() is None
    renewal = Renewal(member, lambda: begin_s + LIFE_S * (DUE + 0.01))
    assert renewal.request() is not None
    assert renewal.request() is None  # an hour later, again
    before = (member.folder / CERTIFICATE).read_bytes()
    _, renewed, peer = linked(place, member, LIFE_S * 0.7)  # the hub's clock does not agree
    place.node("other")
    assert (renewed, peer.times, (member.folder / CERTIFICATE).read_bytes()) == ([], 1, before)
    assert len(place.hub.state.valid()) == 2


def test_a_revoked_or_new_certificate_is_not_renewed_and_a_lost_answer_leaves_no_member(place: Federation) -> None:
    member = place.join("node", "m")
    state, authority = place.hub.state, place.hub.authority
    (serial,) = state.valid()

    def sign(role: Role, name: str) -> Any:
        return authority.member(request_for(new_key()), role, name)

    with pytest.raises(ConflictError, match="too new"):
        state.renew(serial, sign)
    ahead(place, LIFE_S * 0.7)
    first, second = state.renew(serial, sign), state.renew(serial, sign)
    assert set(state.valid()) == {serial, second.serial}
    assert first.serial not in state.valid()
    with pytest.raises(ConflictError, match="too new"):
        state.renew(second.serial, sign)
    state.revoke(member.name)
    for each in (serial, second.serial, "77"):
        with pytest.raises(ConflictError, match="revoked, or unknown"):
            state.renew(each, sign)


def test_a_member_takes_no_other_certificate(place: Federation, tmp_path: Path) -> None:
    member = place.join("node", "m")
    before = (member.folder / CERTIFICATE).read_bytes()
    own = _member(member.folder)._key
    authority, other = place.hub.authority, Authority(tmp_path / "other")
    request = request_for(own)
    for pem in (
        b"", b"x" * 100,
        other.member(request, "node", "m").pem,
        authority.member(request, "node", "n").pem,
        authority.member(request, "requester", "m").pem,
        authority.member(request_for(new_key()), "node", "m").pem,
        authority.member(request, "node", "m", DAYS / 2).pem,
    ):  # fmt: skip
        with pytest.raises(DataError, match="the hub sent a renewed certificate"):
            Renewal(member).take(pem)
        assert (member.folder / CERTIFICATE).read_bytes() == before
    (member.folder / AUTHORITY).write_bytes(other.pem)
    with pytest.raises(DataError):
        Renewal(member).take(authority.member(request, "node", "m").pem)
    assert key_pem(own) == (member.folder / KEY).read_bytes()
