"""`chimera.remote.run`: send a function to workers on any engine, and pass messages between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from chimera.core.engine import ENGINES, Engine, Resources
from chimera.core.errors import ActorError, ConfigurationError, TimeLimitError
from chimera.core.pickling import unpickled
from chimera.remote.function_actor import FunctionActor
from chimera.remote.matcher import Answer, RequestMatcher
from chimera.remote.request import Request
from chimera.training.plugin import named


def run(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 4,
    engine: Any = "local",
    resources: Resources | None = None,
    timeout_s: float | None = None,
) -> list[Any]:
    """Run ``function(worker, *args)`` on each of several workers, and return the results in rank order.

    The function may be in a module or a script, and may be a lambda or a closure. Workers communicate by the methods of
    ``worker``, a `Worker`.

    Parameters
    ----------
    function : function that each worker runs; its first argument is the `Worker`.
    args : further arguments, the same for all workers; arrays among them are read-only.
    workers : number of workers.
    engine : name of an engine, a mapping of ``name`` and options, or an engine, which stays open.
    resources : resources of each worker.
    timeout_s : timeout of the whole run, in the engine's seconds; default: none.

    Raises
    ------
    ConfigurationError : an argument is invalid, or the workers call different collectives.
    RunError : the workers are in a deadlock; the message states what each waits for.
    ActorLost : a worker died.
    TimeLimitError : ``timeout_s`` passed; the message states what each worker did.
    Exception : the exception of the first worker whose function failed, with rank and traceback in its notes. The other
        workers are stopped.
    """
    _check(function, args, workers, timeout_s)
    ours = isinstance(engine, str | Mapping)
    opened: Engine = ENGINES.create(*named(engine)) if ours else engine
    try:
        if opened.nodes_own_data:
            raise ConfigurationError(
                "the workers of this engine accept no code: run functions on 'local', 'ray' or 'simulated'"
            )
        pool = _WorkerPool(opened, workers, resources or Resources())
        try:
            return pool.results(function, args, timeout_s)
        finally:
            pool.end()
    finally:
        if ours:
            opened.close()


_STOP_TIMEOUT_S = 5.0


class _WorkerPool:
    """The workers of one run."""

    def __init__(self, engine: Engine, workers: int, resources: Resources) -> None:
        self._engine, self._workers = engine, workers
        engine.reserve([resources] * workers)
        self._actors = [
            engine.spawn(FunctionActor, rank, workers, resources=resources, name=f"worker {rank}")
            for rank in range(workers)
        ]
        self._running: dict[Any, tuple[int, Any]] = {}  # rank and the value's ref, by the ref of a request in flight
        self._matcher = RequestMatcher(workers)
        self._group: Any = None

    def results(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float | None) -> list[Any]:
        """Run the function on all workers, and return the results in rank order."""
        engine, ended = self._engine, dict[int, Any]()
        deadline_s = None if timeout_s is None else engine.now() + timeout_s
        shipped = [engine.put(each) for each in (function, *args)]
        for rank, actor in enumerate(self._actors):
            self._add(rank, actor.begin(*shipped, returns=2))
        while len(ended) < self._workers:
            self._matcher.check_deadlock()
            left_s = None if deadline_s is None else max(0.0, deadline_s - engine.now())
            done, _ = engine.wait(list(self._running), 1, left_s)
            if not done:
                raise TimeLimitError(f"the workers did not finish within {timeout_s:g} s: {self._matcher.explain()}")
            for ref in done:
                rank, value = self._running.pop(ref)
                request: Request = self._fetch(rank, ref)
                if request.kind == "end":
                    ended[rank] = self._fetch(rank, value)
                for answer in self._matcher.add(rank, request, value):
                    self._resume(answer)
        return [unpickled(ended[rank]) for rank in range(self._workers)]

    def end(self) -> None:
        """Stop all workers. Functions that wait are unwound first."""
        computing = {rank for rank, _ in self._running.values()}
        unwound = [actor.end() for rank, actor in enumerate(self._actors) if rank not in computing]
        self._engine.wait(unwound, len(unwound), _STOP_TIMEOUT_S)
        for actor in self._actors:
            self._engine.kill(actor)

    def _resume(self, answer: Answer) -> None:
        actor = self._actors[answer.rank]
        if answer.reduces:
            self._group = self._group or self._engine.group(self._actors)
            self._add(answer.rank, actor.reduce(self._group, returns=2))
        else:
            self._add(answer.rank, actor.resume(*answer.values, returns=2))

    def _add(self, rank: int, refs: list[Any]) -> None:
        request, value = refs
        self._running[request] = rank, value

    def _fetch(self, rank: int, ref: Any) -> Any:
        try:
            return self._engine.get(ref)
        except Exception as error:
            place = f"on worker {rank} of {self._workers}"
            cause, error.__cause__ = error.__cause__, None  # the note contains it
            error.add_note(f"{place}: {cause}" if isinstance(cause, ActorError) else place)
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
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(None, *args)
    except TypeError as error:
        name = getattr(function, "__name__", "the function")
        raise ConfigurationError(
            f"{name}{signature} cannot be called with a worker and {len(args)} arguments: {error}"
        ) from error
