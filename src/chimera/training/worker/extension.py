"""Extensions of a worker: calls that a strategy adds to the workers, with the state behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.registry import Registry
from chimera.models.model import Model
from chimera.training.messages.rejection import Rejected
from chimera.training.messages.tally import Tally
from chimera.training.optimizers.optimizer import Stepper
from chimera.training.worker.gradients import Gradients

if TYPE_CHECKING:
    from chimera.training.worker.learner import Learner


class WorkerContext:
    """A worker as its extensions see it.

    Attributes
    ----------
    rank : the number of the worker.
    seed : the seed of the run.
    model : the model of the worker; its parameters are on the host.
    device_model : the model's parameters on the device where it computes.
    codec : name and options of the uplink codec.
    exchange : packs and unpacks messages of the servers' shards.
    gradients : computes gradients of batches.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.rank: int = learner._rank
        self.seed: int = learner._seed
        self.model: Model = learner._model
        self.device_model: Any = learner._device_model
        self.codec: tuple[str, Mapping[str, Any]] = learner._codec
        self.exchange: Any = learner._exchange
        self.gradients: Gradients = learner._gradients

    @property
    def step(self) -> int:
        """The index of the next step."""
        return self._learner._step

    @step.setter
    def step(self, step: int) -> None:
        self._learner._step = step

    @property
    def tally(self) -> Tally:
        """The counts of messages and losses; count each message that an extension sends or receives."""
        return self._learner._tally

    @property
    def optimizer(self) -> Stepper:
        """The worker's own optimizer of the global model, on the host if an extension is `on_host`, else on the model's device.

        If it is not on the host, read this property again for each step, after the last use of ``model.parameters()``, and the
        parameters again after it: each reading moves the weights.
        """
        return self._learner._own_optimizer()

    def next_gradient(self) -> tuple[Any, Rejected | None]:
        """Return the gradient of the next batch, shape (P,), and its rejection if it is not finite."""
        return self._learner._next_gradient(self.model)

    def gradient(self, weights: Sequence[Encoded]) -> Sequence[Encoded | Rejected]:
        """Load the weights of all shards, and return the gradient of the next batch, encoded, one message for each shard."""
        return self._learner._answer(weights)

    def prepare(self) -> None:
        """Read the next batch while the worker waits for messages."""
        self._learner._prepare()

    def local_step(self, clock: int) -> Rejected | None:
        """Take a step of the local optimizer; return the rejection if the gradient is not finite."""
        return self._learner._local_step(clock)

    def load(self, weights: Sequence[Encoded]) -> None:
        """Load the weights of all shards, one message each."""
        self._learner._load(weights)

    def falsify(self, vector: Any, step: int) -> None:
        """Falsify a vector before it is sent, in place, if this worker is an attacker."""
        self._learner._falsify(vector, step)


