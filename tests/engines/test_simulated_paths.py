"""Networks of several places, and devices of clients, on the simulated engine.

Unless a test says otherwise a latency is 1 s, a link carries 1000 bytes/s and a call costs 10 s, so that an array of
250 float32 needs 1 s on each link.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.engines.simulated import Devices, Network, Simulated
from chimera.engines.simulated.models.devices import Device, LogNormal, Pareto
from chimera.engines.simulated.models.network import Connections
from chimera.engines.simulated.models.topology import Racks, TwoLevel
from chimera.training.experiment.experiment import Experiment

TYPICAL = Device(0.01, 1000.0, 2000.0, 0.5)


class Node:
    def make(self, *_: Any) -> Any:
        return np.ones(250, np.float32)

    def take(self, *values: Any) -> int:
        return len(values)

    def meet(self, group: Any) -> None:
        group.all_reduce(np.ones(250, np.float32))


def engine_of(topology: Any, **network: Any) -> Simulated:
    table = {"latency_s": 1.0, "bandwidth_bytes_s": 1000.0, "topology": topology, **network}
    return Simulated(network=table, compute={"seconds_per_call": 10.0})


def upload(topology: Any, clients: int, **network: Any) -> list[tuple[str, float, float]]:
    """Return the spans of clients that make an array each, and of the server that takes all of them."""
    engine = engine_of(topology, **network)
    server = engine.spawn(Node, name="server 0")
    engine.wait([server.take(*[engine.spawn(Node, name=f"worker {k}").make() for k in range(clients)])])
    return [(row.actor, row.start_s, row.end_s) for row in engine.trace()]


FAST = {"bandwidth_bytes_s": math.inf}
FAST_SERVER = {"server 0": FAST}


@pytest.mark.parametrize("clients", [1, 3])
def test_a_network_with_free_trunks_is_a_star(clients: int) -> None:
    star = upload("star", clients)
    assert upload({"name": "two-level", "edges": clients, **FAST}, clients) == star
    assert upload({"name": "racks", "hosts": 2, **FAST}, clients) == star


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_clients_that_share_a_trunk_take_as_many_times_as_long(clients: int) -> None:
    edge = {"name": "two-level", "edges": 1, "bandwidth_bytes_s": 100.0, "latency_s": 3.0}
    rows = upload(edge, clients, nodes=FAST_SERVER)
    # A call reaches a client after 1 + 3 s. An array needs 10 s on the trunk, and the latencies of both ways.
    assert rows[-1][1] == pytest.approx(4 + 10 + 10 * clients + 4)
    apart = upload({**edge, "edges": clients}, clients, nodes=FAST_SERVER)
    assert apart[-1][1] == pytest.approx(4 + 10 + 10 + 4)


def test_edges_are_at_their_trunks_and_keep_traffic_from_them() -> None:
    engine = engine_of({"name": "two-level", "edges": 2, "bandwidth_bytes_s": 10.0, "assignment": {"worker 3": 0}})
    near, far = engine.spawn(Node, name="edge 0"), engine.spawn(Node, name="edge 1")
    clients = [engine.spawn(Node, name=f"worker {k}") for k in range(4)]
    engine.wait([near.take(clients[0].make(), clients[3].make())])
    assert engine.now() == 1 + 10 + 1 + 2 + 10 + 1  # two arrays on the downlink of the edge, and none on a trunk
    engine.wait([far.take(clients[2].make())])
    # From 26 to 36 the client computes; the uplink of edge 0 and the downlink of edge 1 need 100 s each, at once.
    assert engine.now() == 25 + 1 + 10 + 1 + 100 + 10 + 1


def test_a_transfer_over_three_links_takes_the_time_of_the_slowest() -> None:
    engine = engine_of({"name": "racks", "hosts": 1, "bandwidth_bytes_s": 500.0, "downlink_bytes_s": 250.0})
    a, b = (engine.spawn(Node, name=f"worker {k}") for k in range(2))
    engine.wait([b.take(a.make())])
    assert engine.now() == pytest.approx(11 + 1 + 4 + 10 + 1)


def test_uplink_and_downlink_of_a_node_may_differ() -> None:
    engine = engine_of(
        "star", nodes={"worker 0": {"uplink_bytes_s": 100.0, "bandwidth_bytes_s": 500.0}, "server 0": FAST}
    )
    client, server = engine.spawn(Node, name="worker 0"), engine.spawn(Node, name="server 0")
    engine.wait([client.take(server.make())])
    assert engine.now() == pytest.approx(11 + 1 + 2 + 10 + 1)
    engine.wait([server.take(client.make())])
    assert engine.now() == pytest.approx(25 + 1 + 10 + 1 + 10 + 10 + 1)


def test_a_collective_has_its_share_of_a_trunk() -> None:
    def cost_s(topology: Any, order: list[int]) -> float:
        engine = engine_of(topology, nodes={"driver": FAST})
        members = [engine.spawn(Node, name=f"worker {k}") for k in range(4)]
        group = engine.group([members[k] for k in order])
        engine.wait([member.meet(group) for member in members], count=4)
        rows = engine.trace()
        return max(row.end_s for row in rows) - max(row.start_s for row in rows) - 10

    racks = {"name": "racks", "hosts": 2, "bandwidth_bytes_s": 500.0, "latency_s": 2.0}
    assert cost_s("star", [0, 1, 2, 3]) == pytest.approx(6 * 1 + 1.5 * 1)
    # Neighbours in different racks are 1 + 2 + 2 s apart. In the first order one path leaves each rack, else two.
    assert cost_s(racks, [0, 1, 2, 3]) == pytest.approx(6 * 5 + 1.5 * 2)
    assert cost_s(racks, [0, 2, 1, 3]) == pytest.approx(6 * 5 + 1.5 * 4)


def test_a_matrix_has_the_measured_times_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text("from,to,latency_s,bandwidth_bytes_s\n0,server 0,5,100\nserver 0,0,7,1e9\n1,server 0,3,500\n")
    engine = engine_of({"name": "matrix", "path": str(path)})
    a, b, c = (engine.spawn(Node, name=f"worker {k}") for k in range(3))
    server = engine.spawn(Node, name="server 0")
    made = engine.wait([a.make(), b.make(), c.make(), server.make()], count=4)[0]
    assert engine.now() == 12

    def took_s(receiver: Any, value: Any) -> float:
        engine.wait([receiver.take(value)])
        return max(row.start_s for row in engine.trace() if row.call == "take")

    values = {ref.call.node.name: ref for ref in made}
    began_s = engine.now()
    assert took_s(server, values["worker 0"]) - began_s == pytest.approx(5 + 10)
    began_s = engine.now()
    assert took_s(a, values["server 0"]) - began_s == pytest.approx(7 + 1)
    began_s = engine.now()
    assert took_s(b, values["server 0"]) - began_s == pytest.approx(3 + 2)  # the file has the other direction
    began_s = engine.now()
    assert took_s(c, values["worker 1"]) - began_s == pytest.approx(1 + 1)  # the file does not have the pair


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 3000)), max_size=25))
def test_one_client_an_edge_with_a_free_trunk_is_a_star_whatever_is_sent(sent: list[tuple[int, int, int]]) -> None:
    arrivals = []
    for topology in ("star", TwoLevel(edges=10, bandwidth_bytes_s=math.inf)):
        wires = Connections(Network(latency_s=1.0, bandwidth_bytes_s=1000.0, topology=topology))
        device = Device(0.0, 500.0, 1500.0, 2.0)
        server, clients = wires.port("server 0", TYPICAL), [wires.port(f"worker {k}", device) for k in range(10)]
        arrivals.append([
            port.send(other, size, at_s)
            for client, at_s, size in sent
            for port, other in ((clients[client], server), (server, clients[client - 1]))
        ])  # fmt: skip
    assert arrivals[0] == pytest.approx(arrivals[1])


def test_devices_of_a_file_belong_to_their_clients_and_are_drawn_for_others(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("client,seconds_per_sample,latency_s\n0,1,\nworker 1,2,0.1\n", encoding="utf-8")
    devices = Devices(path=str(path))
    assert devices.of(0, "worker 0", TYPICAL) == TYPICAL._replace(seconds_per_sample=1.0)
    assert devices.of(0, "worker 1", TYPICAL) == TYPICAL._replace(seconds_per_sample=2.0, latency_s=0.1)
    assert devices.of(0, "server 0", TYPICAL) == TYPICAL
    drawn = [devices.of(0, f"worker {k}", TYPICAL).seconds_per_sample for k in range(2, 202)]
    assert 60 < drawn.count(1.0) == 200 - drawn.count(2.0) < 140
    engine = Simulated(
        devices={"path": str(path)}, network={"latency_s": 0.0, "nodes": {"worker 1": {"latency_s": 4.0}}}
    )
    assert engine.spawn(Node, name="worker 1")._node.port.latency_s == 4.0  # the table of the node comes first


def test_drawn_devices_have_their_medians_tails_and_correlation() -> None:
    def drawn(model: Any) -> np.ndarray:
        return np.array([model.device(1, f"worker {k}", TYPICAL) for k in range(3000)])

    normal = np.log(drawn(LogNormal(spread=0.8, bandwidth_spread=0.5, correlation=0.9, seconds_per_sample=1.0))[:, :3])
    assert normal.mean(0) == pytest.approx(np.log([1.0, 1000.0, 2000.0]), abs=0.05)
    assert normal.std(0) == pytest.approx([0.8, 0.5, 0.5], abs=0.03)
    assert np.corrcoef(normal[:, 0], normal[:, 1])[0, 1] == pytest.approx(-0.9, abs=0.02)
    pareto = drawn(Pareto(alpha=1.0))
    slower = pareto[:, 0] / 0.01
    assert slower.min() >= 1
    assert [(slower > factor).mean() for factor in (2, 10)] == pytest.approx([1 / 2, 1 / 10], abs=0.03)
    assert (pareto[:, 1:] == TYPICAL[1:]).all()


def test_paths_in_inner_tables_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("client,seconds_per_sample\n0,1\n", encoding="utf-8")
    (tmp_path / "x.toml").write_text(
        'data.name = "digits"\nmodel.name = "mlp"\n[engine]\nname = "simulated"\n'
        'devices.path = "d.csv"\nnetwork.topology = { name = "matrix", path = "m.csv" }\n'
    )
    engine = Experiment.load(tmp_path / "x.toml").tables["engine"]
    assert engine["devices"]["path"] == str(tmp_path / "d.csv")
    assert engine["network"]["topology"]["path"] == str(tmp_path / "m.csv")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"network": {"topology": "ring"}}, "unknown network topology 'ring'"),
        ({"network": {"topology": 5}}, "a network topology is a name or a table with a name, not 5"),
        ({"network": {"topology": "two-level"}}, "network topology 'two-level' needs the option 'edges'"),
        ({"network": {"topology": {"name": "two-level", "edges": 0}}}, "edges must be at least 1, not 0"),
        ({"network": {"topology": {"name": "racks", "hosts": 2, "edges": 1}}}, "has no option 'edges'"),
        (
            {"network": {"topology": {"name": "two-level", "edges": 2, "assignment": {"worker 0": 2}}}},
            "assignment, 'worker 0' = 2 must be 0 or more and less than 2",
        ),
        ({"network": {"topology": {"name": "racks", "hosts": 2, "bandwidth_bytes_s": 0}}}, "must be above zero"),
        ({"network": {"nodes": {"worker 0": {"uplink_bytes_s": 0}}}}, "uplink_bytes_s = 0.0 must be above zero"),
        ({"devices": {"model": "gauss"}}, "unknown device model 'gauss'"),
        ({"devices": {"model": {"name": "pareto", "alpha": 0}}}, "alpha = 0.0 must be above zero"),
        ({"devices": {"model": {"name": "log-normal", "correlation": 2}}}, "correlation = 2.0 must be from -1 to 1"),
        ({"devices": {"model": "pareto", "path": "x"}}, "path and model exclude each other"),
        ({"devices": {"path": "none.csv"}}, "none.csv cannot be read"),
        ({"devices": {"speed": 1}}, "devices has no key 'speed'; its keys: path, model, clients"),
        ({"availability": {"model": {"name": "markov"}}}, "'markov' needs the option 'mean_on_s'"),
        ({"availability": {"model": {"name": "diurnal", "on_s": 1e6}}}, "must be less than period_s"),
        ({"availability": {"period_s": 5}}, "period_s repeats the intervals of a file"),
        ({"availability": {"interrupted": "stop"}}, "it may be 'continue', 'restart'"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_it(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ENGINES.create("simulated", options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_edge_that_the_network_lacks_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="'edge 2' needs edges = 3 or more in the network, not 2"):
        engine_of({"name": "two-level", "edges": 2}).spawn(Node, name="edge 2")
    assert Racks(hosts=3).place_of("worker 7") == 2
