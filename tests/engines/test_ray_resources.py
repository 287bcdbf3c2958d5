"""Resources of workers and servers are requested from Ray's placement; GPUs and disks are simulated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.engines.ray import Ray
from chimera.engines.ray.groups.nccl_link import has_gpus_of_their_own
from chimera.training.progress.callback import Callback

pytestmark = pytest.mark.long

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def pretended() -> Iterator[None]:
    import ray

    ray.init(
        "local",
        num_cpus=8,
        num_gpus=2,
        resources={"fast_disk": 4},
        object_store_memory=100 << 20,
        include_dashboard=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


class Probe:
    def visible(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


class Member:
    def mean(self, group: Any, number: float) -> Any:
        return group.all_reduce(np.full(3, number, np.float32))


class Bundles(Callback):
    """A callback that reads the reservations while the run continues."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_progress(self, *_: Any) -> None:
        from ray.util import placement_group_table

        groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
        self.seen = [bundle for group in groups for bundle in group["bundles"].values()]


def fit(folder: Path, **options: Any) -> Any:
    strategy = {"name": "parameter-server", "shards": 2}
    return chimera.train("mlp", "digits", engine="ray", workers=2, rounds=4, strategy=strategy, out=folder, **options)


@pytest.mark.usefixtures("pretended")
def test_each_actor_sees_its_own_gpu() -> None:
    with Ray() as engine:
        needs = Resources(gpus=1)
        engine.reserve([needs] * 2)
        probes = [engine.spawn(Probe, resources=needs) for _ in range(2)]
        assert sorted(engine.get([probe.visible() for probe in probes], timeout_s=LIMIT_S)) == ["0", "1"]


@pytest.mark.usefixtures("pretended")
def test_workers_and_servers_are_placed_by_what_they_need(tmp_path: Path) -> None:
    bundles = Bundles()
    needs = {"worker_resources": {"custom": {"fast_disk": 2}}, "server_resources": {"threads": 2}}
    run = fit(tmp_path / "run", callbacks=[bundles], log_every=1, **needs)
    assert run.cost.rounds == 4
    seen = sorted(bundles.seen, key=lambda bundle: bundle["CPU"])
    assert seen == [{"CPU": 1.0, "fast_disk": 2.0}] * 2 + [{"CPU": 2.0}] * 2


@pytest.mark.usefixtures("pretended")
def test_a_gpu_that_ray_gives_and_torch_does_not_see_is_one_line(tmp_path: Path) -> None:
    asked = {"worker_resources": {"gpus": 1}}
    if torch.cuda.device_count() >= 2:
        assert fit(tmp_path / "run", **asked).cost.rounds == 4
        return
    with pytest.raises(ConfigurationError, match=r"torch sees no GPU .* \(CUDA_VISIBLE_DEVICES is '[01]'\)") as caught:
        fit(tmp_path / "run", **asked)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([b"GPU-1", b"GPU-2"], True),
        ([b"GPU-1", b"GPU-1"], False),
        ([b"GPU-1", b"cpu"], False),
        ([b"cpu", b"cpu"], False),
    ],
)
def test_members_meet_on_gpus_only_where_each_has_one_of_its_own(devices: list[bytes], expected: bool) -> None:
    assert has_gpus_of_their_own(devices) is expected


@pytest.mark.usefixtures("pretended")
def test_members_whose_torch_sees_no_gpu_meet_all_the_same() -> None:
    with Ray() as engine:
        members = [engine.spawn(Member, resources=Resources(gpus=1)) for _ in range(2)]
        group = engine.group(members)
        means = engine.get([member.mean(group, rank) for rank, member in enumerate(members)], LIMIT_S)
    assert [mean.tolist() for mean in means] == [[0.5] * 3] * 2
