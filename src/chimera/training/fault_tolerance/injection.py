"""Fault injection: scripted faults of workers and servers, by step or time."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.core.counted import counted
from chimera.core.engine import Disturbance, Engine
from chimera.core.errors import ConfigurationError
from chimera.strategies.strategy import Strategy
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.worker.attack import KINDS, Attack

_NUMBER = r"(\d+(?:\.\d+)?)"
_WHAT = re.compile(
    rf"(kill|hang|slow(?: down)?|cut off|{'|'.join(KINDS)}) "
    r"((?:any )?(?:worker|server|edge|pipeline|tokenizer|filter|batcher)(?: \d+)?)"
    rf"(?: by {_NUMBER})?(?: for {_NUMBER} ?s)?"
)
_WHEN = re.compile(rf"step (\d+)|{_NUMBER} ?s")
_EXAMPLE = "write it like 'kill worker 2 at step 50' or 'slow worker 0 by 4 for 2 s at 1.5 s'"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    text : the fault as a sentence.
    actor : ``worker 2`` or ``server 0``; or ``any worker``, a living worker chosen at random.
    step : the number of completed rounds at which the fault is injected; None if a time is set.
    at_s : seconds after the start of training, on the engine's clock; infinite if a step is set.
    disturbance : the disturbance, or the attack that starts then; None: the actor is killed.
    """

    text: str
    actor: str
    step: int | None
    at_s: float
    disturbance: Disturbance | Attack | None

    @classmethod
    def read(cls, given: Any) -> Fault:
        """Return the fault that a sentence or a pair (when, what) describes.

        A sentence has these parts, in order:

        - ``kill``, ``hang``, ``slow`` or ``cut off``; for workers also the attacks ``sign flip``, ``noise`` or ``label flip``,
          which last until the end of the run, see `Attack`.
        - ``worker 2``, ``server 0``, ``edge 1``, ``any worker``, or a stage that prepares data: ``pipeline 0``, or
          ``tokenizer``, ``filter`` or ``batcher`` where these are separate actors.
        - optional: ``by`` and the factor of ``slow`` or the scale of an attack; ``for 2 s``, the duration.
        - ``at step 50`` or ``at 1.5 s``.

        In a pair, a whole number is a step and any other number is a time in seconds.

        Raises
        ------
        ConfigurationError : the fault cannot be parsed.
        """
        if isinstance(given, str):
            what, at, when = given.strip().rpartition(" at ")
        elif isinstance(given, Sequence) and len(given) == 2 and isinstance(given[1], str):
            at, what, when = " at ", given[1].strip(), _moment(given[0])
        else:
            raise ConfigurationError(f"{given!r} is not a fault: {_EXAMPLE}")
        text = f"{what}{at}{when}"
        found, moment = _WHAT.fullmatch(what), _WHEN.fullmatch(when)
        if found is None or moment is None:
            raise ConfigurationError(f"{text!r} is not a fault: {_EXAMPLE}")
        verb, actor, factor, for_s = found.groups()
        if actor.startswith("any") == actor[-1].isdigit():
            raise ConfigurationError(f"{text!r}: {actor!r} names no actor; write 'worker 2' or 'any worker'")
        verb = verb.removesuffix(" down")
        scaled = verb in ("slow", "sign flip", "noise")
        if (factor and not scaled) or (for_s and verb in ("kill", *KINDS)):
            word = "by" if factor and not scaled else "for"
            raise ConfigurationError(f"{text!r}: '{word}' has no meaning here; {_EXAMPLE}")
        disturbance: Disturbance | Attack | None = None
        if verb in KINDS:
            if "worker" not in actor:
                raise ConfigurationError(f"{text!r}: only workers attack; write it like 'sign flip worker 3 at step 0'")
            disturbance = Attack(verb, float(factor or 1))
        elif verb != "kill":
            disturbance = Disturbance(verb, float(factor or 4), float(for_s or math.inf))  # type: ignore[arg-type]
        step, at_s = moment.groups()
        return cls(
            text,
            actor,
            None if step is None else int(step),
            math.inf if at_s is None else float(at_s),
            disturbance,
        )


