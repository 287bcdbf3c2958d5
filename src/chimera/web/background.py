"""Long work beside the event loop, in threads that keep no process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)``, run in a thread of its own.

    The thread is a daemon: a node that is told to stop ends within seconds, though an estimator may compute for an hour;
    threads of the event loop's own pool would be waited for.
    """
    done: Future[T] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            result = function(*args)
        except BaseException as error:  # it is raised where the result is awaited
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name=f"chimera {getattr(function, '__name__', 'work')}", daemon=True).start()
    return await asyncio.wrap_future(done)
