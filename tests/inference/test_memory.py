"""Workers that do not fit in the memory are not started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConfigurationError
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.local_workers import LocalWorkers
from chimera.inference.memory import WORKER_BYTES, available_bytes, check_memory, fitting
from inference.running import cluster

MIB = 1 << 20


def test_the_available_memory_is_that_of_psutil_or_the_rest_of_a_limit() -> None:
    available = available_bytes()
    assert available is not None
    assert 0 < available < psutil.virtual_memory().available + 512 * MIB


def machine(root: Path, groups: str, files: dict[str, Sequence[str]]) -> Path:
    """Write the files of a machine with 1,000 MiB of available memory."""
    texts = {
        "proc/meminfo": ["MemTotal: 2048000 kB", "MemAvailable: 1024000 kB"],
        "proc/self/cgroup": [groups],
        **files,
    }
    for name, lines in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f"{line}\n" for line in lines))
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected_mib"),
    [
        ("0::/a", {}, 1000),
        ("0::/a/b", {"sys/fs/cgroup/a/b/memory.max": ["max"], "sys/fs/cgroup/a/b/memory.current": ["7"]}, 1000),
        (
            "0::/a/b",
            {
                "sys/fs/cgroup/a/memory.max": [str(600 * MIB)],
                "sys/fs/cgroup/a/memory.current": [str(400 * MIB)],
                "sys/fs/cgroup/a/memory.stat": ["anon 1", f"inactive_file {100 * MIB}"],
            },
            300,
        ),
        (
            "4:cpu,memory:/a",  # in a container, the path may be that of the host
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": [str(500 * MIB)],
                "sys/fs/cgroup/memory/memory.usage_in_bytes": [str(900 * MIB)],
            },
            0,
        ),
        ("nonsense", {"sys/fs/cgroup/memory.max": ["x"]}, 1000),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    groups: str, files: dict[str, Sequence[str]], expected_mib: int, tmp_path: Path
) -> None:
    assert available_bytes(machine(tmp_path, groups, files)) == expected_mib * MIB


def test_the_memory_of_another_system_is_unknown_and_not_checked(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    check_memory(1000, "--workers", None)


def test_an_error_names_the_number_of_workers_that_fit() -> None:
    with pytest.raises(ConfigurationError) as error:
        check_memory(700, "--workers", 20_000 * MIB)
    assert str(error.value) == (
        "--workers: 700 workers do not fit in the memory: each needs at least 56 MiB, and 20,000 MiB are available, "
        "so the maximum is 353 workers"
    )
    check_memory(353, "--workers", 20_000 * MIB)
    check_memory(0, "--workers", 0)
    with pytest.raises(ConfigurationError, match="so the maximum is 5 workers"):
        check_memory(6, "the number of workers", WORKER_BYTES, running=4)
    check_memory(3, "the number of workers", 0, running=4)


@pytest.mark.parametrize("workers", ["1000", "1000:1000"])
def test_up_refuses_workers_that_do_not_fit_and_starts_nothing(workers: str, tmp_path: Path) -> None:
    available = available_bytes()
    if available is None or fitting(available) >= 1000:
        pytest.skip(
            f"needs less than {1000 * WORKER_BYTES >> 30} GiB of available memory: run it in a container with a limit"
        )
    done = CliRunner().invoke(app, ["infer", "up", "--workers", workers, "--cluster", str(tmp_path / "cluster")])
    assert done.exit_code != 0
    assert "1,000 workers do not fit in the memory" in str(done.exception) + done.output
    assert not (tmp_path / "cluster").exists()


class _Started:
    def start(self) -> None:
        pass

    def check(self, say: Callable[[str], None]) -> None:
        pass

    def has_ended(self) -> bool:
        return False

    def leave(self) -> None:
        pass


def test_the_number_of_workers_stops_where_the_memory_ends_and_the_console_shows_it() -> None:
    wanted, left, said, made = 2, [5 * WORKER_BYTES], list[str](), list[str]()

    def make(name: str) -> Any:
        made.append(name)
        left[0] -= WORKER_BYTES
        return _Started()

    workers = LocalWorkers(lambda: wanted, make, available=lambda: left[0], adjust_s=0.0, settle_s=0.0)
    workers.start()
    workers.check(said.append)
    wanted = 9
    for _ in range(3):
        workers.check(said.append)
    assert made == ["w0", "w1", "w2", "w3", "w4"]
    warning = "the memory holds at most 5 of the 9 requested workers"
    assert said == ["the cluster has 5 workers now, instead of 2", warning]
    left[0] += WORKER_BYTES  # another program ends
    workers.check(said.append)
    assert len(made) == 6
    wanted = 3
    workers.check(said.append)
    assert said[2:] == ["the cluster has 6 workers now, instead of 5", "the cluster has 3 workers now, instead of 6"]


@pytest.mark.long
def test_scale_refuses_workers_that_do_not_fit(tmp_path: Path) -> None:
    available = available_bytes()
    if available is None or fitting(available) >= 900:
        pytest.skip(
            f"needs less than {900 * WORKER_BYTES >> 30} GiB of available memory: run it in a container with a limit"
        )
    with cluster(tmp_path, workers=1, standbys=0) as running:
        with pytest.raises(ConfigurationError, match="do not fit in the memory"):
            running.client.scale(1000)
        scale = ClusterFolder(running.folder).scale()
        assert scale is not None
        assert scale.count == 1