class WorkerExtension:
    """Base class of extensions. A strategy calls the public methods of an extension like those of the worker.

    Parameters
    ----------
    worker : the worker of this extension.

    Attributes
    ----------
    name : key of the state in checkpoints; `worker_extension` sets it.
    on_host : whether the worker's optimizer is on the host, where an extension may keep ``model.parameters()`` over a step. An
        extension that reads the weights after the step only, or not at all, sets it to False.
    """

    name: ClassVar[str] = ""
    on_host: ClassVar[bool] = True

    def __init__(self, worker: WorkerContext) -> None:
        self.worker = worker

    def reduce_rates(self, *factors: float) -> None:
        """Set the reductions of plateau schedules, one for each optimizer of the run; the last is that of the servers."""

    def state(self) -> Mapping[str, Any]:
        """Return the state for checkpoints and copies of the replica; empty if there is none."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; an empty state resets the extension."""

    def local_state(self) -> Mapping[str, Any]:
        """Return state that no other worker has, as arrays by name; empty if there is none."""
        return {}

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Restore what `local_state` returned; an empty state resets the extension."""


E = TypeVar("E", bound=WorkerExtension)
ExtensionName: TypeAlias = str | type[WorkerExtension]
"""A registered name, a name by path, or a class. Nodes of the engine http accept registered names only."""
WORKER_EXTENSIONS: Registry[WorkerExtension] = Registry(
    "worker extension", "chimera.training.worker.extensions", WorkerExtension
)


def worker_extension(name: str) -> Callable[[type[E]], type[E]]:
    """Return a decorator that registers a class derived from `WorkerExtension` under a name."""

    def decorate(kind: type[E]) -> type[E]:
        kind.name = name
        WORKER_EXTENSIONS.register(name)(kind)
        return kind

    return decorate


def to_send(extension: ExtensionName, *, by_name: bool) -> ExtensionName:
    """Return what the driver sends to workers: the class, or its registered name where nodes accept names only.

    Raises
    ------
    ConfigurationError : the extension is unknown, or a name is needed and the class has none.
    """
    kind: Any = WORKER_EXTENSIONS.find(extension).factory if isinstance(extension, str) else extension
    if not by_name:
        return kind  # type: ignore[no-any-return]
    names = [entry.name for entry in WORKER_EXTENSIONS.entries() if entry.factory is kind]
    if not names:
        raise ConfigurationError(
            f"nodes accept worker extensions by name only: register {getattr(kind, '__name__', kind)!r} with the decorator"
            " worker_extension, here and on the nodes"
        )
    return names[0]


_HOOKS = frozenset(name for name in vars(WorkerExtension) if not name.startswith("_"))


class Extensions:
    """The extensions of one worker.

    Parameters
    ----------
    names : the extensions that the strategy declares.
    worker : the worker, for the extensions.

    Raises
    ------
    ConfigurationError : an extension is unknown, is not derived from `WorkerExtension`, or two extensions define the same call.
    """

    def __init__(self, names: Sequence[ExtensionName], worker: WorkerContext) -> None:
        self._extensions: dict[str, WorkerExtension] = {}
        self._calls: dict[str, WorkerExtension] = {}
        for name in names:
            kind: Any = WORKER_EXTENSIONS.find(name).factory if isinstance(name, str) else name
            if not isinstance(kind, type) or not issubclass(kind, WorkerExtension):
                raise ConfigurationError(
                    f"{name!r} is not a worker extension: derive it from {__name__}.WorkerExtension"
                )
            extension = kind(worker)
            self._extensions[kind.name or kind.__name__] = extension
            for call in calls_of(kind):
                if call in self._calls or hasattr(type(worker._learner), call):
                    raise ConfigurationError(
                        f"the worker extension {kind.__name__} defines {call!r}, which the worker has already"
                    )
                self._calls[call] = extension

    @property
    def on_host(self) -> bool:
        """Whether the worker's optimizer is on the host because of one of them."""
        return any(extension.on_host for extension in self._extensions.values())

    def call(self, name: str) -> Any:
        """Return the method of an extension.

        Raises
        ------
        AttributeError : no extension has this method.
        """
        if name not in self._calls:
            raise AttributeError(
                f"a worker has no method {name!r}, nor has an extension of it that this strategy declares"
            )
        return getattr(self._calls[name], name)

    def reduce_rates(self, *factors: float) -> None:
        """Pass the reductions of plateau schedules to the extensions."""
        for extension in self._extensions.values():
            extension.reduce_rates(*factors)

    def state(self) -> dict[str, Mapping[str, Any]]:
        """Return the states of the extensions that have one, by name."""
        return {name: state for name, extension in self._extensions.items() if (state := extension.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the extensions from a state of the worker that includes what `state` returned."""
        for name, extension in self._extensions.items():
            extension.restore(state.get(name, {}))

    def local_state(self) -> dict[str, Any]:
        """Return the local states of all extensions together; each key begins with the name of its extension and a dot."""
        return {
            f"{name}.{key}": value
            for name, extension in self._extensions.items()
            for key, value in extension.local_state().items()
        }

    def restore_local(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Restore what `local_state` returned, and return the rest of ``state``."""
        rest = dict(state)
        for name, extension in self._extensions.items():
            own = f"{name}."
            extension.restore_local({key.removeprefix(own): rest.pop(key) for key in state if key.startswith(own)})
        return rest


def calls_of(kind: type[WorkerExtension]) -> list[str]:
    """Return the calls that an extension adds: its public methods that are not hooks of `WorkerExtension`."""
    return [
        name for name in dir(kind) if not name.startswith("_") and name not in _HOOKS and callable(getattr(kind, name))
    ]
