"""`chimera.remote.run`: ship a function to workers on any engine, and pass on what they send one another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from chimera.core.engine import ENGINES, Engine, Resources
from chimera.core.errors import ActorError, ConfigurationError, TimeLimitError
from chimera.core.pickling import unpickled
from chimera.remote.exchange import Answer, Exchange
from chimera.remote.host import Host
from chimera.remote.wish import Wish
from chimera.training.plugin import named


def run(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 4,
    engine: Any = "local",
    resources: Resources | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Run ``function(worker, *args)`` on each of many workers, and return the results in rank order.

    The function may be any: of a module, of a script, a lambda or a closure. ``worker`` is a `Worker`, by which they talk.

    Parameters
    ----------
    function : what each worker runs; its first argument is the `Worker`.
    args : further arguments, the same for all; arrays among them are read-only there.
    workers : how many.
    engine : where: a name, a mapping of ``name`` and options, or an engine, which stays open.
    resources : what each worker needs of its machine.
    timeout_s : how long all of it may take, in the engine's seconds; by default as long as it takes.

    Raises
    ------
    ConfigurationError : a bad argument, or workers that meet for different things.
    RunError : the workers wait for one another, and would for ever; says who waits for what.
    ActorLost : a worker died.
    TimeLimitError : ``timeout_s`` passed; says what each worker did.
    Exception : what the function raised on the first worker on which it failed, with rank and traceback in its notes; the
        others are ended.
    """
    _check(function, args, workers, timeout_s)
    ours = isinstance(engine, str | Mapping)
    opened: Engine = ENGINES.create(*named(engine)) if ours else engine
    try:
        if opened.nodes_own_data:
            raise ConfigurationError(
                "the workers of this engine take no code: run functions on 'local', 'ray' or 'simulated'"
            )
        crew = _Crew(opened, workers, resources or Resources())
        try:
            return crew.results(function, args, timeout_s)
        finally:
            crew.end()
    finally:
        if ours:
            opened.close()


_UNWINDING_S = 5.0


class _Crew:
    """The workers of one run, as the driver sees them."""

    def __init__(self, engine: Engine, workers: int, resources: Resources) -> None:
        self._engine, self._workers = engine, workers
        engine.reserve([resources] * workers)
        self._actors = [
            engine.spawn(Host, rank, workers, resources=resources, name=f"worker {rank}") for rank in range(workers)
        ]
        self._running: dict[Any, tuple[int, Any]] = {}  # by the ref of a wish: whose it is, and the ref of its value
        self._exchange = Exchange(workers)
        self._group: Any = None

    def results(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None) -> list[Any]:
        """Return what the functions return, in rank order."""
        engine, ended = self._engine, dict[int, Any]()
        deadline_s = None if timeout_s is None else engine.now() + timeout_s
        shipped = [engine.put(each) for each in (function, *args)]
        for rank, actor in enumerate(self._actors):
            self._started(rank, actor.begin(*shipped, returns=2))
        while len(ended) < self._workers:
            self._exchange.check_progress()
            left_s = None if deadline_s is None else max(0.0, deadline_s - engine.now())
            done, _ = engine.wait(list(self._running), 1, left_s)
            if not done:
                raise TimeLimitError(f"the workers did not end within {timeout_s:g} s: {self._exchange.explain()}")
            for ref in done:
                rank, value = self._running.pop(ref)
                wish: Wish = self._fetched(rank, ref)
                if wish.kind == "end":
                    ended[rank] = self._fetched(rank, value)
                for answer in self._exchange.ask(rank, wish, value):
                    self._go_on(answer)
        return [unpickled(ended[rank]) for rank in range(self._workers)]

    def end(self) -> None:
        """End all workers; functions that wait are unwound first."""
        computing = {rank for rank, _ in self._running.values()}
        unwound = [actor.end() for rank, actor in enumerate(self._actors) if rank not in computing]
        self._engine.wait(unwound, len(unwound), _UNWINDING_S)
        for actor in self._actors:
            self._engine.kill(actor)

    def _go_on(self, answer: Answer) -> None:
        actor = self._actors[answer.rank]
        if answer.meets:
            self._group = self._group or self._engine.group(self._actors)
            self._started(answer.rank, actor.reduce(self._group, returns=2))
        else:
            self._started(answer.rank, actor.resume(*answer.values, returns=2))

    def _started(self, rank: int, refs: list[Any]) -> None:
        wish, value = refs
        self._running[wish] = rank, value

    def _fetched(self, rank: int, ref: Any) -> Any:
        try:
            return self._engine.get(ref)
        except Exception as error:
            told = f"on worker {rank} of {self._workers}"
            cause, error.__cause__ = error.__cause__, None  # the notes say it, and once is enough
            error.add_note(f"{told}: {cause}" if isinstance(cause, ActorError) else told)
            raise


def _check(function: Any, args: tuple[Any, ...], workers: Any, timeout_s: float | None) -> None:
    if not callable(function):
        raise ConfigurationError(f"run needs a function, not {function!r}")
    if not isinstance(workers, int) or workers < 1:
        raise ConfigurationError(f"workers must be a whole number from 1, not {workers!r}")
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigurationError(f"timeout_s must be above zero, not {timeout_s!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return
    try:
        signature.bind(None, *args)
    except TypeError as error:
        name = getattr(function, "__name__", "the function")
        raise ConfigurationError(
            f"{name}{signature} cannot be called with a worker and {len(args)} arguments: {error}"
        ) from error
