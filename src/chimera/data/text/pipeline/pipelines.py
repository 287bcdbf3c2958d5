"""Input pipelines of actors, which the driver starts, monitors, repairs and stops."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from chimera.core.engine import Engine, Resources
from chimera.core.errors import ConfigurationError
from chimera.data.text.pipeline.orders import PipelineOrder, TextOrder, check
from chimera.data.text.pipeline.stages import Batcher, Filter, Pipeline, Tokenizer
from chimera.data.text.text import Text

Stages: TypeAlias = Literal["fused", "apart"]


class Pipelines:
    """n pipelines, each for its own part of the text. Learner i takes windows from pipeline i mod n.

    With as many pipelines as learners, each learner reads the same windows as without pipelines (`Text.orders`). Fewer
    pipelines are shared: each request returns the next windows, so that two runs in real time differ.

    Parameters
    ----------
    engine : where the stages run. Its actors must be able to call one another.
    text : the text to read.
    pipelines : number of pipelines; at most the number of learners, or parts of the text would not be read.
    learners : number of learners at the start.
    seed : seed of sub-sampling.
    stages : ``"fused"``: one actor per pipeline; ``"apart"``: a tokenizer, a filter and a batcher, with queues between them.
    ahead : number of calls that each stage, and each learner, keeps in flight on the stage before it.
    resources : resources that each stage needs.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        *,
        pipelines: int = 1,
        learners: int,
        seed: int = 0,
        stages: Stages = "fused",
        ahead: int = 2,
        resources: Resources | None = None,
    ) -> None:
        if not 1 <= pipelines <= learners:
            raise ConfigurationError(
                f"pipelines = {pipelines}: 1 to {learners} are allowed, at most the number of learners"
            )
        if stages not in ("fused", "apart"):
            raise ConfigurationError(f"the stages {stages!r} are unknown; known: fused, apart")
        if ahead < 0:
            raise ConfigurationError(f"ahead is {ahead}: it must be 0 or more")
        check(learners, 1, seed)
        self._engine, self._text, self._sent = engine, text, engine.put(text)
        self._seed, self._ahead, self._resources = seed, ahead, resources
        kinds = ("pipeline",) if stages == "fused" else ("tokenizer", "filter", "batcher")
        self._stages: list[dict[str, Any]] = [dict.fromkeys(kinds) for _ in range(pipelines)]
        self.replace_lost()

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def actors(self) -> list[Any]:
        """The handles of all stages."""
        return [actor for stages in self._stages for actor in stages.values() if actor is not None]

    def orders(
        self, world_size: int, batch_size: int, *, since: int = 0, begin: int = 0, report_fill: bool = False
    ) -> list[PipelineOrder]:
        """Return the order of each learner. The orders change when stages are replaced, and when learners join or leave.

        Parameters
        ----------
        since, begin : first step of the orders, and the number of windows that all learners took before it.
        report_fill : whether learners report the fill of their queues, see `PipelineOrder`.
        """
        check(world_size, batch_size, self._seed)
        pipelines, windows = len(self), len(self._text)
        steps, share = windows / (world_size * batch_size), windows / world_size
        found = []
        for learner in range(world_size):
            place, index = divmod(learner, pipelines)
            sharing = len(range(index, world_size, pipelines))
            own = begin * sharing // world_size
            direct = TextOrder(index, pipelines, batch_size, self._seed, steps, share, since, own)
            last_stage = list(self._stages[index].values())[-1]
            found.append(
                PipelineOrder(
                    last_stage, direct, position=place, sharing=sharing, ahead=self._ahead, report_fill=report_fill
                )
            )
        return found

    def lost(self) -> list[str]:
        """Return the names of dead stages; `replace_lost` replaces them."""
        self._drop_lost()
        return [
            f"{kind} {index}"
            for index, stages in enumerate(self._stages)
            for kind, actor in stages.items()
            if actor is None
        ]

    def replace_lost(self) -> list[str]:
        """Replace dead stages, connect the stages after them to the new ones, and return the names of the replaced stages.

        Orders refer to last stages: if one was replaced, give the learners new orders.
        """
        replaced = []
        self._drop_lost()
        for index, stages in enumerate(self._stages):
            before: Any = None
            is_new = False
            for kind, actor in stages.items():
                if actor is None:
                    stages[kind] = self._spawned(kind, index, before)
                    replaced.append(f"{kind} {index}")
                elif is_new:
                    actor.reconnect(before)
                before, is_new = stages[kind], actor is None
        return replaced

    def fill(self, but: Collection[str] = ()) -> dict[str, Any]:
        """Return a ref to the fill of the input queue, 0 to 1, of each stage that has one, by name.

        A busy stage answers only when its call ends, so wait for the refs with a time limit. Stages in ``but`` are not
        called. Learners know the fill of their own queues: `PipelineOrder.fill`.
        """
        return {
            name: actor.fill()
            for index, stages in enumerate(self._stages)
            for kind, actor in stages.items()
            if kind in ("filter", "batcher") and actor is not None and (name := f"{kind} {index}") not in but
        }

    def end(self) -> None:
        """Kill all stages at once, even busy ones."""
        for actor in self.actors:
            self._engine.kill(actor)
        self._stages = [dict.fromkeys(stages) for stages in self._stages]

    def _drop_lost(self) -> None:
        dead = self._engine.lost()
        for stages in self._stages:
            stages.update({kind: None for kind, actor in stages.items() if any(actor is one for one in dead)})

    def _spawned(self, kind: str, index: int, before: Any) -> Any:
        place = (self._sent, index, len(self))
        made: dict[str, tuple[Any, ...]] = {
            "pipeline": (Pipeline, *place, self._seed),
            "tokenizer": (Tokenizer, *place),
            "filter": (Filter, *place, self._seed, before, self._ahead),
            "batcher": (Batcher, *place, before, self._ahead),
        }
        return self._engine.spawn(*made[kind], name=f"{kind} {index}", resources=self._resources)
