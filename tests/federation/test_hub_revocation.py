"""Nodes learn which certificates are revoked, and remember it whatever the hub says later."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from chimera.core.errors import ActorError, ActorLost, ConfigurationError, DataError, PrivacyError
from chimera.engines.federation.wire.frames import MAX_REVOKED_CERTIFICATES, PROTOCOL, Hello, Revoked
from chimera.federation.hub.member import ConnectedMember
from chimera.federation.hub.relay import Relay
from chimera.federation.hub.traffic import Traffic
from chimera.federation.identity.authority import fingerprint_of
from chimera.federation.node import revocations
from chimera.federation.node.revocations import FILE_NAME, Revocations
from chimera.federation.policy.requests import REVOKED, Allowed, Call, Decision, Refused, Requester
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, AllowAll, Federation, federation


class Refusing(AllowAll):
    """A gate that refuses revoked requesters only."""

    def __init__(self, revoked: Revocations) -> None:
        self.revoked = revoked

    def request(self, requester: Requester, call: Call) -> Decision:
        return Refused(REVOKED) if requester.fingerprint in self.revoked() else Allowed()


def learned(place: Federation, name: str, certificate: str) -> None:
    """Wait until a node has written a revoked certificate to its folder."""
    while certificate not in Revocations(place.folder / name)():
        threading.Event().wait(0.02)


def test_a_node_learns_of_a_revocation_while_it_is_connected_and_remembers_it(tmp_path: Path) -> None:
    with federation(tmp_path) as place:
        a, b = place.join("node", "a"), place.join("node", "b")
        running = place.node(a)
        place.join("requester", "alice")
        alice = fingerprint_of((tmp_path / "alice" / "certificate.pem").read_bytes()).hex()
        assert CliRunner().invoke(app, ["hub", "revoke", "alice", "--folder", str(tmp_path / "hub")]).exit_code == 0
        learned(place, "a", alice)
        place.node(b)  # it connects later
        learned(place, "b", alice)
        running.stop()
        place.stop_hub()
        place.start_hub()
        place.hub.state._db.write(lambda db: db.execute("UPDATE members SET revoked_s = NULL"))
        place.hub._valid = place.hub.state.valid()
        place.hub._relay._revoked.clear()
        known = Revocations(a.folder)
        assert known() == {alice}
        place.node(a, Refusing(known))
        with place.engine(nodes=["a"]) as engine, pytest.raises((ActorError, ActorLost, PrivacyError), match=REVOKED):
            engine.get(engine.spawn(Counter).add(1), LIMIT_S)


class Port:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def post(self, frame: bytes) -> None:
        from chimera.engines.federation.wire.frames import unpack

        self.sent.append(unpack(frame)[0])

    def release(self) -> None:
        pass


def test_many_revocations_come_in_frames_of_bounded_size_and_none_twice() -> None:
    relay = Relay(Traffic(lambda *_, **__: None), lambda *_: b"")
    many = [number.to_bytes(32, "big") for number in range(2 * MAX_REVOKED_CERTIFICATES + 1)]
    relay.revoke(many[:-1])
    ports: dict[int, Any] = {}
    for revision in (0, 1):
        ports[revision] = Port()
        hello = Hello(PROTOCOL, "x", "0", revision=revision)
        asyncio.run(relay._enter(ConnectedMember("node", f"n{revision}", "1", "f", ports[revision], hello)))
    relay.revoke(many)
    told = [frame.certificates for frame in ports[1].sent if isinstance(frame, Revoked)]
    assert [len(each) for each in told] == [MAX_REVOKED_CERTIFICATES, MAX_REVOKED_CERTIFICATES, 1]
    assert [each for some in told for each in some] == many
    assert not [frame for frame in ports[0].sent if isinstance(frame, Revoked)]  # an older node cannot read it


def test_the_list_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocations, "_MAX_REVOKED", 3)
    known = Revocations(tmp_path)
    known.learn([bytes([number]) * 32 for number in range(3)])
    with pytest.raises(DataError, match="more than 3"):
        known.learn([b"x" * 32])
    assert known() == Revocations(tmp_path)() == {f"{number:02x}" * 32 for number in range(3)}


@pytest.mark.parametrize("content", [b"abc\n", b"\xff" * 64])
def test_a_damaged_list_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigurationError, match="the list of revoked certificates"):
        Revocations(tmp_path)
