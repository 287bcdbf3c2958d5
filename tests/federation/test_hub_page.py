"""The page of a hub: nodes with their presence, runs with their progress, nothing without the token, and no name as HTML."""

from __future__ import annotations

import json
import sqlite3
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from tests.jobs.test_page import BROWSERS, shown

import chimera
from chimera.core.errors import ConfigurationError
from chimera.engines.federation.wire.frames import Budget
from chimera.federation.hub.page import data
from chimera.federation.hub.page.serving import TOKEN, PageServer, place_of
from chimera.federation.hub.sightings import DAY_S, Seen, SeenRun
from chimera.federation.hub.state import State
from chimera.federation.identity.authority import Issued
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, Federation, federation
from federation.processes import Process

RUN = "0" * 31


def asked(page: PageServer, token: str = "", path: str = "v1/hub/page", context: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(
        urllib.request.Request(page.address + path, headers=headers), timeout=30, context=context
    ) as answer:
        return answer.read(), dict(answer.headers)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as made:
        yield made


@pytest.fixture
def page(place: Federation) -> Iterator[PageServer]:
    made = PageServer(place.folder / "hub", "127.0.0.1", 0)
    made.start(*place.hub.server_files)
    yield made
    made.close()


def found(page: PageServer) -> Any:
    return json.loads(asked(page, page.token)[0])


def test_the_page_shows_nodes_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.federation.hub.server._REPORT_S", 0.1)
    with federation(tmp_path) as place:
        page = PageServer(tmp_path / "hub", "127.0.0.1", 0)
        page.start(*place.hub.server_files)
        try:
            _shows_nodes_and_runs(place, page)
        finally:
            page.close()


def _shows_nodes_and_runs(place: Federation, page: PageServer) -> None:
    place.node("a", budget=lambda: Budget(3.0, 8.0, 1e-5, "rows"))
    place.join("node", "b")
    with place.engine(nodes=["a"]) as engine:
        engine.declare({"strategy": {"name": "fed-avg"}, "model": {"name": "mlp"}, "rounds": 8})
        counter = engine.spawn(Counter)
        assert engine.get(counter.add(2), LIMIT_S) == 2
        engine.report(4, 0.5)
        while not ((told := found(page))["runs"] and told["runs"][0]["rounds"] and told["nodes"][0]["epsilon"]):
            pass
    (run,) = told["runs"]
    assert (run["requester"], run["state"], run["strategy"], run["model"]) == ("alice", "running", "fed-avg", "mlp")
    assert (run["rounds"], run["fraction"], run["run"]) == (4, 0.5, engine.key)
    assert run["calls"] >= 2
    assert min(run["bytes_in"], run["bytes_out"]) > 0
    a, b = told["nodes"]
    assert (a["name"], a["state"], a["version"]) == ("a", "connected", chimera.__version__)
    assert (b["name"], b["state"], b["seen_s"], b["presence"]) == ("b", "away", None, [])
    assert a["epsilon"] == {"left": 5.0, "limit": 8.0, "delta": 1e-5, "protects": "rows"}
    assert b["epsilon"] is None
    ((_, until),) = a["presence"]
    assert until == 1.0
    place.stop_hub()
    (run,) = found(page)["runs"]
    assert run["state"] == "ended"
    nodes = found(page)["nodes"]
    assert [(node["state"], node["epsilon"]) for node in nodes] == [("away", a["epsilon"]), ("away", None)]


def test_the_command_serves_the_page_until_it_ends(tmp_path: Path) -> None:
    command = ["hub", "up", "--folder", tmp_path / "hub", "--port", 0, "--page", 0]
    hub = Process("chimera", *command)
    try:
        assert hub.line().startswith("the hub serves at https://127.0.0.1:")
        line = hub.line()
        said, _, file = line.strip().rpartition(" asks for the token, which is in ")
        token = Path(file).read_text()
        assert token not in line
        url = said.removeprefix("the page: ")
        request = urllib.request.Request(f"{url}v1/hub/page", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.loads(answer.read())["runs"] == []
        hub.process.terminate()
        assert hub.process.wait(LIMIT_S) == 0
    finally:
        hub.kill()


def test_nothing_is_shown_without_the_token(page: PageServer) -> None:
    for token in ("", "wrong"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(page, token)
        assert refused.value.code == 401
        refused.value.close()
    content, headers = asked(page, path="")
    assert b"<title>Chimera hub</title>" in content
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert b"http" not in content.replace(b"http://www.w3.org/2000/svg", b"").replace(b"http-equiv", b"")
    assert (page.token_file.stat().st_mode & 0o777, len(page.token) >= 40) == (0o600, True)


def test_beyond_loopback_the_page_uses_tls(place: Federation) -> None:
    page = PageServer(place.folder / "hub", "0.0.0.0", 0)
    page.start(*place.hub.server_files)
    try:
        assert page.address.startswith("https://0.0.0.0:")
        trusting = ssl.create_default_context(cadata=place.hub.authority.pem.decode())
        page._host = "127.0.0.1"
        url = page.address.replace("http://", "https://")
        request = urllib.request.Request(url + "v1/hub/page", headers={"Authorization": f"Bearer {page.token}"})
        with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
            assert json.loads(answer.read())["nodes"] == []
    finally:
        page.close()


def state_with(folder: Path, *names: str) -> tuple[State, list[float]]:
    now_s = [1_800_000_000.0]
    state = State(folder, lambda: now_s[0])
    for number, name in enumerate(names):
        state.invite("node", name, name)
        state.redeem(name, lambda _role, name, number=number: Issued(b"", f"{number}", f"{number:064x}"))
    return state, now_s


def test_presence_of_the_last_day(tmp_path: Path) -> None:
    state, now_s = state_with(tmp_path, "a")
    begin_s = now_s[0]

    def seen(since_h: float, at_h: float, *, here: bool = True) -> None:
        now_s[0] = begin_s + 3600 * at_h
        state.report([Seen("a", begin_s + 3600 * since_h, now_s[0], "1", here)], [])

    for at_h in (0.0, 1.0, 2.0):
        seen(0.0, at_h)
    seen(0.0, 3.0, here=False)
    seen(3.01, 3.01)  # half a minute later
    seen(3.01, 4.0)
    seen(3.01, 4.0, here=False)
    seen(12.0, 12.0)
    seen(12.0, 24.0)
    (node,) = data.page(state, now_s[0])["nodes"]
    assert node["presence"] == [pytest.approx([0, 4 / 24]), pytest.approx([12 / 24, 1])]
    seen(12.0, 27.0)
    (node,) = data.page(state, now_s[0])["nodes"]
    assert node["presence"] == [pytest.approx([0, 1 / 24]), pytest.approx([9 / 24, 1])]
    seen(12.0, 30.0)
    assert len(state.stays()["a"]) == 1
    assert DAY_S == 24 * 3600
    assert data.page(state, now_s[0] + 60)["nodes"][0]["state"] == "away"  # a hub that was killed reports no more
    state.close()


@pytest.mark.parametrize(
    ("spent", "limit", "left"),
    [(2.0, 8.0, 6.0), (9.0, 8.0, 0.0), (None, 8.0, 0.0), (None, None, None), (1.0, None, None)],
)
def test_epsilon_of_the_last_report(tmp_path: Path, spent: Any, limit: Any, left: Any) -> None:
    state, now_s = state_with(tmp_path, "a")
    seen = Seen("a", now_s[0], now_s[0], "1")
    state.report([seen._replace(budget=Budget(spent, limit, 1e-5, "rows"))], [])
    assert data.page(state, now_s[0])["nodes"][0]["epsilon"]["left"] == left
    state.report([seen], [])  # its policy does not release epsilon any more
    assert data.page(state, now_s[0])["nodes"][0]["epsilon"] is None
    state.close()


def test_sums_of_a_run_grow_over_restarts_of_the_hub_and_its_state_follows(tmp_path: Path) -> None:
    state, now_s = state_with(tmp_path)
    state.report([], [SeenRun("r", "alice", "fed-avg", "mlp", 3, 0.3, False, 5, 10, 20)])
    state.report([], [SeenRun("r", "alice", "", "", 0, None, False, 1, 1, 1)])  # the driver has not reported yet
    (run,) = state.runs(10)
    assert run[4:] == ("fed-avg", "mlp", 3, 0.3, False, 6, 11, 21)
    states = [data.page(state, now_s[0] + later_s)["runs"][0]["state"] for later_s in (1, 60, 3600)]
    assert states == ["running", "away", "left"]
    state.report([], [SeenRun("r", "alice", "fed-avg", "mlp", 9, 1.0, True, 0, 0, 0)])
    assert data.page(state, now_s[0])["runs"][0]["state"] == "ended"
    state.close()


def test_a_file_of_a_former_version_opens(tmp_path: Path) -> None:
    state, _ = state_with(tmp_path, "a")
    state.close()
    with closing(sqlite3.connect(tmp_path / "hub.sqlite", isolation_level=None)) as db:
        for table in ("stays", "progress", "budgets"):
            db.execute(f"DROP TABLE {table}")
        db.execute("INSERT INTO runs VALUES ('r', 'alice', 1.0, 2.0)")
    state = State(tmp_path)
    assert data.page(state)["runs"][0]["strategy"] == ""
    state.close()


@pytest.mark.parametrize("text", ["", "x", "1:2:x", "99999", "localhost:", "127.0.0.1:-1", "١"])
def test_a_wrong_place_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--page"):
        place_of(text)


def test_places() -> None:
    assert [place_of(text) for text in ("8080", "0.0.0.0:80", "[::1]:0")] == [
        ("127.0.0.1", 8080),
        ("0.0.0.0", 80),
        ("::1", 0),
    ]


@pytest.mark.long
@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_shows_names_as_text(browser: str, place: Federation, page: PageServer, tmp_path: Path) -> None:
    state = State(place.folder / "hub")
    hostile = "<img src=x onerror=alert(1)>"
    state._db.write(
        lambda db: db.execute("INSERT INTO members VALUES ('1', 'node', ?, 'f', 1.0, NULL)", (f"{hostile}<b>n</b>",))
    )
    state.report(
        [Seen(f"{hostile}<b>n</b>", 4.0, 5.0, f"{hostile}1", False, Budget(1.999, 8.0, 1e-5, "rows"))],
        [SeenRun(f"<i>{RUN}", "<b>alice</b>", hostile, "<u>mlp</u>", 3, 0.5, False, 1, 2, 3)],
    )
    state.close()
    shows = shown(browser, f"{page.address}#token={page.token}", tmp_path / "profile", "live · 0 of 1 node connected")
    for tag in ("<b>", "<img", "<i>", "<u>"):
        assert tag not in shows
    assert "&lt;b&gt;alice&lt;/b&gt;" in shows
    assert ">6 of 8<" in shows  # rounded down
    assert 'id="lock" hidden=""' in shows
    assert (place.folder / "hub" / TOKEN).is_file()
    shows = shown(browser, page.address, tmp_path / "other", "this page asks for its token")
    assert "alice" not in shows
