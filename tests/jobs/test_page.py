"""The web page of a cluster shows jobs, workers and curves, and nothing without the token."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.jobs.cluster_kit import experiment, json_output, running

from chimera.cli.cluster import _page
from chimera.jobs.cluster.folder import ClusterFolder
from chimera.jobs.daemon.page.stream import point_of

BROWSERS = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]


def shown(browser: str, url: str, profile: Path, says: str) -> str:
    """Return the body of a page once a browser shows a text; on a busy machine this may take some tries."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--dump-dom"]
    options += ["--disable-background-networking", "--virtual-time-budget=5000", f"--user-data-dir={profile}"]
    for _ in range(10):
        done = subprocess.run([browser, *options, url], capture_output=True, text=True, timeout=60, check=True)
        body = done.stdout.partition("<body>")[2].partition("<script>")[0]
        if says in body:
            return body
    raise AssertionError(f"the page does not show {says!r}: {body}")


def first_event(url: str, token: str = "") -> tuple[str, dict]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        kind, data = answer.readline().decode(), answer.readline().decode()
    return kind.removeprefix("event: ").strip(), json.loads(data.removeprefix("data: "))


@pytest.mark.long
@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_shows_jobs_workers_and_curves(browser: str, tmp_path: Path) -> None:
    with running(tmp_path / "runs" / "cluster", page=True) as cluster:
        address = cluster.folder.options().address
        job = json_output("submit", experiment(tmp_path, rounds=60), "--name", "<b>bold</b>", cwd=tmp_path)["job"]
        assert cluster.client.wait(job, 60)["state"] == "done"
        token = cluster.folder.token()
        kind, data = first_event(f"{address}/v1/page/events", token)
        assert kind == "cluster"
        assert [row["state"] for row in data["jobs"]] == ["done"]
        assert [row["role"] for row in data["processes"]] == ["supervisor", "daemon", "worker", "worker"]
        page = shown(browser, f"{address}/#token={token}", tmp_path / "profile", "live · 0 of 2 workers busy")
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>" not in page
    assert page.count("<polyline") >= 3  # loss, accuracy, training loss
    assert 'class="done">done' in page
    assert 'id="lock" hidden=""' in page


@pytest.mark.long
@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_nothing_is_shown_without_the_token(
    browser: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIMERA_INSECURE", "1")  # tokens in clear text beyond loopback
    with running(tmp_path / "cluster", page=True, host=host) as cluster:
        address = f"http://127.0.0.1:{cluster.folder.options().port}"
        for token in ("", "wrong"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                first_event(f"{address}/v1/page/events", token)
            assert refused.value.code == 401
            refused.value.close()
        assert first_event(f"{address}/v1/page/events", cluster.folder.token())[0] == "cluster"
        page = shown(browser, f"{address}/", tmp_path / "profile", "this cluster asks for its token")
    assert 'id="lock" hidden' not in page
    assert "w0" not in page


def test_the_address_with_the_token_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    place = ClusterFolder(tmp_path)
    place.create()
    address = "http://127.0.0.1:8765"
    assert f"{address}/#token={place.token()} " in _page(place, address, terminal=True)
    elsewhere = _page(place, address, terminal=False)
    assert place.token() not in elsewhere
    assert str(tmp_path / "token") in elsewhere


@pytest.mark.parametrize(
    ("line", "point"),
    [
        (b'{"start":{"rounds":20,"loss":null,"metrics":{}}}', {"round": 20, "loss": None, "metrics": {}}),
        (
            b'{"progress":{"rounds":40,"loss":0.5,"metrics":{"accuracy":0.9}}}',
            {"round": 40, "loss": 0.5, "metrics": {"accuracy": 0.9}},
        ),
        (b'{"event":{"event":"worker lost"}}', None),
        (b'{"progress":{"rounds":40', None),
        (b"[]", None),
    ],
)
def test_a_line_of_progress_is_a_point_of_curves(line: bytes, point: dict | None) -> None:
    assert point_of(line) == point
