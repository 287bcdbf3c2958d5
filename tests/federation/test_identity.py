"""Members of a federation: invitations, certificates, and everything that a hub, a node or a driver refuses."""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("websockets")

from chimera.cli.main import app
from chimera.core.errors import ActorLost, ConfigurationError, ConflictError, RunError
from chimera.core.toml import read_toml
from chimera.engines.federation.credentials import AUTHORITY, CERTIFICATE, KEY, MEMBERSHIP, Credentials
from chimera.engines.federation.renewal import request_for
from chimera.engines.federation.wire.link import HubRefusedError
from chimera.federation.hub.state import State
from chimera.federation.identity.authority import Authority, key_pem, new_key
from chimera.federation.identity.invitations import LASTS_S, Invitation
from chimera.federation.identity.join import join
from chimera.federation.policy.policy import Policy
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, Federation, federation


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as made:
        yield made


def forged(place: Federation, credentials: Credentials, authority: Authority, days: float = 1.0, **named: str) -> None:
    """Replace the certificate in a folder by one of this authority."""
    key = new_key()
    role, name = named.get("role", credentials.role), named.get("name", credentials.name)
    made = authority.member(request_for(key), role, name, days)  # type: ignore[arg-type]
    (credentials.folder / KEY).write_bytes(key_pem(key))
    (credentials.folder / CERTIFICATE).write_bytes(made.pem)


def refusal(place: Federation, credentials: Credentials) -> str:
    """Return why the hub refuses a node with these credentials."""
    error = place.node(credentials).ended()
    assert isinstance(error, HubRefusedError), error
    return str(error)


def test_the_key_is_made_at_the_node_and_only_its_owner_can_read_it(place: Federation) -> None:
    member = place.join("node", "hospital-a")
    assert (member.role, member.name, member.hub) == ("node", "hospital-a", place.url)
    assert stat.S_IMODE((member.folder / KEY).stat().st_mode) == 0o600
    stored = b"".join(file.read_bytes() for file in (place.folder / "hub").rglob("*") if file.is_file())
    assert (member.folder / KEY).read_bytes().splitlines()[1] not in stored


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6: use one that was built on a system with IPv6")
def test_a_hub_at_an_ipv6_address_gives_an_address_by_which_nodes_join(tmp_path: Path) -> None:
    with federation(tmp_path, host="::1") as place:
        assert place.url.startswith("https://[::1]:")
        assert place.join("node", "hospital-a").hub == place.url


def test_the_hub_stores_no_secret_of_an_invitation(place: Federation) -> None:
    secret = Invitation.read(place.code("node", "hospital-a")).secret
    assert len(secret) * 8 >= 128
    stored = b"".join(file.read_bytes() for file in (place.folder / "hub").glob("hub.sqlite*"))
    assert secret not in stored
    assert secret.hex().encode() not in stored


def test_a_code_is_good_once(place: Federation) -> None:
    code = place.code("node", "hospital-a")
    join(place.url, code, place.folder / "first")
    with pytest.raises(RunError, match="used already"):
        join(place.url, code, place.folder / "second")
    assert not (place.folder / "second" / CERTIFICATE).exists()


def test_a_code_expires_after_a_day(tmp_path: Path) -> None:
    now_s = [0.0]
    state = State(tmp_path, lambda: now_s[0])
    authority = Authority(tmp_path)
    request = request_for(new_key())
    for name in ("early", "late"):
        state.invite("node", name, name)
    now_s[0] = LASTS_S - 1
    assert state.redeem("early", lambda role, name: authority.member(request, role, name))[1:] == ("node", "early")
    now_s[0] = LASTS_S
    with pytest.raises(ConflictError, match="expired"):
        state.redeem("late", lambda role, name: authority.member(request, role, name))
    state.close()


