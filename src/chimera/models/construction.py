"""Calling model factories: under a seed, and with errors that name the factory."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from chimera.core.errors import ConfigurationError

# The global generators belong to the whole process: who seeds them must be alone until they are back.
_generators = threading.RLock()

_room = threading.local()


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed Python, NumPy and (if imported) torch inside the block and put their global generators back after it.

    Only torch's CPU generator: a model is built on the CPU. Other threads wait with their own seeds until the block ends.
    Without a seed, nothing happens.
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
def at_most(elements: int, source: str) -> Iterator[None]:
    """Refuse models of more parameters than ``elements`` inside the block, in this thread, before their memory is written.

    A file of a few bytes can describe a model of terabytes. Parameters of torch count where torch was imported before.

    Parameters
    ----------
    source : what the error says they are more than.
    """
    torch = sys.modules.get("torch")
    _room.left, _room.source = elements, source
    hook = torch.nn.modules.module.register_module_parameter_registration_hook(_count) if torch else None
    try:
        yield
    finally:
        del _room.left, _room.source
        if hook is not None:
            hook.remove()


def _count(module: Any, name: str, parameter: Any) -> None:  # noqa: ARG001 - torch calls it so
    if parameter is not None:
        take_room(parameter.numel())


def take_room(elements: int) -> None:
    """Count parameters that are to be made.

    Raises
    ------
    ConfigurationError : there are too many; see `at_most`.
    """
    if not hasattr(_room, "left"):
        return
    _room.left -= elements
    if _room.left < 0:
        raise ConfigurationError(f"the model would have more parameters than {_room.source}")


def construct(
    factory: Callable[..., Any], options: Mapping[str, Any] | None = None, *, seed: int | None, name: str | None = None
) -> Any:
    """Return ``factory(**options)``, called under ``seed``.

    Raises
    ------
    ConfigurationError : the factory raised; one line that names it and the exception, which is the cause.
    """
    had_torch = "torch" in sys.modules
    made = _construct(factory, options or {}, seed, name)
    if seed is not None and not had_torch and "torch" in sys.modules:
        # The factory itself imported torch, so what it drew from torch came before any seed: let it draw again.
        made = _construct(factory, options or {}, seed, name)
    return made


def _construct(factory: Callable[..., Any], options: Mapping[str, Any], seed: int | None, name: str | None) -> Any:
    try:
        with seeded(seed):
            return factory(**options)
    except ConfigurationError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise ConfigurationError(f"the model factory {name or _name(factory)!r} raised {reason}") from error


def _name(factory: Any) -> str:
    return str(getattr(factory, "__qualname__", None) or type(factory).__name__)


def first_line(error: BaseException) -> str:
    """Return the exception's type and the first line of its message."""
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
