"""The connection between members of a group on Ray, tested without Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

from chimera.engines.ray.groups.link import GlooLink, c10d


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[GlooLink]:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda rank: GlooLink(store, rank, 2), range(2)))


class LateByAHair:
    """A collective that ends just after a time limit, before a caller can check whether it has."""

    def __init__(self, work: Any, other_arrives: Callable[[], Any]) -> None:
        self._work, self._other_arrives = work, other_arrives

    def wait(self, *limit: timedelta) -> None:
        try:
            self._work.wait(*limit)
        except RuntimeError:
            self._other_arrives().wait()
            while not self._work.is_completed():
                pass
            raise

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


def test_a_collective_that_ends_just_after_the_time_limit_is_no_failure(links: list[GlooLink]) -> None:
    tensors = [torch.tensor([float(rank)]) for rank in range(2)]
    first, second = (
        lambda link=link, tensor=tensor: link.group.allreduce([tensor], c10d().AllreduceOptions())
        for link, tensor in zip(links, tensors, strict=True)
    )
    assert links[0].done(LateByAHair(first(), second), within_s=0.05)
    assert tensors[0].item() == 1.0


def test_who_gives_up_a_group_ends_it_for_those_who_wait(links: list[GlooLink]) -> None:
    waiting = links[1].group.barrier(c10d().BarrierOptions())
    links.pop(0)
    with pytest.raises(RuntimeError, match=r"(closed|reset) by peer"):
        links[0].done(waiting, within_s=30.0)
