"""Calls of model factories: seeded, limited in parameters, with errors that name the factory."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

# The global generators belong to the whole process: only one thread may seed them until they are restored.
_generators = threading.RLock()

_limit = threading.local()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed Python, NumPy and (if imported) torch inside the block; restore their global generators after it.

    Of torch's generators, only the CPU's is seeded: models are built on the CPU. Other threads that call this wait until the
    block ends. If ``seed`` is None, nothing is seeded.
    """
    if seed is None:
        yield
        return
    with _generators, _seeded(seed):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    before = torch.default_generator.get_state() if torch else None
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.default_generator.set_state(before)


@contextmanager
def parameter_limit(elements: int, source: str) -> Iterator[None]:
    """Reject models with more than ``elements`` parameters inside the block, in this thread, before their memory is written.

    A file of a few bytes can describe a model of terabytes. Parameters of torch modules count only if torch was imported
    before the block.

    Parameters
    ----------
    source : describes the limit in the error: "the model would have more parameters than {source}".
    """
    _limit.left, _limit.source = elements, source
    counts = _hook.enter(sys.modules.get("torch"))
    try:
        yield
    finally:
        del _limit.left, _limit.source
        _hook.leave(counts)


class _Hook:
    """Torch's hook, which all threads share: with one for each thread, each parameter would count several times."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._handle: Any = None

    def enter(self, torch: Any) -> bool:
        """Count parameters until `leave`; return whether torch was imported."""
        if torch is None:
            return False
        with self._lock:
            if not self._users:
                self._handle = torch.nn.modules.module.register_module_parameter_registration_hook(_count)
            self._users += 1
        return True

    def leave(self, counts: bool) -> None:
        """End what `enter` began."""
        with self._lock:
            self._users -= counts
            if counts and not self._users:
                self._handle.remove()


_hook = _Hook()


def extend_limit(elements: int) -> None:
    """Allow models of this thread ``elements`` more parameters, which a file of this machine holds; see `parameter_limit`."""
    if hasattr(_limit, "left"):
        _limit.left += elements


def _count(module: Any, name: str, parameter: Any) -> None:  # noqa: ARG001 - torch calls it so
    if parameter is not None:
        count_parameters(parameter.numel())


def count_parameters(elements: int) -> None:
    """Count parameters that will be created against the limit of this thread, if it has one.

    Raises
    ------
    ConfigurationError : the limit is exceeded; see `parameter_limit`.
    """
    if not hasattr(_limit, "left"):
        return
    _limit.left -= elements
    if _limit.left < 0:
        raise ConfigurationError(f"the model would have more parameters than {_limit.source}")


def instantiate(
    factory: Callable[..., Any], options: Mapping[str, Any] | None = None, *, seed: int | None, name: str | None = None
) -> Any:
    """Return ``factory(**options)``, called under ``seed``, see `seeded`.

    Raises
    ------
    ConfigurationError : the factory raised. The message is one line that names the factory and the exception, which is
        chained as the cause.
    """
    had_torch = "torch" in sys.modules
    made = _instantiate(factory, options or {}, seed, name)
    if seed is not None and not had_torch and "torch" in sys.modules:
        # The factory itself imported torch, so torch was not seeded before it drew numbers: call it again.
        made = _instantiate(factory, options or {}, seed, name)
    return made


def module_of(module_or_factory: Any, seed: int | None) -> nn.Module:
    """Return a torch module, or the one that a factory makes under ``seed``, see `instantiate`.

    Raises
    ------
    ConfigurationError : neither a module nor a function that returns one.
    """
    from torch import nn

    module = module_or_factory
    if not isinstance(module, nn.Module):
        module = instantiate(module_or_factory, seed=seed)
    if not isinstance(module, nn.Module):
        raise ConfigurationError(
            f"TorchModel needs an nn.Module or a function that returns one, not {type(module).__name__}"
        )
    return module


def _instantiate(factory: Callable[..., Any], options: Mapping[str, Any], seed: int | None, name: str | None) -> Any:
    try:
        with seeded(seed):
            return factory(**options)
    except ConfigurationError:
        raise
    except Exception as error:
        what = f"{name or _name(factory)!r} raised {first_line(error)}{_place_of(error)}"
        raise ConfigurationError(f"the model factory {what}") from error


def _place_of(error: BaseException) -> str:
    """Return the line of the factory's file at which it raised an error; empty if the call itself failed."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _name(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__name__)


def first_line(error: BaseException) -> str:
    """Return the exception's type and the first line of its message; if that ends with a colon, also the second line."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
