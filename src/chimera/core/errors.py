"""The tree of all errors of Chimera.

It has two branches. The user can correct a `ConfigurationError` before anything runs (exit code 2 of the command line). A
`RunError` happens while a run is under way (exit code 1). Every message states what happened, where, and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


class ChimeraError(Exception):
    """The base class of all errors that Chimera raises."""


class ConfigurationError(ChimeraError, ValueError):
    """An invalid name, key or value; the message is one line that names it and states what is allowed."""


class UnknownNameError(ConfigurationError):
    """A plug-in name that is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        where = f"; to use one of a file, write {name}:NAME;" if name.endswith(".py") else did_you_mean(name, names)
        if kind == "data set" and os.path.exists(name):  # noqa: PTH110 - a name may be no valid path
            where = "; for the data at this path, give a pathlib.Path;"
        super().__init__(f"unknown {kind} {name!r}{where} known: {', '.join(names) or 'none'}")
        self.kind, self.name = kind, name

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigurationError, self.args


class MissingExtraError(ConfigurationError, ImportError):
    """A plug-in whose library is not installed; the message names the command that installs it.

    Parameters
    ----------
    what : what needs the library.
    module : the missing module.
    extra : the extra of Chimera that installs the module; None: the module's distribution has the name of the module.
    """

    def __init__(self, what: str, module: str, extra: str | None) -> None:
        package = f"'chimera-dml[{extra}]'" if extra else module
        super().__init__(f"{what} needs the package {module!r}, which is not installed: pip install {package}")

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigurationError, self.args


class CodeRefusedError(ConfigurationError):
    """A name by path where code by path is refused, see `chimera.core.registry.registered_names_only`."""


class DataError(ConfigurationError):
    """Data that is missing, empty, ragged or of a type that the model cannot use."""


class CodecError(DataError):
    """An invalid message, or a vector that a codec cannot encode."""


class RunError(ChimeraError):
    """A run that has started and cannot continue."""


class ConflictError(RunError):
    """A request that conflicts with the current state."""


class NoSpaceError(RunError):
    """A disk is full; nothing of the change was stored."""


class ActorLost(RunError):  # noqa: N818 - the field says "lost", and the architecture names it so
    """The actor was dead, or died during the call; the result will never arrive."""


class ActorError(RunError):
    """An exception of an actor's own code, with the remote traceback.

    It is the `__cause__` of the exception that `get` raises. It is raised itself if the original exception cannot be sent, for
    instance because it cannot be unpickled.
    """


class MemoryLimitError(RunError, MemoryError):
    """An actor needed more memory than its `Resources` allow."""


class TimeLimitError(RunError, TimeoutError):
    """A time limit passed before the result arrived; the call continues unless its actor is killed."""


class EngineClosedError(RunError):
    """The engine was closed; it accepts no more calls."""


class NonFiniteError(RunError):
    """All losses or gradients are NaN or infinite; the message names a rank and the step."""


class UnavailableError(RunError):
    """The server cannot answer now; another server can, or the same one later."""


class TooFewWorkersError(RunError):
    """Fewer workers are left than the minimum of the run."""


class PrivacyError(RunError):
    """A message that would reveal one client's update, or that violates the protocol between clients and server."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the rest of a message about an unknown word: the most similar known one, or a semicolon."""
    import difflib  # needed after an error only

    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ";"
