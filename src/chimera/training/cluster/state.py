"""The state of a run's servers and workers, for checkpoints and for recovery from lost parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chimera.core.engine import Engine
from chimera.training.cluster.sharding import Sharding
from chimera.training.worker.attack import Attack
from chimera.training.worker.local_rounds import PLACE
from chimera.training.worker.local_training import RULE


class ClusterState:
    """The part of a `TrainingCluster` that collects and restores the state of servers and workers."""

    workers: list[Any]
    rank_of: dict[str, int]
    shards: list[Any]
    _engine: Engine
    _sharding: Sharding
    replicas: str
    _places: dict[str, int]
    attacks: dict[str, Attack]
    unreported: list[tuple[str, str, str]]
    round: int

    @property
    def cut(self) -> Sequence[int]:
        """See `TrainingCluster`, also for the following methods."""
        raise NotImplementedError

    def get(self, refs: Any) -> Any:
        """Return values."""
        raise NotImplementedError

    def servers(self, shards: int) -> Sequence[Any]:
        """Return the parameter shards."""
        raise NotImplementedError

    def on_time(self, of: Collection[str] | None = None) -> list[Any]:
        """Return the workers that are not late with a result."""
        raise NotImplementedError

    def reshard(self) -> None:
        """Divide the data again."""
        raise NotImplementedError

    def _hand_out(self) -> None:
        raise NotImplementedError

    def forget_local(self) -> None:
        """Discard the local state of workers that is known from checkpoints."""
        self._known: tuple[int, Mapping[str, Any], Mapping[str, Any]] = 0, {}, {}

    def _know(self, local: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Keep the local state of each worker, by name, and its buffers, by rank, as a checkpoint holds them."""
        self._known = self.round, local, dict(zip(local, buffers, strict=False))

    def _recall(self, worker: Any, others: Sequence[Any]) -> None:
        """Give a new worker the momenta of another worker, and the local state of the lost worker with its name."""
        round_, local, buffers = self._known
        momenta: Any = {}
        for other in others:
            momenta = other.momenta()
        if worker.name in buffers:
            self.get(worker.load_buffers(buffers[worker.name]))
        if self.get(worker.take_over(momenta, local.get(worker.name, {}))):
            self.unreported.append(("state restored", worker.name, f"its local state, as of round {round_}"))
        elif worker.name in self._places and any(self.get([other.remembers() for other in others])):
            self.unreported.append(("state gone", worker.name, "its local state: no checkpoint holds it"))

    def _restore_attack(self, worker: Any) -> None:
        """Make a new worker attack if the worker with its name was an attacker."""
        if attack := self.attacks.get(worker.name):
            self.get(worker.attack(attack.kind, attack.scale))

    def parameters(self) -> dict[str, Any]:
        """Return all state that holds parameters: of the servers or, without servers, of one replica.

        Where replicas differ or the model is split, return the state of all workers.
        """
        holders = [] if self.shards else (self.on_time() or self.workers)[:1]
        if self.replicas == "parts" or (self.replicas == "own" and not self.shards):
            holders = self.workers
        return {
            "servers": self.get([server.state() for server in self.shards]),
            "replicas": {worker.name: self.get(worker.state()) for worker in holders},
        }

    def restore_parameters(self, state: Mapping[str, Any]) -> None:
        """Restore servers, or workers where there are no servers, from what `parameters` returned.

        A worker without a replica of its own in the state gets the first one.
        """
        if state["servers"]:
            pairs = zip(self.servers(len(state["servers"])), state["servers"], strict=True)
            self.get([server.restore(held) for server, held in pairs])
            if self.replicas != "parts":
                self.get([worker.forget_answer() for worker in self.workers])
        only = state.get("replica")  # the form of older checkpoints
        held = {"": only} if only else state.get("replicas")
        if held:
            replicas = {name: self._engine.put(replica) for name, replica in held.items()}
            first = next(iter(replicas.values()))
            self.get([worker.restore(replicas.get(worker.name, first)) for worker in self.workers])

    def return_to(self, state: Mapping[str, Any]) -> None:
        """Restore the parameters of a snapshot, and the local state of workers if the snapshot is a checkpoint.

        Control variates start again, and data that is read in sequence continues.
        """
        self.restore_parameters(_without_controls(state))
        local = {
            name: {key: value for key, value in held.items() if key != PLACE and not key.startswith(RULE)}
            for name, held in state.get("local", {}).items()
        }
        self.get([worker.restore_local(local[worker.name]) for worker in self.workers if worker.name in local])

    def state(self) -> dict[str, Any]:
        """Return the state of servers and workers, and the assignment of data to workers."""
        return {
            **self.parameters(),
            **self._of_workers(),
            "names": [worker.name for worker in self.workers],
            "dealing": self._sharding.state(),
            "cut": self.cut,
            "places": self._places,
            "attacks": {name: (attack.kind, attack.scale) for name, attack in self.attacks.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, in a new cluster.

        A worker that the state does not know takes the state of the first one. If the state was written with other workers,
        the data is divided again. The state of codecs and local optimizers goes to the worker of the same name only.
        """
        self.restore_parameters(state)
        self._restore_workers(state)
        self.attacks = {name: Attack(*held) for name, held in state.get("attacks", {}).items()}
        steps = dict(zip(state.get("names", ()), state["steps"], strict=False))  # older checkpoints have no names
        for rank, worker in enumerate(self.workers):
            self._restore_attack(worker)
            self.get(worker.go_to(steps[worker.name] if worker.name in steps else of_rank(rank, state["steps"])))
        self._sharding.restore(state["dealing"])
        if set(state["places"]) == set(self.rank_of):
            self._places = dict(state["places"])
            self._hand_out()
        else:
            self.reshard()

    def _of_workers(self) -> dict[str, Any]:
        """Return the local state of each worker. All calls are issued at once: nodes can be far away."""
        workers = self.workers
        asked = [
            call for each in workers for call in (each.buffers(), each.codec_states(), each.local_state(), each.step())
        ]
        held = self.get(asked)
        buffers, codecs, local, steps = (held[place::4] for place in range(4))
        names = [worker.name for worker in workers]
        state = {
            "buffers": buffers,
            "codecs": dict(zip(names, codecs, strict=True)),
            "local": dict(zip(names, local, strict=True)),
            "steps": steps,
        }
        self._know(state["local"], state["buffers"])
        return state

    def _restore_workers(self, state: Mapping[str, Any]) -> None:
        """Restore the local state of each worker from what `_of_workers` returned."""
        codecs = state.get("codecs", {})  # older checkpoints have none
        self.get([worker.restore_codecs(codecs[worker.name]) for worker in self.workers if worker.name in codecs])
        local = state.get("local", {})
        self._know(local, state["buffers"])
        self.get([worker.restore_local(local[worker.name]) for worker in self.workers if worker.name in local])
        for rank, worker in enumerate(self.workers):
            known = self._known[2].get(worker.name)  # the checkpoint may be of other workers
            self.get(worker.load_buffers(of_rank(rank, state["buffers"]) if known is None else known))


def of_rank(rank: int, held: Sequence[Any]) -> Any:
    """Return the entry of a rank in a checkpoint; the first entry for a rank that the checkpoint does not have."""
    return held[rank if rank < len(held) else 0]


def _without_controls(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a cluster without control variates: those of workers are of later rounds, so all start again at 0."""
    return {
        **cluster,
        "servers": [{**server, "beside": None} if "beside" in server else server for server in cluster["servers"]],
    }