def test_an_unknown_or_withdrawn_code_is_refused(place: Federation) -> None:
    made_up = Invitation.new(place.hub.authority.fingerprint, True).code
    withdrawn = place.code("node", "hospital-a")
    place.code("node", "hospital-a")  # withdraws the first
    for code in (made_up, withdrawn):
        with pytest.raises(RunError, match="unknown, or was withdrawn"):
            join(place.url, code, place.folder / "x")
    with pytest.raises(ConfigurationError, match="no code of"):
        join(place.url, withdrawn[:-2], place.folder / "x")


def test_another_server_than_the_hub_of_the_code_gets_no_secret(place: Federation, tmp_path: Path) -> None:
    with federation(tmp_path / "other") as other:
        code = place.code("node", "hospital-a")
        with pytest.raises(ConfigurationError, match="another authority"):
            join(other.url, code, tmp_path / "x")
        assert other.hub.state.members() == []
    join(place.url, code, tmp_path / "y")  # the code was not used


def test_a_hub_with_the_certificate_of_another_authority_is_refused_by_the_node(
    place: Federation, tmp_path: Path
) -> None:
    member = place.join("node", "hospital-a")
    with federation(tmp_path / "other") as other:
        said = refusal(place, replace(member, hub=other.url))
    assert "could not prove its identity" in said


