"""Tests of topologies: mixing weights keep the mean of all workers and converge to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, UnknownNameError
from chimera.strategies.topologies.mixing import Mixing, connected, gap_of, metropolis
from chimera.strategies.topologies.topology import TOPOLOGIES, Topology, topology_of

OF_ANY_SIZE: list[Any] = [
    "complete",
    "exponential",
    {"name": "exponential", "one_peer": True},
    "random-pairs",
    {"name": "random-pairs", "within": "torus", "seed": 3},
    "ring",
    "star",
    "torus",
    ["ring", "star", {"name": "exponential", "one_peer": True}],
]
DIRECTED = [2, 8]
"""Those whose weights are not symmetric in each round."""
sizes = st.integers(1, 17)


def check_mixing(mixing: Mixing, size: int, symmetric: bool = True) -> None:
    matrix = mixing.matrix()
    assert matrix.shape == (size, size)
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-9)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-9)
    if symmetric:
        np.testing.assert_array_equal(matrix, matrix.T)


def test_all_registered_topologies_are_tested() -> None:
    named = {each if isinstance(each, str) else each["name"] for each in OF_ANY_SIZE if not isinstance(each, list)}
    assert named | {"file", "random-regular", "time-varying"} == {entry.name for entry in TOPOLOGIES.entries()}


@pytest.mark.parametrize("place", range(len(OF_ANY_SIZE)))
@settings(deadline=None, max_examples=20)
@given(size=sizes, round_=st.integers(0, 1000))
def test_mixing_weights_are_doubly_stochastic_and_connect_all_workers(place: int, size: int, round_: int) -> None:
    topology = topology_of(OF_ANY_SIZE[place])
    topology.check(size)
    directed = place in [1, *DIRECTED]
    check_mixing(topology.mixing(range(size), round_), size, symmetric=not directed)
    assert topology.mixing(range(size), round_) == topology.mixing(range(size), round_)
    gap = topology.spectral_gap(size)
    assert gap is not None
    assert 0 < gap <= 1 + 1e-9


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 14), st.data())
def test_metropolis_weights_of_any_graph_are_symmetric_and_doubly_stochastic(size: int, data: st.DataObject) -> None:
    places = st.integers(0, size - 1)
    edges = data.draw(st.sets(st.tuples(places, places)))
    mixing = metropolis(size, edges)
    check_mixing(mixing, size)
    graph = networkx.empty_graph(size)
    graph.add_edges_from(edges)
    assert connected([mixing]) == networkx.is_connected(graph)
    assert (gap_of(mixing.matrix()) > 1e-12) == networkx.is_connected(graph)


@settings(deadline=None, max_examples=50)
@given(st.integers(3, 14), st.integers(0, 1000), st.data())
def test_living_workers_stay_connected_after_losses(size: int, seed: int, data: st.DataObject) -> None:
    topology = topology_of(networkx.random_labeled_tree(size, seed=seed))
    topology.check(size)
    living = sorted(data.draw(st.sets(st.integers(0, size), min_size=1)))  # one of them may be a newcomer
    mixing = topology.among(living)(5)
    check_mixing(mixing, len(living))
    assert connected([mixing])


def test_spectral_gaps_match_known_values() -> None:
    for n in (4, 7, 16):
        assert topology_of("ring").spectral_gap(n) == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / n)))
        assert topology_of("star").spectral_gap(n) == pytest.approx(1 / n)
        assert topology_of("complete").spectral_gap(n) == pytest.approx(1)
    # Ying et al. 2021: of 2^k workers, k rounds with one peer each are an exact mean (lemma 1), and the static graph's gap is
    # 2 / (1 + log2 n) (proposition 1).
    for n in (4, 8, 32):
        assert topology_of({"name": "exponential", "one_peer": True}).spectral_gap(n) == pytest.approx(1)
        assert topology_of("exponential").spectral_gap(n) == pytest.approx(2 / (1 + math.log2(n)))
    # Random pairs among all: W_ii = 1/2 on average, and the rest evenly.
    assert topology_of("random-pairs").spectral_gap(8) == pytest.approx(0.5 + 0.5 / 7, abs=0.1)
    assert topology_of("ring").spectral_gap(5000) is None


@settings(deadline=None, max_examples=20)
@given(st.integers(4, 30), st.integers(2, 6), st.integers(0, 100))
def test_random_regular_graphs_are_regular_and_connected(size: int, degree: int, seed: int) -> None:
    topology = topology_of({"name": "random-regular", "degree": degree, "seed": seed})
    if degree >= size or size * degree % 2:
        with pytest.raises(ConfigurationError, match="degree must be below"):
            topology.check(size)
        return
    mixing = topology.mixing(range(size), 0)
    check_mixing(mixing, size)
    assert {len(row) for row in mixing.rows} == {degree + 1}
    assert connected([mixing])


def test_stars_and_tori_have_their_degrees() -> None:
    assert [len(row) for row in topology_of("star").mixing(range(5), 0).rows] == [5, 2, 2, 2, 2]
    assert {len(row) for row in topology_of("torus").mixing(range(12), 0).rows} == {5}
    assert topology_of("torus").mixing(range(7), 0) == topology_of("ring").mixing(range(7), 0)


def test_edge_weights_depend_on_their_own_ends_only() -> None:
    """Metropolis and Hastings: W_ij = 1 / (1 + max(d_i, d_j)), here with degrees 3, 1, 1, 2 and 1."""
    matrix = metropolis(5, [(0, 1), (0, 2), (0, 3), (3, 4)]).matrix()
    found = [matrix[i, j] for i, j in ((0, 1), (0, 2), (0, 3), (3, 4))]
    np.testing.assert_allclose(found, [1 / 4, 1 / 4, 1 / 4, 1 / 3])
    np.testing.assert_allclose(matrix.diagonal(), [1 / 4, 3 / 4, 3 / 4, 5 / 12, 2 / 3])


@pytest.mark.parametrize(("size", "hops"), [(2, [1]), (5, [1, 2, 4]), (8, [1, 2, 4]), (9, [1, 2, 4, 8])])
def test_exponential_graphs_have_hops_of_powers_of_two(size: int, hops: list[int]) -> None:
    whole, one_peer = topology_of("exponential"), topology_of({"name": "exponential", "one_peer": True})
    heard = {(3 - hop) % size for hop in hops}
    assert set(whole.mixing(range(size), 0).neighbours[3 % size].tolist()) == heard
    in_turn = [one_peer.mixing(range(size), round_).neighbours[3 % size].tolist() for round_ in range(len(hops))]
    assert in_turn == [[(3 - hop) % size] for hop in hops]


def test_time_varying_graphs_need_only_connect_together() -> None:
    pairs = [networkx.Graph([(0, 1)]), networkx.Graph([(1, 2)])]
    for graph in pairs:
        graph.add_nodes_from(range(3))
    ordered = [networkx.Graph(), networkx.Graph()]
    for to, graph in zip(ordered, pairs, strict=True):
        to.add_nodes_from(range(3))
        to.add_edges_from(graph.edges)
    topology = topology_of(ordered)
    topology.check(3)
    assert [len(row) for row in topology.mixing(range(3), 0).rows] == [2, 2, 1]
    assert [len(row) for row in topology.mixing(range(3), 3).rows] == [1, 2, 2]
    with pytest.raises(ConfigurationError, match="does not connect 3 workers"):
        topology_of(ordered[:1]).check(3)


def test_a_file_gives_edges_with_weights_or_without(tmp_path: Path) -> None:
    plain, weighted = tmp_path / "plain.txt", tmp_path / "weighted.txt"
    plain.write_text("0 1  # a path\n\n1 2\n")
    weighted.write_text("0 1 0.5\n1 2 0.25\n0 0 0.5\n")
    unweighted = topology_of({"name": "file", "path": str(plain)})
    assert unweighted.mixing(range(3), 0) == metropolis(3, [(0, 1), (1, 2)])
    given = topology_of({"name": "file", "path": str(weighted)})
    np.testing.assert_allclose(given.mixing(range(3), 0).matrix(), [[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]])
    assert given.among([0, 1])(0) == metropolis(2, [(0, 1)])  # without the dead, weights do not fit any more
    assert given.among([0, 2])(0) == metropolis(2, [(0, 1)])  # and no worker is isolated


def test_a_file_may_be_a_matrix_of_neighbours_or_of_weights(tmp_path: Path) -> None:
    neighbours, weights = tmp_path / "neighbours.csv", tmp_path / "weights.csv"
    neighbours.write_text("0, 1, 0  # a path\n1, 1, 1\n0, 1, 0\n")
    weights.write_text("0.5,0.5,0\n0,0.5,0.5\n0.5,0,0.5\n")
    plain, directed = (topology_of({"name": "file", "path": str(path)}) for path in (neighbours, weights))
    assert plain.mixing(range(3), 0) == metropolis(3, [(0, 1), (1, 2)])
    np.testing.assert_allclose(directed.mixing(range(3), 0).matrix(), [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    assert directed.among([0, 1])(0) == metropolis(2, [(0, 1)])
    neighbours.write_text("0,1,0\n1,0,0\n0,0,0\n")
    with pytest.raises(ConfigurationError, match="does not connect 3 workers"):
        topology_of({"name": "file", "path": str(neighbours)}).check(3)


def test_a_directed_graph_needs_weights() -> None:
    circle = networkx.DiGraph()
    circle.add_weighted_edges_from([(0, 1, 0.5), (1, 2, 0.5), (2, 0, 0.5)])
    topology = topology_of(circle)
    topology.check(3)
    assert gap_of(topology.mixing(range(3), 0).matrix()) == pytest.approx(0.5)
    with pytest.raises(ConfigurationError, match="needs weights"):
        topology_of(networkx.DiGraph([(0, 1), (1, 0)]))


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ("0 one", "line 1: '0 one' is not of the form 'i j'"),
        ("0 1\n1", "line 2: '1' is not of the form"),
        ("0 -1", "line 1: '0 -1' is not of the form"),
        ("0 1 0.5 0.5", "line 1: '0 1 0.5 0.5' is not"),
        ("0 1 0.7\n1 2 0.7", "place 1 must be at least 0 and sum to 1"),
        ("0 1 0.5\n0 0 0.2", "place 0 must be at least 0 and sum to 1"),
        ("0 1 0.5\n1 2", "either all edges of a topology have a weight or none"),
        ("# nothing", "has no edges"),
        ("0 1 nan", "place 0 must be at least 0 and sum to 1"),
        ("0,1\n1,0,0", "as many numbers in each row as it has rows, 2"),
        ("0,1\n1,zero", "line 2: '1,zero' is no row of numbers"),
        ("0,1\n0,0", "the matrix is not symmetric"),
        ("0.5,0.5\n0.6,0.4", "that others give place 0 sum to 1.1"),
    ],
)
def test_an_invalid_file_raises_a_one_line_error(tmp_path: Path, lines: str, match: str) -> None:
    (tmp_path / "graph.txt").write_text(lines)
    with pytest.raises(ConfigurationError, match=match) as caught:
        topology_of({"name": "file", "path": str(tmp_path / "graph.txt")})
    assert "\n" not in str(caught.value)


def test_invalid_topologies_raise_a_one_line_error() -> None:
    two_pairs = networkx.Graph([(0, 1), (2, 3)])
    directed = networkx.DiGraph()
    directed.add_weighted_edges_from([(0, 1, 0.5), (1, 2, 0.5)])
    for wrong, match in (
        (two_pairs, "does not connect 4 workers"),
        (networkx.path_graph(3), "has 3 nodes, and there are 4 workers"),
        ([networkx.path_graph(3), "ring"], "has 3 nodes, and there are 4 workers"),
        ({"name": "random-pairs", "within": {"name": "random-regular", "degree": 5}}, "degree must be below"),
    ):
        topology: Topology = topology_of(wrong)
        with pytest.raises(ConfigurationError, match=match):
            topology.check(4)
    for wrong, match in (
        (directed, "that others give place 0 sum to 0.5"),
        (7, "is no name, table"),
        (np.eye(3), r"the topology array\(.*is no name, table"),
        ([], "at least one topology"),
        ({"degree": 3}, "needs a 'name'"),
        ({"name": "random-pairs", "seed": -1}, "seed must be at least 0"),
        ({"name": "random-regular", "degree": 1}, "degree must be at least 2"),
        ({"name": "file", "path": "/nowhere"}, "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=match) as caught:
            topology_of(wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(UnknownNameError, match="ring"):
        topology_of("rign")
