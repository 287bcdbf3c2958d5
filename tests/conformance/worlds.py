"""The engines under test, with their properties. A further engine is one line in `WORLDS`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import PrivacyError
from chimera.engines.mpi_launch import launch_of
from conformance.node import start_node


@dataclass(frozen=True)
class World:
    """One engine under test.

    Attributes
    ----------
    name : name of the world; also the engine's registered name, unless ``plugin`` gives another.
    virtual_time : whether its clock is simulated.
    real_processes : whether its actors are processes of this machine, which can be killed.
    limit_s : maximum seconds that a test waits for an expected event.
    options : options of the engine.
    plugin : registered name of the engine.
    starts_itself : whether the engine starts, and so ends, all its processes.
    slow : whether the kit takes minutes on it; it then runs with ``-m slow`` only.
    at_leisure : modules and tests of the kit that run on it with ``-m long`` only.
    ground : context that must be active before an engine is created; several engines may use it.
    lacks : parts of the kit that are not in the engine's contract: modules and single tests that do not run, with reasons.
    hides_errors : whether an actor's exception arrives as `PrivacyError` that only names its class, as its text may quote data.
    """

    name: str
    virtual_time: bool
    real_processes: bool
    limit_s: float = 60.0
    options: dict[str, Any] = field(default_factory=dict)
    plugin: str | None = None
    starts_itself: bool = True
    slow: bool = False
    at_leisure: frozenset[str] = frozenset()
    ground: Callable[[], AbstractContextManager[Any]] = nullcontext
    lacks: Mapping[str, str] = field(default_factory=dict)
    hides_errors: bool = False

    def engine(self) -> Engine:
        return ENGINES.create(self.plugin or self.name, self.options)

    def arriving(self, error: type[Exception]) -> type[Exception]:
        """Return the class with which an actor's exception of this class arrives."""
        return PrivacyError if self.hides_errors else error

    def hang(self, relay: Any) -> Any:
        """Make a `Relay` hang: forever, or for a thousand million virtual seconds; return the ref."""
        return relay.wait_for_ever(self.ever)

    @property
    def ever(self) -> int:
        """The argument of `Relay.wait_for_ever` that is long enough."""
        return 10**14 if self.virtual_time else 0

    def compute(self, relay: Any, seconds: float) -> Any:
        """Let a `Relay` work for this long, if nothing slows it; return the ref."""
        return relay.compute(round(seconds * 1e5), 0.0) if self.virtual_time else relay.compute(0, seconds)


@contextmanager
def one_ray_node() -> Iterator[None]:
    """Keep the Ray of one engine alive for the next engines."""
    with ENGINES.create("ray"):
        yield


