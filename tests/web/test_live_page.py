"""The live page in a browser: it grows, it moves a clock by single events, and it shows runs side by side."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser_kit import Tab, browser
from web.live_kit import append, calls_of, measured, page_of, write_run

STEPS = "views[0].motion"


def clean(tab: Tab, address: str) -> None:
    """Check that the page logged no error, and requested nothing from elsewhere."""
    assert tab.errors == []
    assert tab.requests
    assert all(url.startswith((address, "data:")) for url in tab.requests)


def times_of(trace: Path) -> list[float]:
    """Return the times of the events of slow motion: starts and ends of calls of rounds."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    return sorted(row[key] for row in rows if row["call"] != "tally" for key in ("start_s", "end_s"))


@pytest.mark.takes("it starts a browser")
def test_a_page_grows_steps_by_events_and_shows_text_as_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.open(page.link)
        tab.until(
            "document.querySelectorAll('#charts svg').length === 2 && document.querySelectorAll('.lane').length === 4"
        )
        assert page.token not in tab.evaluate("location.href")
        hostile = "<img src=x onerror=alert(1)>"
        lost = {"event": "worker lost", "seconds": 0.055, "round": 6, "actor": "worker 1", "detail": hostile}
        append(run / "metrics.jsonl", [measured(6, **{hostile: 0.5})])
        append(run / "trace.jsonl", calls_of(5))
        append(run / "events.jsonl", [lost])
        tab.until(
            f"document.body.innerText.includes({json.dumps(hostile)}) && document.querySelectorAll('#charts svg').length === 3"
        )
        assert tab.evaluate("document.querySelectorAll('img').length") == 0
        assert "6" in tab.text(".cards")
        assert tab.evaluate("document.querySelector('.sign.lost').title") == f"worker lost, round 6: {hostile}"
        assert "lost" in tab.text("article table")
        times = times_of(run / "trace.jsonl")
        tab.click("Slow motion")
        tab.until(f"{STEPS}.slow && {STEPS}.calls.events.length === {len(times)}")
        for number in range(1, 12):
            tab.click("Step")
            tab.until(f"{STEPS}.place === {number}")
            assert tab.evaluate(f"{STEPS}.time") == times[number - 1]
        tab.click("Back")
        tab.until(f"{STEPS}.place === 10 && {STEPS}.time === {times[9]!r}")
        tab.evaluate("[...document.querySelectorAll('button')].find(each => each.textContent === 'Step').focus()")
        tab.press("Enter")
        tab.until(f"{STEPS}.place === 11")
        clean(tab, page.address)


@pytest.mark.long
@pytest.mark.takes("it plays for seconds in a browser")
def test_slow_motion_plays_at_its_speed_and_shows_messages_on_edges(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=50)
    times = times_of(run / "trace.jsonl")
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.open(page.link)
        tab.click("Slow motion")
        tab.until(f"{STEPS}.calls.events.length === {len(times)}")
        tab.click("Play")
        tab.until("document.querySelectorAll('.graph .message').length > 0")
        tab.click("Pause")
        place, clock = tab.evaluate(f"[{STEPS}.place, {STEPS}.time]")
        assert place == sum(time <= clock for time in times)
        tab.click("Step")
        tab.until(f"{STEPS}.place === {place + 1}")
        assert tab.evaluate(f"{STEPS}.time") == times[place]
        began, took = tab.evaluate(
            f"""(async () => {{
              {STEPS}.speed.value = "0.01";
              const time = {STEPS}.time, at = performance.now();
              {STEPS}.play();
              await new Promise(done => setTimeout(done, 1500));
              {STEPS}.pause();
              return [{STEPS}.time - time, (performance.now() - at) / 1000];
            }})()"""
        )
        assert began == pytest.approx(0.01 * took, rel=0.2)
        tab.evaluate(f"{STEPS}.speed.value = '1'")
        tab.click("Play")
        tab.until(f"{STEPS}.place === {len(times)} && !{STEPS}.playing")  # it stops at the end of the file
        append(run / "trace.jsonl", calls_of(50))
        tab.click("Step")
        tab.until(f"{STEPS}.place === {len(times) + 1}")
        tab.click("Back to live")
        tab.until(f"!{STEPS}.slow")
        clean(tab, page.address)


