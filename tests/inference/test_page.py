"""The web page and the metrics of a cluster: what they show, and that a dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from chimera.inference.api import operations
from chimera.inference.api.metrics import ClusterMetrics
from chimera.inference.api.serving_routes import QuerySender
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.page import data
from chimera.web.metrics import Metrics
from inference.running import cluster, signalled, until
from inference.test_workers import ECHO, NOW_S, Workers, leads

DASHBOARD = Path(__file__).parents[2] / "docs" / "how-to" / "inference-grafana.json"


@pytest.fixture
def workers() -> Workers:
    return Workers("w0", "w1")


@pytest.fixture
def leader(tmp_path: Path, workers: Workers) -> Iterator[Coordinator]:
    with closing(SqliteJournal(tmp_path / "journal.sqlite")) as journal, leads(journal, workers) as leading:
        yield leading


def shown(leader: Coordinator) -> list[dict[str, object]]:
    """Return the rows of the jobs."""
    return list(leader.call(lambda: data.page(leader))["jobs"])


def submitted(leader: Coordinator, name: str, **options: object) -> str:
    return operations.submit(
        leader,
        key=name,
        name=name,
        model=ECHO,
        queries=list(range(100)),
        batch_size=10,
        **options,  # type: ignore[arg-type]
    )


def test_the_page_says_why_a_job_is_slow(leader: Coordinator, workers: Workers) -> None:
    submitted(leader, "first", max_workers=1)
    first, second = workers.by_name.values()
    until(lambda: first.has or second.has)
    assert shown(leader)[0]["why"] == "--max-workers allows 1"
    submitted(leader, "second", weight=3.0)
    until(lambda: first.has and second.has)
    reasons = [str(row["why"]) for row in shown(leader)]
    assert "it shares 2 workers with 1 other job: its share is 25%" in reasons[0]
    assert "its share is 75%" in reasons[1]
    first.die()
    until(lambda: leader.workers["w0"].state == "lost")
    assert all("w0 hangs or is lost" in str(row["why"]) for row in shown(leader))
    second.die()
    until(lambda: leader.workers["w1"].state == "lost")
    assert all("no worker is available" in str(row["why"]) for row in shown(leader))
    assert leader.losses == {"died": 2, "hung": 0}


def test_the_page_shows_what_each_worker_does_the_fair_rate_and_the_times(
    leader: Coordinator, workers: Workers
) -> None:
    submitted(leader, "first")
    first, second = workers.by_name.values()
    until(lambda: first.has and second.has)
    first.finish(0.5)
    until(lambda: shown(leader)[0]["finished"] == 10)
    page = leader.call(lambda: data.page(leader))
    (job,) = page["jobs"]
    assert (job["median_s"], sum(job["histogram"])) == (0.05, 10)
    assert job["histogram"][data.EDGES_S.index(0.05) + 1] == 10  # the bucket from 50 ms
    assert page["rates"] == {"at_s": NOW_S, "fair": job["rate"], "jobs": {"1": job["rate"]}}
    assert [row["since_s"] for row in page["workers"]] == [NOW_S, NOW_S]
    assert [row["job"] for row in page["workers"]] == ["1", "1"]
    json.dumps(page)


def test_the_history_of_rates_is_that_of_this_coordinator(leader: Coordinator) -> None:
    leading = True

    def led() -> Coordinator:
        if leading:
            return leader
        raise NotCoordinator("another one leads")

    history = data.RateHistory(led)
    for _ in range(1000):
        history.sample()
    assert len(history.samples()) == 720  # an hour
    leading = False
    history.sample()
    assert history.samples() == []


def test_events_are_those_of_all_coordinators_and_bounded(tmp_path: Path) -> None:
    for name, lines in {
        "c0": "2026-01-01 00:00:02,123 WARNING w0 is lost: it died\nTraceback\n2026-01-01 00:00:01,000 INFO c0 has started",
        "c1": "2026-01-01 00:00:03,000 INFO epoch 2: c1 leads, with 3 jobs, after 0.1 s\n" * 5000,
        "w0": "2026-01-01 00:00:02,000 ERROR of a worker",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "chimera_status.log").write_text(lines)
    (tmp_path / "c2").mkdir()
    found = data.events(tmp_path)
    assert len(found) == 100
    assert {event["by"] for event in found} == {"c1"}
    (tmp_path / "c1" / "chimera_status.log").unlink()
    text = "w0 is lost: it died"
    assert data.events(tmp_path) == [{"at": "2026-01-01 00:00:02", "by": "c0", "level": "warning", "text": text}]


def test_events_are_those_of_a_coordinator_and_ten_standbys(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(11)]
    for name in names:
        (tmp_path / name).mkdir()
        text = f"2026-01-01 00:00:03,000 INFO epoch 2: {name} leads, with 3 jobs, after 0.1 s\n"
        (tmp_path / name / "chimera_status.log").write_text(text)
    assert sorted(event["by"] for event in data.events(tmp_path)) == sorted(names)


def test_the_dashboard_asks_for_metrics_that_exist(leader: Coordinator) -> None:
    submitted(leader, "first")
    metrics = Metrics()
    metrics.registry.register(ClusterMetrics(lambda: leader))
    QuerySender(lambda: leader, metrics)
    page = metrics.page().decode()
    names = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {
        name for panel in dashboard["panels"] for target in panel["targets"]
        for name in re.findall(r"chimera_\w+", target["expr"])
    }  # fmt: skip
    assert {re.sub("_bucket$", "", name) for name in asked} <= names
    own = {name for name in names if name.startswith("chimera_inference_") and not name.endswith("_created")}
    assert own <= {re.sub("_bucket$", "", name) for name in asked}  # and shows all of them


def test_a_process_that_stands_by_has_no_metrics_of_jobs() -> None:
    def led() -> Coordinator:
        raise NotCoordinator("another one leads")

    registry = CollectorRegistry()
    registry.register(ClusterMetrics(led))
    assert re.findall(r"^chimera\S* \S+$", generate_latest(registry).decode(), re.MULTILINE) == [
        "chimera_inference_leads 0.0"
    ]


@pytest.mark.long
def test_the_fixed_address_serves_the_page_and_its_data(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=1, options=["--port", "0"]) as running:
        (address,) = re.findall(r"the coordinator is at (http://127.0.0.1:\d+);", (tmp_path / "up.log").read_text())
        token = (running.folder / "token").read_text()
        assert token not in (tmp_path / "up.log").read_text()  # which is no terminal
        with urllib.request.urlopen(f"{address}/", timeout=20) as answer:
            assert "Chimera inference" in answer.read().decode()
        asked = urllib.request.Request(f"{address}/v1/infer/page?history", headers={"Authorization": f"Bearer {token}"})
        job = running.client.submit(running.model(seconds=0.01), list(range(1000)), batch_size=10)
        running.processed(job, 20)
        first = running.member("coordinator")
        signalled(running.pid("w0"), 9)
        signalled(first["pid"], 9)
        running.processed(job, 100)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            page = json.loads(answer.read())
        assert page["epoch"] == 2
        assert [row["job"] for row in page["jobs"]] == [job]
        assert sum(" leads, with " in event["text"] for event in page["events"]) == 2