class FaultScript:
    """The faults that have not been injected yet.

    Parameters
    ----------
    faults : faults in any order, in the forms that `Fault.read` takes.
    """

    def __init__(self, faults: Iterable[Any]) -> None:
        self._faults = [Fault.read(given) for given in faults]

    def forget(self, rounds: int, seconds: float) -> None:
        """Remove the faults that were injected before the checkpoint from which a run resumes."""
        self._faults = [f for f in self._faults if f.at_s >= seconds and (f.step is None or f.step >= rounds)]

    def inject_due(
        self, engine: Engine, cluster: TrainingCluster, rounds: int, seconds: float
    ) -> Iterator[tuple[str, str, str]]:
        """Inject the faults that are due; yield event, actor and detail of each."""
        due = [f for f in self._faults if seconds >= f.at_s or (f.step is not None and rounds >= f.step)]
        if not due:
            return
        dead = set(map(id, engine.lost()))
        actors = [a for a in (*cluster.actors, *cluster.feeders) if id(a) not in dead]
        self._faults = [f for f in self._faults if f not in due]
        for fault in due:
            kind = fault.actor.removeprefix("any ")
            there = [a for a in actors if a.name == kind or (kind != fault.actor and a.name.startswith(f"{kind} "))]
            if (
                isinstance(fault.disturbance, Attack) and kind != fault.actor
            ):  # choose a worker that does not attack yet
                there = [a for a in there if a.name not in cluster.attacks]
            if not there:
                yield "fault missed", fault.actor, f"{fault.text}: no living actor has this name"
                continue
            actor = random.Random(f"{fault.text}, {rounds}").choice(there)  # noqa: S311 - the choice is repeated from the run's plan; no secret
            yield "attack" if isinstance(fault.disturbance, Attack) else "fault", actor.name, fault.text
            if fault.disturbance is None:
                engine.kill(actor)
            elif isinstance(fault.disturbance, Attack):
                cluster.make_attacker(actor, fault.disturbance)
            else:
                engine.disturb(actor, fault.disturbance)

    def missed(self) -> Iterator[tuple[str, str, str]]:
        """Yield the events of the faults that were not injected before the run was over."""
        for fault in self._faults:
            yield "fault missed", fault.actor, f"{fault.text}: the run ended before"

    def rounds_left(self, rounds: int) -> int | None:
        """Return the number of rounds until the next fault by step, at least 1; None if there is none."""
        steps = [max(f.step - rounds, 1) for f in self._faults if f.step is not None]
        return min(steps, default=None)

    def next_s(self) -> float:
        """Return the time of the next fault by time, in seconds; infinite if there is none."""
        return min((f.at_s for f in self._faults), default=math.inf)


def _moment(when: Any) -> str:
    if isinstance(when, str):
        return when.strip()
    if isinstance(when, bool) or not isinstance(when, int | float):
        raise ConfigurationError(
            f"{when!r} cannot be the moment of a fault: give a whole number for a step, any other number for seconds"
        )
    return f"step {when}" if isinstance(when, int) else f"{when:.9f}".rstrip("0").rstrip(".") + " s"


def as_sentences(faults: Iterable[Any], workers: int) -> list[str]:
    """Return the faults as sentences, for the experiment file. A single sentence counts as a list of one.

    Raises
    ------
    ConfigurationError : it is no list, a fault cannot be parsed, or it names a worker that a run with ``workers`` workers does
        not have.
    """
    if not isinstance(faults, Iterable):
        raise ConfigurationError(f"faults is a list of sentences, not {faults!r}: {_EXAMPLE}")
    read = [Fault.read(given) for given in ([faults] if isinstance(faults, str) else faults)]
    for fault in read:
        kind, _, number = fault.actor.partition(" ")
        if kind == "worker" and int(number) >= workers:
            raise ConfigurationError(
                f"{fault.text!r}: the run has {counted(workers, 'worker')}, 'worker 0' to 'worker {workers - 1}'"
            )
    return [fault.text for fault in read]


def check_attacks(faults: Iterable[Any], strategy: Strategy, data: Any) -> None:
    """Raise ConfigurationError if an attack falsifies messages that workers do not send, or labels that ``data`` lacks."""
    for fault in map(Fault.read, faults):
        if not isinstance(fault.disturbance, Attack):
            continue
        if strategy.replicas == "parts":
            raise ConfigurationError(
                f"{fault.text!r}: attacks need workers that hold the whole model, and here each holds a part"
            )
        if fault.disturbance.in_messages and strategy.sends != "messages":
            raise ConfigurationError(
                f"{fault.text!r}: with this strategy workers send no messages to servers that an attacker could falsify"
            )
        if fault.disturbance.kind == "label flip" and (hasattr(data, "provider") or not data.classes):
            raise ConfigurationError(f"{fault.text!r}: the data has no class labels that an attacker could flip")


def check_disturbances(faults: Iterable[Any], engine: Engine) -> None:
    """Raise ConfigurationError if the engine cannot inject a fault."""
    check = getattr(engine, "check_disturbance", None)
    for fault in map(Fault.read, faults):
        if check is not None and isinstance(fault.disturbance, Disturbance):
            check(fault.disturbance)
