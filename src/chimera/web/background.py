"""Long computations outside the event loop, in daemon threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from chimera.core.errors import UnavailableError

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``, computed in a new thread.

    The thread is a daemon, so that a node stops within seconds even if an estimator still computes. With threads of the
    event loop's own pool, the process would wait for their end.

    Raises
    ------
    UnavailableError : the process cannot start a thread. The function was not called.
    """
    done: Future[T] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            result = function(*args)
        except BaseException as error:  # raised where the result is awaited
            done.set_exception(error)
        else:
            done.set_result(result)

    thread = threading.Thread(target=run, name=f"chimera {getattr(function, '__name__', 'work')}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the limit on threads or on memory is reached
        raise UnavailableError(f"this server cannot start a thread now ({error}): try again later") from error
    return await asyncio.wrap_future(done)
