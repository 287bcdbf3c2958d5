"""A recorder of the values that leave workers, at the boundary between worker and engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from chimera.core.message import Encoded
from chimera.engines.simulated.call import ActorHandle
from chimera.engines.simulated.engine import Simulated
from chimera.engines.simulated.group import SimulatedGroup
from chimera.training.messages.rejection import Rejected
from chimera.training.messages.tally import Tally
from chimera.training.privacy.masking import Masking
from chimera.training.privacy.worker import PrivateWorker
from chimera.training.worker.gradients import Gradients

_SIZE = 100  # elements: an array that is shorter is no vector of a worker


class Sent:
    """What workers returned, call by call; errors are among it."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any]] = []

    def kinds(self) -> set[tuple[str, str]]:
        """Return each call with the kind of its result."""
        return {(call, kind_of(value)) for call, value in self.values}

    def arrays(self) -> Iterator[np.ndarray]:
        """Yield every array among it."""
        for _, value in self.values:
            yield from arrays_in(value)


class Recorded:
    """An actor in the place of the one that was asked for, which notes what that one returns."""

    brief = PrivateWorker.brief

    def __init__(self, make: Callable[..., Any], sent: Sent, /, *given: Any, **named: Any) -> None:
        assert not any(reaches_others(value) for value in (*given, *named.values()))
        self._sent = sent
        try:
            self._target = make(*given, **named)
        except Exception as error:
            sent.values.append(("constructor", error))
            raise

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if call.startswith("_"):
            raise AttributeError(call)

        def answer(*given: Any, **named: Any) -> Any:
            assert not any(reaches_others(value) for value in (*given, *named.values()))  # nothing can be pushed
            try:
                value = getattr(self._target, call)(*given, **named)
            except Exception as error:
                self._sent.values.append((call, error))
                raise
            self._sent.values.append((call, value))
            return value

        return answer


class RecordingEngine(Simulated):
    """Virtual time; what workers return is noted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sent = Sent()

    def spawn(self, actor_type: Any, /, *given: Any, name: str | None = None, **named: Any) -> Any:
        """See `Engine.spawn`."""
        made = partial(Recorded, actor_type, self.sent) if str(name).startswith("worker") else actor_type
        return super().spawn(made, *given, name=name, **named)


def reaches_others(value: Any) -> bool:
    """Return whether an argument lets the actor that gets it call another one."""
    return isinstance(value, ActorHandle | SimulatedGroup)


def kind_of(value: Any) -> str:
    """Return what something is, but for its numbers."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, Rejected):
        return f"Rejected: {value.why}"
    if isinstance(value, Encoded):
        return f"{value.codec} of {', '.join(kind_of(each) for each in value.arrays)}"
    if isinstance(value, np.ndarray):
        return "nothing" if not value.size else re.sub(r"\d+$", "", f"array of {value.dtype.name}")
    if isinstance(value, Tally):
        told = {key for key, given in msgspec.structs.asdict(value).items() if given}
        return f"Tally of {', '.join(sorted(told)) or 'nothing'}"
    if isinstance(value, Mapping):
        return f"mapping of {', '.join(sorted({kind_of(each) for each in value.values()})) or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(sorted({kind_of(each) for each in value}))}]"
    return "nothing" if value is None else type(value).__name__


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in a value of any type."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Encoded):
        yield from value.arrays
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from arrays_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from arrays_in(each)
    elif dataclasses.is_dataclass(value):
        yield from arrays_in(list(vars(value).values()))


def arrays_of(folder: Path) -> Iterator[np.ndarray]:
    """Yield the tensors of all files in a run's folder that hold any."""
    found = sorted(folder.rglob("*.safetensors"))
    assert found
    for file in found:
        yield from load_file(file).values()


Secrets: TypeAlias = dict[int, list[np.ndarray]]
"""Vectors that must not leave a worker, by its rank."""


@pytest.fixture(name="secrets")
def record_secrets(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """Return what fills with each gradient of a worker, and each update as it is before it is clipped, shape (P,)."""
    found: Secrets = {}
    following, private = Gradients.next, Masking._private

    def computing(self: Any, model: Any, step: int) -> Any:
        gradient, rejected = following(self, model, step)
        if rejected is None:
            found.setdefault(self._rank, []).append(np.array(gradient))
        return gradient, rejected

    def sending(self: Any, update: Any, number: int) -> Any:
        found.setdefault(self._rank, []).append(np.array(update))
        return private(self, update, number)

    monkeypatch.setattr(Gradients, "next", computing)
    monkeypatch.setattr(Masking, "_private", sending)
    return found


def is_made_of(array: np.ndarray, secrets: Secrets) -> bool:
    """Return whether an array is a sum of multiples of what one worker keeps, as a momentum is.

    Servers have pieces of vectors: the array may be that of the beginning, or of the end.
    """
    flat = np.asarray(array).ravel()
    if flat.dtype.kind != "f" or flat.size < _SIZE or not np.any(flat):
        return False
    flat = flat.astype(np.float64)
    for of_worker in secrets.values():
        vectors = np.stack(of_worker, axis=1).astype(np.float64)
        assert vectors.shape[1] < _SIZE / 4  # of more, anything could be made
        for piece in (vectors[: flat.size], vectors[-flat.size :]):
            if len(piece) != flat.size:
                continue
            made = piece @ np.linalg.lstsq(piece, flat, rcond=None)[0]
            if np.linalg.norm(flat - made) < 1e-3 * np.linalg.norm(flat):
                return True
    return False
