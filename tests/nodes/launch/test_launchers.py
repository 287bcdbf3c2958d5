import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.nodes.launchers.docker import DockerLauncher
from chimera.nodes.launchers.launcher import LauncherError, choose_launcher, configured_workers
from chimera.nodes.launchers.processes import ProcessLauncher, tail, thread_counts
from chimera.nodes.settings import read_settings
from chimera.nodes.state import State, read_state
from nodes.launch.folders import get, wait_for


@pytest.fixture
def settings(folder, monkeypatch):
    """Return the settings of the two plain workers, in their folder as the working folder."""
    monkeypatch.chdir(folder.path)
    return read_settings(workers_nodes_names=folder.names, workers_cpu_shares=[2, 6], workers_mapped_ports=folder.ports)


def answered(port):
    try:
        return json.loads(get(f"http://localhost:{port}/"))
    except OSError:
        return None


def test_a_launcher_starts_and_stops_workers_and_shows_their_logs(settings, folder):
    launcher = ProcessLauncher(settings)
    try:
        launcher.start(configured_workers(settings))
        answers = [wait_for(lambda port=port: answered(port), "a worker answers") for port in folder.ports]
        assert launcher.exited() == {}
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        if "OMP_NUM_THREADS" not in os.environ:
            threads = [int(answer["environment"]["OMP_NUM_THREADS"]) for answer in answers]
            assert threads == thread_counts([2, 6], cores)
        assert "plain worker tree2" in launcher.log("tree2", 1_000)
    finally:
        launcher.stop()
    launcher.stop()
    assert launcher.exited().keys() == {"tree1", "tree2"}
    assert "SIGTERM" in launcher.exited()["tree1"]


def test_a_launcher_stops_the_started_workers_after_a_failed_start(settings, folder, monkeypatch):
    launcher = ProcessLauncher(settings)
    workers = configured_workers(settings)
    (folder.path / "chimera_logs").mkdir()
    (folder.path / "chimera_logs/tree2.log").mkdir()  # in place of the log of the second
    try:
        with pytest.raises(LauncherError, match="cannot start the workers"):
            launcher.start(workers)
    finally:
        launcher.stop()
    assert launcher.exited().keys() == {"tree1"}


@pytest.mark.parametrize(
    ("given", "published", "flag"),
    [
        ({}, "127.0.0.1", "1"),
        ({"token": "secret"}, "127.0.0.1", "1"),
        ({"insecure": True, "workers_host": "0.0.0.0"}, "127.0.0.1", "1"),
        ({"token": "secret", "workers_host": "0.0.0.0"}, "0.0.0.0", "0"),
    ],
)
def test_ports_are_published_beyond_loopback_only_with_a_token_and_a_host_beyond_loopback(
    folder, monkeypatch, given, published, flag
):
    docker = pytest.importorskip("docker")
    monkeypatch.chdir(folder.path)
    names = {"workers_nodes_names": folder.names, "workers_cpu_shares": [2, 6], "workers_mapped_ports": folder.ports}
    settings = read_settings(**names, **given)
    client = docker.DockerClient(base_url="unix:///none.sock", version="1.44")  # contacts no daemon
    options = DockerLauncher(settings, client, print).container_options(configured_workers(settings)[0], 0, "image")
    client.close()
    assert options["ports"] == {"80/tcp": (published, folder.ports[0])}
    assert options["environment"]["CHIMERA_WORKERS_HOST"] == "0.0.0.0"
    assert options["environment"]["CHIMERA_PUBLISHED_ON_LOOPBACK"] == flag


@given(st.lists(st.integers(2, 262_144), min_size=1, max_size=20), st.integers(1, 128))
def test_threads_are_proportional_to_the_shares_and_at_least_one(shares, cores):
    threads = thread_counts(shares, cores)
    assert min(threads) >= 1
    assert threads == thread_counts(shares[::-1], cores)[::-1]
    ordered = [count for _, count in sorted(zip(shares, threads, strict=True))]
    assert ordered == sorted(ordered)
    assert sum(threads) <= cores + len(shares)


def test_auto_chooses_processes_if_no_daemon_answers_and_prints_the_reason(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    lines = []
    assert choose_launcher("auto", settings, lines.append).name == "process"
    (line,) = lines
    assert "no Docker daemon answers" in line
    with pytest.raises(LauncherError, match="no Docker daemon answers"):
        choose_launcher("docker", settings, lines.append)
    with pytest.raises(ConfigurationError, match="'podman' cannot be used; allowed: 'auto'"):
        choose_launcher("podman", settings, lines.append)


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert tail(log, 5) == ""
    log.write_bytes(b"one\ntwo\n\xff three\n")
    assert tail(log, 2) == "two\n\ufffd three\n"
    assert tail(log, None).startswith("one")


def test_a_state_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / ".chimera/nodes.new").mkdir(parents=True)
    with (
        State(tmp_path) as state,
        pytest.raises(ConfigurationError, match=r"cannot write .*nodes.json: Is a directory"),
    ):
        state.write({"master": "x"})


def test_a_state_is_valid_while_its_process_holds_the_lock(tmp_path):
    assert read_state(tmp_path) is None
    with State(tmp_path) as state:
        state.write({"master": "x"})
        assert read_state(tmp_path) == {"pid": os.getpid(), "master": "x"}
        with pytest.raises(ConfigurationError, match=f"process {os.getpid()}; 'chimera nodes down'"), State(tmp_path):
            pass
        kept = (tmp_path / ".chimera/nodes.json").read_text()
    assert read_state(tmp_path) is None
    (tmp_path / ".chimera/nodes.json").write_text(kept)  # as a killed process leaves it
    assert read_state(tmp_path) is None
    with State(tmp_path):
        pass


def test_a_terminal_shows_a_bar_for_each_worker_and_other_outputs_show_lines():
    from io import StringIO

    from rich.console import Console

    from chimera.nodes.startup_display import StartupDisplay

    for terminal in (True, False):
        screen = StringIO()
        console = Console(file=screen, force_terminal=terminal, width=100, soft_wrap=True)
        with StartupDisplay(["tree1", "tree2"], console) as display:
            display.echo("a line")
            display.ready("tree1", "ready after 1.0 s")
        shown = screen.getvalue()
        assert "a line" in shown
        assert "ready after 1.0 s" in shown
        assert ("\N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown) is terminal
        assert ("tree2" in shown) is terminal  # which is not ready yet