def reaches_the_hub(place: Federation, member: Credentials) -> bool:
    """Return whether the hub completes a handshake with this certificate, whatever the member itself would check."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    try:
        with connect(member.websocket(), ssl=member.tls(), close_timeout=0.1) as connection:
            connection.recv(0.0)
    except TimeoutError:
        return True
    except (OSError, EOFError, WebSocketException):
        return False
    return True


@pytest.mark.parametrize("who", ["node", "requester"])
def test_a_member_cannot_pretend_to_be_the_hub(place: Federation, who: str) -> None:
    member = place.join(who, "mallory")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(member.folder / CERTIFICATE, member.folder / KEY)
    client = member.tls()
    client.check_hostname = False
    to_client, from_client, to_server, from_server = (ssl.MemoryBIO() for _ in range(4))
    ours = client.wrap_bio(to_client, from_client, server_side=False)
    theirs = server.wrap_bio(to_server, from_server, server_side=True)
    with contextlib.suppress(ssl.SSLWantReadError):
        ours.do_handshake()
    to_server.write(from_client.read())
    with contextlib.suppress(ssl.SSLWantReadError):
        theirs.do_handshake()
    to_client.write(from_server.read())
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        ours.do_handshake()


def test_a_self_signed_certificate_is_refused(place: Federation, tmp_path: Path) -> None:
    member = place.join("node", "hospital-a")
    assert reaches_the_hub(place, member)
    forged(place, member, Authority(tmp_path / "mallory"))
    assert not reaches_the_hub(place, member)
    assert "not signed by the authority" in refusal(place, member)


def test_an_expired_certificate_is_refused(place: Federation) -> None:
    member = place.join("node", "hospital-a")
    forged(place, member, place.hub.authority, days=-0.01)
    assert not reaches_the_hub(place, member)
    assert "has expired" in refusal(place, member)


def test_a_certificate_that_the_hub_has_not_recorded_is_refused(place: Federation) -> None:
    """A certificate of the authority of which the hub knows nothing, for instance from a stolen backup of its key."""
    member = place.join("node", "hospital-a")
    forged(place, member, place.hub.authority)
    assert "unknown to this hub" in refusal(place, member)


def test_a_role_cannot_be_exchanged(place: Federation) -> None:
    member = place.join("requester", "alice")
    assert "a node is expected" in refusal(place, replace(member, role="node"))
    with pytest.raises(ConfigurationError, match="identity of a requester"):
        Credentials.read(member.folder, "node")


@pytest.mark.parametrize(
    "content", [b"", b'{"hub": "https', b"[]", b'{"hub": 1}', b'{"hub": "\xff", "name": "a", "role": "node"}']
)
def test_a_damaged_file_of_an_identity_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / MEMBERSHIP
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        Credentials.read(tmp_path, "node")
    assert str(caught.value).startswith(f"{file} is damaged (")
    assert str(caught.value).endswith(
        "): restore it from a backup, or delete it and join the hub again with a new code"
    )


@pytest.mark.parametrize("name", [KEY, CERTIFICATE, AUTHORITY])
def test_a_node_whose_identity_lacks_a_file_does_not_start(place: Federation, name: str) -> None:
    member = place.join("node", "hospital-a")
    policy = place.folder / "policy.toml"
    policy.write_text("")
    (member.folder / name).unlink()
    code, said = run("node", "serve", "--data", place.folder, "--policy", policy, "--folder", member.folder)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"error: the identity in {member.folder} cannot be used: ")


def test_a_folder_without_an_identity_and_a_file_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="has no identity: join a hub by"):
            Credentials.read(folder, "node")
    (tmp_path / MEMBERSHIP).mkdir()
    with pytest.raises(ConfigurationError, match=r"membership\.json cannot be read: Is a directory"):
        Credentials.read(tmp_path, "node")


def test_without_a_certificate_only_joining_is_possible(place: Federation) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    member = place.join("node", "hospital-a")
    tls = ssl.create_default_context(cafile=str(member.folder / "authority.pem"))
    for route in ("/node", "/requester", "/", "/other"):
        with connect(f"wss{place.url.removeprefix('https')}{route}", ssl=tls, close_timeout=0.1) as connection:
            if route in ("/node", "/requester"):
                assert b"no certificate" in connection.recv(LIMIT_S)
            with pytest.raises(ConnectionClosed):
                connection.recv(LIMIT_S)


def test_sides_without_a_certificate_are_bounded_and_keep_no_member_out(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    monkeypatch.setattr("chimera.federation.hub.server._MAX_UNAUTHENTICATED", 3)
    member = place.join("node", "hospital-a")
    tls = ssl.create_default_context(cafile=str(member.folder / "authority.pem"))
    url = f"wss{place.url.removeprefix('https')}/join"
    waiting = [place.stack.enter_context(connect(url, ssl=tls, close_timeout=0.1)) for _ in range(3)]
    for each in waiting:
        assert each.recv(LIMIT_S)
    place.join("node", "hospital-b")  # in the place of the oldest
    with pytest.raises(ConnectionClosed):
        waiting[0].recv(LIMIT_S)
    with pytest.raises(TimeoutError):
        waiting[-1].recv(0.01)
    assert place.node(member).error is None


def test_a_revoked_node_is_disconnected_and_stays_out_until_it_joins_again(place: Federation) -> None:
    member = place.join("node", "hospital-a")
    running = place.node(member)
    began_s = time.monotonic()
    result = CliRunner().invoke(app, ["hub", "revoke", "hospital-a", "--folder", str(place.folder / "hub")])
    assert (result.exit_code, "revoked 1 certificate of hospital-a" in result.output) == (0, True)
    error = running.ended()
    assert isinstance(error, HubRefusedError)
    assert "revoked" in str(error)
    assert time.monotonic() - began_s < LIMIT_S / 2
    assert "revoked" in refusal(place, member)
    again = join(place.url, place.code("node", "hospital-a"), place.folder / "again")
    assert place.node(again).error is None


def test_a_revoked_requester_loses_its_connection_and_its_actors(place: Federation) -> None:
    place.node("hospital-a")
    with place.engine() as engine:
        counter = engine.spawn(Counter)
        assert engine.get(counter.add(1), LIMIT_S) == 1
        CliRunner().invoke(app, ["hub", "revoke", "alice", "--folder", str(place.folder / "hub")])
        said = ""
        while not said:
            try:
                engine.get(counter.add(1), LIMIT_S)
            except ActorLost as error:
                said = str(error)
        assert "revoked" in said
    with pytest.raises(HubRefusedError, match="revoked"):
        place.engine()


def test_a_name_belongs_to_one_member(place: Federation) -> None:
    place.join("node", "hospital-a")
    with pytest.raises(ConflictError, match="is a node already"):
        place.code("node", "hospital-a")
    for name in ("", "Hospital", "a b", "x" * 64, "../a", "é"):
        with pytest.raises(ConfigurationError, match="is no name"):
            place.code("node", name)


def test_a_second_process_of_one_identity_ends_the_first(place: Federation) -> None:
    member = place.join("node", "hospital-a")
    first, second = place.node(member), place.node(member)
    assert "another process" in str(first.ended())
    assert second.error is None


def run(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.output


def test_the_commands_invite_join_list_and_name_mistakes_in_one_line(place: Federation) -> None:
    hub = place.folder / "hub"
    code, printed = run("hub", "invite", "hospital-a", "--folder", hub)
    assert code == 0
    folder = place.folder / "a"
    code, said = run(*printed.split()[1:], "--folder", folder)
    assert (code, "as the node hospital-a" in said) == (0, True)
    code, listed = run("hub", "nodes", "--folder", hub)
    assert (code, "hospital-a" in listed, "away" in listed) == (0, True, True)
    policy = place.folder / "policy.toml"
    policy.write_text("")
    mistakes = [
        (2, ("hub", "invite", "A B", "--folder", hub)),
        (1, ("hub", "invite", "hospital-a", "--folder", hub)),
        (2, ("hub", "nodes", "--folder", place.folder / "none")),
        (2, ("node", "join", place.url, "--code", "x", "--folder", place.folder / "b")),
        (2, ("node", "join", "http://127.0.0.1:1", "--code", place.code("node", "b"), "--folder", place.folder / "b")),
        (2, ("node", "serve", "--data", place.folder, "--policy", policy, "--folder", place.folder / "c")),
        (2, ("node", "serve", "--data", place.folder, "--policy", place.folder / "none.toml", "--folder", folder)),
        (2, ("hub", "revoke", "nobody", "--folder", hub)),
        (2, ("hub", "up", "--folder", hub, "--port", "0")),
    ]
    for expected, arguments in mistakes:
        code, said = run(*arguments)
        assert (code, len(said.strip().splitlines())) == (expected, 1), said


def test_revoking_reports_what_was_revoked_and_an_unknown_name_is_an_error(place: Federation) -> None:
    hub = place.folder / "hub"
    revoke = ["hub", "revoke", "hospital-a", "--folder", str(hub)]
    code = place.code("node", "hospital-a")
    assert run(*revoke) == (0, "revoked 1 invitation of hospital-a\n")
    with pytest.raises(RunError, match="unknown, or was withdrawn"):
        join(place.url, code, place.folder / "a")
    place.join("node", "hospital-a")
    assert run(*revoke) == (0, "revoked 1 certificate of hospital-a\n")
    for name in ("hospital-a", "nobody"):
        result = CliRunner().invoke(app, ["hub", "revoke", name, "--folder", str(hub)])
        listing = f"chimera hub nodes --folder {hub}"
        expected = f"error: {name!r} has no certificate or invitation to revoke: {listing!r} lists the members\n"
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", expected)


def test_a_hub_that_ends_leaves_its_whole_state_in_one_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        code, said = run("hub", "up", "--folder", tmp_path, "--port", str(used.getsockname()[1]))
    assert (code, "address already in use" in said) == (2, True)
    assert [path.name for path in tmp_path.glob("hub.sqlite*")] == ["hub.sqlite"]


def test_a_node_without_a_policy_prints_one_and_does_not_start(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["node", "serve", "--data", str(tmp_path), "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: a node needs a policy")
    made = Policy.of(read_toml(result.stdout), tmp_path)
    assert (made.approval, made.secure_aggregation, made.release.metrics) == ("ask", "required", ())
