"""What the servers and workers of a run hold: for checkpoints, and for when parameters are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core.engine import Engine
from chimera.training.cluster.sharding import Dealing
from chimera.training.worker.attack import Attack


class Holdings:
    """The part of a `TrainingCluster` that collects it and gives it back."""

    workers: list[Any]
    names: list[str]
    shards: list[Any]
    _engine: Engine
    _dealing: Dealing
    replicas: str
    _places: dict[str, int]
    attacks: dict[str, Attack]
    told: list[tuple[str, str, str]]
    round: int

    @property
    def cut(self) -> Sequence[int]:
        """See `TrainingCluster`, here and below."""
        raise NotImplementedError

    def get(self, refs: Any) -> Any:
        """Return values."""
        raise NotImplementedError

    def servers(self, shards: int) -> Sequence[Any]:
        """Return the parameter shards."""
        raise NotImplementedError

    def on_time(self) -> list[Any]:
        """Return the workers that are not late."""
        raise NotImplementedError

    def deal(self) -> None:
        """Part the data anew."""
        raise NotImplementedError

    def _hand_out(self) -> None:
        raise NotImplementedError

    def forget_local(self) -> None:
        """Have nothing of what workers alone know."""
        self._known: tuple[int, Mapping[str, Any], Mapping[str, Any]] = 0, {}, {}

    def _know(self, local: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Take note of what a checkpoint has of each worker, by name, and of its buffers, by rank."""
        self._known = self.round, local, dict(zip(local, buffers, strict=False))

    def _recall(self, worker: Any, others: Sequence[Any]) -> None:
        """Let a worker that is new here take over from another one, and give it what the one of its name alone knew."""
        round_, local, buffers = self._known
        momenta: Any = {}
        for other in others:
            momenta = other.momenta()
        if worker.name in buffers:
            self.get(worker.load_buffers(buffers[worker.name]))
        if self.get(worker.take_over(momenta, local.get(worker.name, {}))):
            self.told.append(("state restored", worker.name, f"what it alone knew, as of round {round_}"))
        elif worker.name in self._places and any(self.get([other.remembers() for other in others])):
            self.told.append(("state gone", worker.name, "what it alone knew: no checkpoint had it"))

    def _remind(self, worker: Any) -> None:
        """Let a worker attack that is new here, if it is one of those who do."""
        if attack := self.attacks.get(worker.name):
            self.get(worker.attack(attack.kind, attack.scale))

    def parameters(self) -> dict[str, Any]:
        """Return what a loss of parameters would take: the servers', or where there are none, one replica or all.

        Of a model that is cut everybody's.
        """
        holders = [] if self.shards else (self.on_time() or self.workers)[:1]
        if self.replicas == "parts" or (self.replicas == "own" and not self.shards):
            holders = self.workers
        return {
            "servers": self.get([server.state() for server in self.shards]),
            "replicas": {worker.name: self.get(worker.state()) for worker in holders},
        }

    def restore_parameters(self, state: Mapping[str, Any]) -> None:
        """Give servers, or workers where there are none, what `parameters` returned; whose replica is not there, the first."""
        if state["servers"]:
            pairs = zip(self.servers(len(state["servers"])), state["servers"], strict=True)
            self.get([server.restore(held) for server, held in pairs])
            if self.replicas != "parts":
                self.get([worker.forget_answer() for worker in self.workers])
        only = state.get("replica")  # of older checkpoints
        held = {"": only} if only else state.get("replicas")
        if held:
            replicas = {name: self._engine.put(replica) for name, replica in held.items()}
            first = next(iter(replicas.values()))
            self.get([worker.restore(replicas.get(worker.name, first)) for worker in self.workers])

    def state(self) -> dict[str, Any]:
        """Return what servers and workers hold, and who stands where."""
        return {
            **self.parameters(),
            **self._of_workers(),
            "steps": self.get([worker.step() for worker in self.workers]),
            "dealing": self._dealing.state(),
            "cut": self.cut,
            "places": self._places,
            "attacks": {name: (attack.kind, attack.scale) for name, attack in self.attacks.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned, in a cluster that has just been made.

        A worker that was not there then takes the first one's part; if the data was parted among others than are there now, it
        is parted anew. What a worker's codecs and local optimizer remembered goes to the worker of the same name only.
        """
        self.restore_parameters(state)
        self._restore_workers(state)
        self.attacks = {name: Attack(*held) for name, held in state.get("attacks", {}).items()}
        for rank, worker in enumerate(self.workers):
            self._remind(worker)
            self.get(worker.go_to(of_rank(rank, state["steps"])))
        self._dealing.restore(state["dealing"])
        if set(state["places"]) == set(self.names):
            self._places = dict(state["places"])
            self._hand_out()
        else:
            self.deal()

    def _of_workers(self) -> dict[str, Any]:
        """Return what each worker alone knows."""
        state = {
            "buffers": self.get([worker.buffers() for worker in self.workers]),
            "codecs": {worker.name: self.get(worker.codec_states()) for worker in self.workers},
            "local": {worker.name: self.get(worker.local_state()) for worker in self.workers},
        }
        self._know(state["local"], state["buffers"])
        return state

    def _restore_workers(self, state: Mapping[str, Any]) -> None:
        """Give each worker what `_of_workers` returned."""
        codecs = state.get("codecs", {})  # older checkpoints have none
        self.get([worker.restore_codecs(codecs[worker.name]) for worker in self.workers if worker.name in codecs])
        local = state.get("local", {})
        self._know(local, state["buffers"])
        self.get([worker.restore_local(local[worker.name]) for worker in self.workers if worker.name in local])
        for rank, worker in enumerate(self.workers):
            self.get(worker.load_buffers(of_rank(rank, state["buffers"])))


def of_rank(rank: int, held: Sequence[Any]) -> Any:
    """Return what a checkpoint holds for a rank; a worker that was not there then takes the first one's part."""
    return held[rank if rank < len(held) else 0]
