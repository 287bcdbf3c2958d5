"""The engines under test, and what the kit has to know of each. A further engine is one line in `WORLDS`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any

from chimera.core.engine import ENGINES, Engine


@dataclass(frozen=True)
class World:
    """One engine under test.

    Attributes
    ----------
    name : the engine's registered name.
    virtual_time : whether its clock is simulated.
    real_processes : whether its actors are processes of this machine, which can be killed.
    limit_s : how long a test waits for what must come.
    options : of the engine.
    """

    name: str
    virtual_time: bool
    real_processes: bool
    limit_s: float = 60.0
    options: dict[str, Any] = field(default_factory=dict)

    def engine(self) -> Engine:
        return ENGINES.create(self.name, self.options)

    def hang(self, relay: Any) -> Any:
        """Make a `Relay` hang: for ever, or for a thousand million virtual seconds; return the ref."""
        return relay.wait_for_ever(10**14 if self.virtual_time else 0)


WORLDS = [World("simulated", virtual_time=True, real_processes=False)]
if importlib.util.find_spec("chimera.engines.local") and importlib.util.find_spec("chimera.engines.local.engine"):
    WORLDS.append(World("local", virtual_time=False, real_processes=True))


def world_named(name: str) -> World:
    return next(world for world in WORLDS if world.name == name)
