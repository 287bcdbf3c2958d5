"""The Ray that the engine uses, and the one that it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from chimera.core.errors import ConfigurationError
from chimera.engines.ray import Ray
from conformance.actors import Relay

LIMIT_S = 60.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"


def own_variables() -> dict[str, str]:
    """Return the variables for Ray, without those that Ray sets itself."""
    return {k: v for k, v in os.environ.items() if k.startswith("RAY_") and k != "RAY_AUTH_MODE"}


@pytest.fixture
def own_session() -> Iterator[None]:
    """Run a Ray that the engine has not started."""
    import ray

    ray.init("local", num_cpus=4, object_store_memory=100 << 20, include_dashboard=False, logging_level="ERROR")
    yield
    processes = psutil.Process().children(recursive=True)
    ray.shutdown()
    psutil.wait_procs(processes, timeout=LIMIT_S)


@pytest.mark.long
def test_a_ray_started_here_serves_this_machine_only_and_ends_with_the_last_engine() -> None:
    import ray

    before = own_variables()
    first = Ray(object_store_bytes=100 << 20, cpus=4)
    second = Ray()
    assert ray.cluster_resources()["CPU"] == 4
    assert ray.cluster_resources()["object_store_memory"] == pytest.approx(100 << 20, rel=0.1)
    children = psutil.Process().children(recursive=True)
    listening = [
        connection.laddr.ip
        for child in children
        for connection in child.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
    first.close()
    assert second.get(second.spawn(Relay).echo("continues"), timeout_s=LIMIT_S) == "continues"
    fetched = second.get(second.put(np.full(100_000, 3, np.float32)), timeout_s=LIMIT_S)
    second.close()
    np.testing.assert_array_equal(fetched, np.full(100_000, 3))
    assert not ray.is_initialized()
    assert [child.pid for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    assert own_variables() == before


@pytest.mark.long
def test_a_session_of_the_users_own_is_used_and_left(own_session: None) -> None:
    import ray

    before = ray.get_runtime_context().get_job_id()
    with Ray() as engine:
        assert engine.get(engine.spawn(Relay).echo(1), timeout_s=LIMIT_S) == 1
    assert ray.is_initialized()
    assert ray.get_runtime_context().get_job_id() == before


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost"])
def test_an_address_without_a_ray_is_the_users_mistake(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"address.*'{address}'"):
        Ray(address=address, working_dir=str(tmp_path))


def test_where_no_ray_was_ever_started_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.services import find_gcs_addresses

    if find_gcs_addresses():
        pytest.skip("another Ray runs on this machine: end it ('ray stop') to test the error without one")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray stores the address of the last cluster
    with pytest.raises(ConfigurationError, match="address 'auto': none runs on this machine"):
        Ray(address="auto", working_dir=str(tmp_path))


def test_a_cluster_that_ray_remembers_and_that_is_gone_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"address 'auto', which is .*:1: .*refused"):
        Ray(address="auto", working_dir=str(tmp_path))


@pytest.mark.long
def test_a_ray_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    command = ["-m", "chimera", "train", EXAMPLE, "--engine", "ray", "--set", "engine.object_store_bytes=1000"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 1, done.stderr
    assert "Ray could not be started: Attempting to cap object store memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_options_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="neither 'pack' nor 'spread'"):
        Ray(placement="anywhere")  # type: ignore[arg-type]
