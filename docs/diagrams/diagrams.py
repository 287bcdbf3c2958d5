"""The diagrams: which run each of them records, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drawing import Look
from recording import Work

BATCH = 16
SECONDS_PER_SAMPLE = 1e-3
SLOW = {"worker 2": 2.2}
LABELS: dict[str, tuple[str, ...]] = {
    "update": ("step",),
    "enclose": ("mean c", "c"),
    "combine": ("step",),
    "compensate": ("correct, step", "step"),
    "add": ("add", "+"),
    "take": ("",),
    "forward": ("F",),
    "backward": ("B",),
    "approach": ("mix",),
    "difference": ("encode",),
    "shuffled": ("encode",),
    "reduced": ("add",),
    "step_reduced": ("step",),
    "step_shuffled": ("step",),
    "mix_and_step": ("gradient, mix, step", "gradient"),
    "track_and_step": ("gradient, mix, step", "gradient"),
    "move_and_step": ("mix, gradient, step", "gradient"),
}
"""Labels of computations, by call; others compute gradients."""


@dataclass(frozen=True)
class Diagram:
    """A diagram of a strategy.

    Attributes
    ----------
    title : what it shows.
    strategy : the name of the strategy.
    options : the options of the strategy.
    workers, rounds : of the run.
    slow : by name, how many times slower than the others an actor computes.
    up, peer : kinds of messages, see `Look`.
    local : whether workers take local steps.
    labels : labels of computations, by call, in place of those of `LABELS`.
    names : names of kinds of messages in the legend, see `Look`.
    keys_below : see `Look`.
    privacy : the protection of the changes.
    hidden : widths of the hidden layers of the network.
    """

    title: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 3
    rounds: int = 2
    slow: Mapping[str, float] = field(default_factory=dict)
    up: str = "gradients"
    peer: str = "models"
    local: bool = False
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    keys_below: int = 0
    privacy: Mapping[str, Any] | None = None
    hidden: tuple[int, ...] = (16,)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run."""
        return {
            "model": {"name": "mlp", "hidden": list(self.hidden)},
            "strategy": {"name": self.strategy, **self.options},
            "workers": self.workers,
            "batch_size": BATCH,
            "rounds": self.rounds,
            "evaluate_every": 1000,
            "log_every": 1000,
            "privacy": self.privacy,
            "optimizer": {"name": "sgd", "lr": 0.1},
            "engine": {
                "name": "simulated",
                "compute": {
                    "seconds_per_sample": SECONDS_PER_SAMPLE,
                    "seconds_per_element": 5e-6,
                    "slow": dict(self.slow),
                },
                "network": {"bandwidth_bytes_s": 3e5},
            },
        }

    def look(self) -> Look:
        """Return how the run is shown."""
        return Look(self.up, self.peer, self._labels, self.names, self.keys_below)

    def _labels(self, work: Work) -> tuple[str, ...]:
        if work.call in self.labels:
            return self.labels[work.call]
        if work.call in LABELS:
            return LABELS[work.call]
        seconds = (work.end_s - work.begin_s) / self.slow.get(work.actor, 1.0)
        batches = int(seconds / (BATCH * SECONDS_PER_SAMPLE) + 1e-6)
        if self.local:
            return (f"{batches} local steps",) if batches > 1 else ("local step", "step")
        return ("gradient" if batches == 1 else f"{batches} gradients",) if batches else ()


def _federated(title: str, strategy: str, **more: Any) -> Diagram:
    """Return a diagram of local steps. The server is slow, so that its box has room for a label."""
    options = {"local_steps": 3, **more.pop("options", {})}
    slow = {"server 0": 5.0, **more.pop("slow", {})}
    return Diagram(title, strategy, options, up="changes", local=True, slow=slow, **more)