@pytest.mark.long
@pytest.mark.takes("it starts a browser")
def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "first"), write_run(tmp_path / "second", strategy="ring-all-reduce", workers=4)
    with page_of(first, second) as page, browser(tmp_path / "profile") as tab:
        tab.size(1280)
        tab.open(page.link)
        tab.until("document.querySelectorAll('.lane').length === 9")
        assert tab.evaluate(
            "[...document.querySelectorAll('#charts svg')].map(svg => svg.querySelectorAll('polyline').length)"
        ) == [2, 2]
        left, right = tab.evaluate(
            "[...document.querySelectorAll('article')].map(each => each.getBoundingClientRect().x)"
        )
        assert right > left
        assert tab.evaluate(
            "[...document.querySelectorAll('article h2 span:nth-child(2)')].map(each => each.innerText)"
        ) == ["first", "second"]
        assert tab.evaluate("views.map(view => view.motion.graph.edges.size)") == [
            3,
            4 + 4,
        ]  # a star; a ring, and the server
        found = "messagesOf(views[0].run.trace.slice().sort((a, b) => a.start - b.start), neighboursOf(views[0].run))"
        sent = tab.evaluate(f"{found}.map(each => [each.from, each.to, each.bytes])")
        up, down = [[each for each in sent if each[place] == "server 0"] for place in (1, 0)]
        assert (len(up), sum(each[2] for each in up)) == (15, 15_000)  # 3 workers, 5 rounds
        assert (len(down), sum(each[2] for each in down)) == (12, 12_000)  # none before the first update
        assert len(sent) == 27
        tab.click("All in slow motion")
        tab.until("views.every(view => view.motion.slow) && !document.querySelector('#all-step').disabled")
        tab.click("Step all")
        tab.until("views.every(view => view.motion.place === 1)")
        tab.click("Play all")
        tab.until("views.every(view => view.motion.playing && view.motion.place > 2)")
        tab.click("Pause all")
        clocks = tab.evaluate("views.map(view => view.motion.time)")
        assert clocks[0] == pytest.approx(clocks[1], rel=0.3)
        tab.click("All back to live")
        tab.until("views.every(view => !view.motion.slow)")
        tab.size(400)
        tab.until("innerWidth === 400")
        assert tab.evaluate("document.documentElement.scrollWidth") == 400
        clean(tab, page.address)


@pytest.mark.long
@pytest.mark.takes("it starts a browser")
def test_a_resumed_run_replaces_rows_after_its_checkpoint(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=8)
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.open(page.link)
        tab.until("views[0].run.metrics.length === 8")
        (run / "metrics.jsonl").write_text("")
        append(run / "metrics.jsonl", [measured(1), measured(2)])
        tab.until("views[0].run.metrics.length === 2 && views[0].run.last.round === 2")
        clean(tab, page.address)


@pytest.mark.long
@pytest.mark.takes("it writes and reads a long trace")
def test_a_page_that_falls_behind_continues_near_the_end(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with page_of(run) as page, browser(tmp_path / "profile") as tab:
        tab.open(page.link)
        tab.until("views[0].run.trace.length === 25 && !views[0].run.partial")
        append(run / "trace.jsonl", [row for round_ in range(5, 15_000) for row in calls_of(round_)])
        last = calls_of(14_999)[-1]["end_s"]
        tab.until(f"views[0].run.clock.horizon === {last!r} && views[0].run.partial")
        assert tab.evaluate("views[0].run.trace.length") <= 20_000
        tab.until("document.body.innerText.includes('Only a part of the calls is counted')")
        clean(tab, page.address)


TRAINED = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [16]
[train]
workers = 3
batch_size = 16
rounds = 5000
log_every = 10
seed = 1
[strategy]
name = "parameter-server"
"""


@pytest.mark.long
@pytest.mark.takes("it trains while a browser shows the run")
def test_a_run_on_local_is_followed_while_a_worker_dies(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TRAINED)
    command = [
        sys.executable,
        "-m",
        "chimera",
        "train",
        "e.toml",
        "--page",
        "--fault",
        "kill worker 1 at step 200",
        "--out",
        "run",
        "--quiet",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as train,
        browser(tmp_path / "profile") as tab,
    ):
        try:
            assert train.stderr is not None
            match = next(
                match for line in train.stderr if (match := re.search(r"the page: (\S+) .* is in (\S+)\)", line))
            )
            link = Path(match[2]).read_text().strip()
            assert Path(match[2]).stat().st_mode & 0o077 == 0
            assert Path(match[2]).parent.stat().st_mode & 0o077 == 0
            tab.open(link)
            first = tab.until("views.length && views[0].run.last.round")
            tab.until(f"views[0].run.last.round > {first} && views[0].run.about.summary.rounds === undefined")
            tab.until("views[0].run.events.some(each => each.event === 'worker respawned')")
            tab.until(
                "document.querySelectorAll('td.strip')[1].querySelectorAll('rect').length === 2"
            )  # there, away, there again
            tab.until("document.querySelector('#status').innerText.includes('has ended')")
            assert tab.text(".cards").split()[1] == "finished"
            assert train.wait(60) == 0
            assert not Path(match[2]).exists()
            clean(tab, match[1])
        finally:
            train.kill()
