from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser

import pytest

from chimera.core.errors import ConfigurationError
from chimera.report.html import write_report

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
BROWSERS = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)> & </style>'


class Page(HTMLParser):
    """A strict parser: each element must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(word for word in self.words if word)


def read(path):
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


def lost_worker(runs):
    trace = [row for row in runs.trace_rows(4, 200) if not (row.actor == "worker 2" and row.start_s > 1.5)]
    event = {"event": "worker lost", "seconds": 1.0, "round": 100, "actor": "worker 2", "detail": "killed by signal 9"}
    return runs.make(workers=4, rounds=200, trace=trace, events=[event], lost_workers=1)


def test_the_report_shows_results_settings_and_events(runs):
    _, page = read(write_report(lost_worker(runs)))
    for words in ("accuracy, test set 0.9775", "loss, test set 0.0551", "samples/s 3,210", "rounds 200", "time 2 s"):
        assert words in page.text
    for words in (
        "up from workers 160 kB",
        "lost workers 1",
        "stopped by epochs",
        "killed by signal 9",
        "hidden 32, 32",
    ):
        assert words in page.text
    for words in ("Around the loss of worker 2", "worker 2 (lost) 50.2 %", "machine cores 8", "finished", "a-run"):
        assert words in page.text


def test_the_report_is_one_file_without_scripts_or_external_references(runs):
    folder = lost_worker(runs)
    before = set(folder.iterdir())
    path = write_report(folder)
    assert set(folder.iterdir()) - before == {path} == {folder / "report.html"}
    text, page = read(path)
    assert re.findall(r"(?:https?:|//)\S*", text) == []
    assert not re.search(r"url\(|@import", text)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_each_time_on_a_page_is_marked_if_virtual(runs, engine):
    events = [{"event": "worker lost", "seconds": 0.7, "round": 20, "actor": "worker 1", "detail": "died"}]
    text, page = read(write_report(runs.make(engine=engine, events=events)))
    titles = [str(value) for name, value in page.attributes if name == "title" and "worker lost" in str(value)]
    assert titles
    if engine == "local":
        assert "virtual" not in text.lower()
        return
    assert [title for title in titles if not re.search(r"\d ms virtual: died$", title)] == []
    assert re.findall(r"(?<!virtual )\btime \(", page.text, re.IGNORECASE) == []
    for text_of_time in (
        ">virtual time<",
        "from first to last, virtual",
        "Virtual time breakdown",
        "Virtual time is measured from",
    ):
        assert text_of_time in text
    assert ">time<" not in text


def test_hostile_text_is_escaped_everywhere(runs):
    trace = [
        type(row)(HOSTILE if row.rank == 0 else row.actor, row.rank, row.call, row.start_s, row.end_s)
        for row in runs.trace_rows(2, 60)
    ]
    metrics = [row | {HOSTILE: 1.0} for row in runs.metric_rows(2, 60)]
    folder = runs.make(
        HOSTILE.replace("/", "-"),
        trace=trace,
        metrics=metrics,
        events=[{"event": HOSTILE + " lost", "seconds": 0.1, "round": 1, "actor": HOSTILE, "detail": HOSTILE}],
        stopped_by=HOSTILE,
        strategy=HOSTILE,
    )
    with (folder / "experiment.toml").open("a", encoding="utf-8") as file:
        file.write(f"[\"{HOSTILE.replace(chr(34), '')}\"]\nname = '{HOSTILE}'\n")
    text, page = read(write_report(folder))
    assert not {"script", "img"} & set(page.tags)
    assert text.count("</style>") == 1
    assert page.text.count("alert(1)") >= 8


@pytest.mark.parametrize(
    "missing", ["summary.json", "metrics.jsonl", "trace.jsonl", "experiment.toml", "environment.json"]
)
def test_an_interrupted_run_gets_a_report_of_its_existing_files(runs, missing):
    folder = runs.make()
    (folder / missing).unlink()
    _, page = read(write_report(folder))
    assert ("unfinished" in page.text) == (missing == "summary.json")


def test_a_run_with_settings_only_gets_a_report(runs):
    folder = runs.make(metrics=[], trace=[], finished=False)
    _, page = read(write_report(folder))
    assert "No round has been recorded." in page.text


def test_a_report_can_be_written_again(runs):
    folder = runs.make()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_a_large_run_gives_a_small_report_quickly(runs):
    """100,000 trace rows of 100 workers and 20,000 metric rows give a report far below 1 MB within seconds."""
    folder = runs.make(workers=99, rounds=1000, metrics=runs.metric_rows(99, 20_000))
    began = time.perf_counter()
    path = write_report(folder)
    assert time.perf_counter() - began < 10
    assert path.stat().st_size < 600_000
    _, page = read(path)
    assert "24 of 100 actors" in page.text


def test_a_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="not a run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_shows_the_results(runs, tmp_path, browser):
    path = write_report(lost_worker(runs))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    shown = subprocess.run(
        [browser, *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    page = Page(shown.stdout)
    assert "accuracy, test set 0.9775" in page.text
    assert page.tags.count("svg") >= 6 + 3 * 5  # charts and lanes


def test_the_staleness_histogram_is_drawn_if_the_run_has_one(runs):
    _, page = read(write_report(runs.make("old", staleness={"0": 3, "2": 9, "10": 1})))
    assert "Staleness of applied gradients" in page.text
    assert "13 gradients, 2.15 updates old on average, at most 10." in page.text
    titles = ["0 updates old: 3 gradients", "1 update old: 0 gradients", "2 updates old: 9 gradients"]
    assert all(title in page.text for title in titles)
    assert page.attributes.count(("class", "column")) == 11
    _, page = read(write_report(runs.make("long", staleness={"1": 5, "599": 1})))
    assert page.attributes.count(("class", "column")) == 60
    assert "0 to 9 updates old: 5 gradients" in page.text


@pytest.mark.parametrize("told", [None, {}, [1, 2], {"0": 0}, {"many": 3}, {"1": "<b>"}])
def test_a_run_without_staleness_has_no_chart_of_it(runs, told):
    _, page = read(write_report(runs.make(staleness=told)))
    assert "Staleness" not in page.text


def test_a_metric_that_is_not_finite_is_called_so(runs):
    folder = runs.make()
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"metrics": {"accuracy": 0.5, "loss": None}}))
    _, page = read(write_report(folder))
    assert "not finite" in page.text
    assert "None" not in page.text