_PEERS: dict[str, Any] = {"workers": 4, "up": "models"}
DIAGRAMS: dict[str, Diagram] = {
    "single-worker": Diagram("One worker computes alone", "single-worker", workers=1, rounds=4),
    "parameter-server": Diagram("Workers send gradients, the server steps, all wait", "parameter-server"),
    "parameter-server-shards": Diagram("Two servers hold half of the weights each", "parameter-server", {"shards": 2}),
    "parameter-server-quorum": Diagram(
        "The server does not wait for the slowest worker", "parameter-server", {"quorum": 0.6}, rounds=4, slow=SLOW
    ),
    "double-buffering": Diagram("Workers compute while messages travel", "double-buffering", rounds=3),
    "async-parameter-server": Diagram("No worker waits for another", "async-parameter-server", rounds=9, slow=SLOW),
    "stale-synchronous": Diagram(
        "Fast workers wait when they are one clock ahead",
        "stale-synchronous",
        {"max_staleness": 1},
        rounds=10,
        slow={"worker 2": 4.0},
    ),
    "delay-compensated": Diagram(
        "As asynchronous, with a correction on the server", "delay-compensated", rounds=9, slow=SLOW
    ),
    "all-reduce": Diagram("Workers add gradients together, and step alike", "all-reduce", rounds=3),
    "ring-all-reduce": Diagram("Parts of the sum pass around a ring", "ring-all-reduce", workers=4, peer="sums"),
    "tree-all-reduce": Diagram("Sums go up a tree, the total comes down", "tree-all-reduce", workers=4, peer="sums"),
    "gradient-coding": Diagram(
        "Two of three answers suffice", "gradient-coding", {"stragglers": 1}, slow={"worker 2": 4.0}
    ),
    "replicated": Diagram(
        "The first copy of each block counts", "replicated", {"copies": 2}, workers=4, slow={"worker 2": 4.0}
    ),
    "approximate-coding": Diagram(
        "Three of four answers give an approximate mean",
        "approximate-coding",
        {"copies": 2, "stragglers": 1},
        workers=4,
        slow={"worker 2": 4.0},
    ),
    "coded-distributed-computing": Diagram(
        "One packet serves two workers", "coded-distributed-computing", {"copies": 2}, rounds=1, peer="sums"
    ),
    "local-sgd": _federated("Local steps, then the mean of the weights", "local-sgd", labels={"update": ("mean",)}),
    "fed-avg": _federated("Local steps, then the mean of the changes", "fed-avg", labels={"update": ("mean",)}),
    "fed-avg-fraction": _federated(
        "Half of the clients participate in each round", "fed-avg", options={"fraction": 0.5}, workers=4, rounds=3
    ),
    "fed-avg-edges": _federated(
        "Edge servers take means before the cloud does",
        "fed-avg",
        options={"hierarchical": {"edges": 2, "rounds": 2}},
        workers=4,
        rounds=1,
    ),
    "fed-avg-masks": _federated(
        "Masks hide each change from the server",
        "fed-avg",
        rounds=1,
        names={"changes": "masked changes"},
        labels={"update": ("sum",)},
        keys_below=1000,
        privacy={"clip": 1.0, "noise": 0.0, "secure_aggregation": True},
    ),
    "fed-prox": _federated(
        "Local steps with a proximal term", "fed-prox", labels={"delta": ("3 steps, proximal term", "3 proximal steps")}
    ),
    "scaffold": _federated(
        "Control variates travel with the changes",
        "scaffold",
        labels={"delta": ("3 corrected steps", "3 corrected")},
        names={"weights": "weights, control variate c", "changes": "changes of weights, of c_i"},
    ),
    "fed-nova": _federated(
        "Changes are divided by their gradient weights", "fed-nova", labels={"update": ("normalize",)}
    ),
    "fed-avg-m": _federated("The server steps with momentum", "fed-avg-m", labels={"update": ("momentum",)}),
    "fed-adam": _federated("The server steps by Adam", "fed-adam", labels={"update": ("Adam",)}),
    "fed-yogi": _federated("The server steps by Yogi", "fed-yogi", labels={"update": ("Yogi",)}),
    "fed-adagrad": _federated("The server steps by Adagrad", "fed-adagrad", labels={"update": ("Adagrad",)}),
    "fed-bn": _federated(
        "Biases stay with the clients",
        "fed-bn",
        options={"keep": ["*.bias"]},
        labels={"delta": ("3 local steps, own biases", "3 steps, own biases")},
    ),
    "fed-buff": _federated(
        "The server steps when two results have arrived", "fed-buff", options={"buffer": 2}, rounds=4, slow=SLOW
    ),
    "diloco": _federated("Many local steps between two exchanges", "diloco", options={"local_steps": 6}),
    "streaming-diloco": _federated(
        "Workers continue while a fragment travels",
        "streaming-diloco",
        options={"local_steps": 6, "fragments": 3, "overlap": 1},
        rounds=4,
    ),
    "d-psgd": Diagram("Each worker mixes with both neighbours of a ring", "d-psgd", **_PEERS),
    "gossip-sgd": Diagram("Random pairs average their models", "gossip-sgd", rounds=3, **_PEERS),
    "ad-psgd": Diagram(
        "A worker averages with one neighbour, without a barrier", "ad-psgd", rounds=5, slow=SLOW, **_PEERS
    ),
    "gradient-tracking": Diagram(
        "Models and trackers are mixed", "gradient-tracking", names={"models": "models, and trackers"}, **_PEERS
    ),
    "choco-sgd": Diagram(
        "Workers send encoded changes of their models",
        "choco-sgd",
        peer="changes",
        workers=4,
        names={"changes": "encoded changes"},
    ),
    "pipeline-parallel": Diagram(
        "Four micro-batches flow through three stages",
        "pipeline-parallel",
        rounds=1,
        peer="activations",
        hidden=(16, 16),
    ),
    "tensor-parallel": Diagram(
        "Two workers add the partial results of their slices", "tensor-parallel", workers=2, rounds=1, hidden=(32, 16)
    ),
    "hybrid": Diagram(
        "Two stages of two slices each",
        "hybrid",
        {"stages": 2, "slices": 2},
        workers=4,
        rounds=1,
        peer="activations",
        hidden=(32, 32, 32),
    ),
    "split-learning": Diagram(
        "Clients train in turn, with a server that has the last layers",
        "split-learning",
        up="activations",
        peer="weights",
        rounds=3,
        labels={"train": ("F B",), "update": ("B, step", "step")},
    ),
}
"""The diagrams by the names of their files: at least one for each registered strategy."""