@contextmanager
def two_ray_nodes() -> Iterator[Any]:
    """Run a cluster of two raylets with separate machine names, and stay in it for the next engines."""
    from ray.cluster_utils import Cluster

    from chimera.engines.ray.session import HEALTH_CHECKS

    node = {"num_cpus": 16, "object_store_memory": 300 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": dict(HEALTH_CHECKS)})
    try:
        del node["include_dashboard"]
        cluster.add_node(**node, resources={"second": 16}, env_vars={"CHIMERA_MACHINE": "second"})
        with ENGINES.create("ray", {"address": cluster.address}):
            yield cluster
    finally:
        cluster.shutdown()


HTTP_OPTIONS: dict[str, Any] = {"nodes": []}
"""Nodes are added when they listen: their ports are any free ones."""

_NO_GROUPS = (
    "nodes do not reach one another, so there are no groups: requesting one is an error (tests/engines/test_http.py)"
)
_NO_HANDLES = "nodes do not reach one another, so handles stay in the driver: sending one is an error"
HTTP_LACKS = {
    "test_groups": _NO_GROUPS,
    "test_group_messages": _NO_GROUPS,
    "test_parts_of_a_call_have_rows_of_their_own": _NO_GROUPS,
    "test_a_message_to_several_members_counts_once_for_its_sender": _NO_GROUPS,
    "test_a_waiting_actor_is_not_silent": _NO_GROUPS,
    "test_a_group_waits_for_a_hanging_member_and_continues": _NO_GROUPS,
    "test_collectives_count_in_both_directions_and_report_waiting": _NO_GROUPS,
    "test_handles": _NO_HANDLES,
}


@contextmanager
def two_nodes() -> Iterator[None]:
    """Run two nodes that host the actors of the kit, as processes."""
    started = [start_node() for _ in range(2)]
    try:
        HTTP_OPTIONS["nodes"] = [node.url() for node in started]
        yield
    finally:
        for node in started:
            node.stop()


HTTP_OPTIONS_IN_DRIVER: dict[str, Any] = {"nodes": []}


@contextmanager
def one_node_without_classes() -> Iterator[None]:
    """Run a node that hosts no class, so that actors run in the driver."""
    from nodes.cluster import foreign_worker

    with foreign_worker({}) as port:
        HTTP_OPTIONS_IN_DRIVER["nodes"] = [f"http://127.0.0.1:{port}"]
        yield


WORLDS = [World("simulated", virtual_time=True, real_processes=False)]
if importlib.util.find_spec("chimera.engines.local") and importlib.util.find_spec("chimera.engines.local.engine"):
    WORLDS.append(
        World(
            "local",
            virtual_time=False,
            real_processes=True,
            options={
                "preload": ["numpy"]
            },  # without torch, even if other tests have imported it: two seconds an engine
            at_leisure=frozenset({"test_disturbance", "test_a_long_computation_is_silent_unless_it_declares_its_work"}),
        )
    )
if importlib.util.find_spec("ray"):
    RAY_AT_LEISURE = frozenset(
        {
            "test_disturbance",
            "test_errors",
            "test_group_messages",
            "test_handles",
            "test_immutability",
            "test_lifetime",
            "test_processes",
            "test_time_limits",
            "test_trace",
        }
    )
    WORLDS.append(World("ray", virtual_time=False, real_processes=True, ground=one_ray_node, at_leisure=RAY_AT_LEISURE))
    WORLDS.append(
        World(
            "ray-two-nodes",
            virtual_time=False,
            real_processes=True,
            options={"placement": "spread"},
            plugin="ray",
            starts_itself=False,
            slow=True,
            ground=two_ray_nodes,
        )
    )


if importlib.util.find_spec("fastapi") and importlib.util.find_spec("uvicorn"):
    WORLDS.append(
        World(
            "http",
            virtual_time=False,
            real_processes=False,
            starts_itself=False,
            ground=two_nodes,
            options=HTTP_OPTIONS,
            lacks=HTTP_LACKS,
        )
    )
    WORLDS.append(
        World(
            "http-in-driver",
            virtual_time=False,
            real_processes=False,
            starts_itself=False,
            plugin="http",
            options=HTTP_OPTIONS_IN_DRIVER,
            ground=one_node_without_classes,
            lacks=HTTP_LACKS,
        )
    )


FEDERATION_OPTIONS: dict[str, Any] = {"nodes": ["node-1", "node-2"]}
"""The identity of the driver is added when the hub has signed it."""


@contextmanager
def hub_with_two_nodes() -> Iterator[None]:
    """Run a hub and two nodes that host the actors of the kit, in threads of this process."""
    from federation.federation_kit import federation

    with TemporaryDirectory() as folder, federation(Path(folder), "node-1", "node-2") as made:
        FEDERATION_OPTIONS["identity"] = str(made.join("requester", "alice").folder)
        yield


if all(map(importlib.util.find_spec, ("websockets", "cryptography"))):
    WORLDS.append(
        World(
            "federation",
            virtual_time=False,
            real_processes=False,
            starts_itself=False,
            ground=hub_with_two_nodes,
            at_leisure=frozenset({"test_disturbance"}),
            options=FEDERATION_OPTIONS,
            lacks=HTTP_LACKS
            | {"test_an_exception_keeps_its_class_and_has_the_remote_traceback": "texts of exceptions may quote data"},
            hides_errors=True,
        )
    )

MPI_LACKS = {
    "test_disturbance": "actors are threads of ranks, which cannot be stopped one by one",
    "test_messages_of_a_hanging_member_arrive_after_its_hang": "actors are threads of ranks",
    "test_nothing_is_left_after": "a job ends with its driver (tests/engines/test_mpi.py)",
    "test_nothing_is_left_after_ctrl_c": "a job ends with its driver (tests/engines/test_mpi.py)",
}
if launch_of().size > 1:  # tests/engines/test_mpi_conformance.py runs the kit as a job
    WORLDS = [
        World("mpi", virtual_time=False, real_processes=False, starts_itself=False, lacks=MPI_LACKS, limit_s=10.0)
    ]


def world_named(name: str) -> World:
    return next(world for world in WORLDS if world.name == name)
