"""The one error tree.

Two branches: `ConfigurationError` is the user's to mend before anything runs (the command line exits with 2), `RunError`
is what went wrong while it ran (exit code 1). Every message says what happened, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable


class ChimeraError(Exception):
    """The root of everything Chimera raises by itself."""


class ConfigurationError(ChimeraError, ValueError):
    """A name, key or value that cannot be used; one line that names it and says what is allowed."""


class UnknownNameError(ConfigurationError):
    """A plug-in name that no registry entry bears."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, names)} known: {', '.join(names) or 'none'}")
        self.kind, self.name = kind, name

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigurationError, self.args


class MissingExtraError(ConfigurationError, ImportError):
    """A plug-in whose library is not installed; the message says which extra brings it."""

    def __init__(self, what: str, module: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {module!r}, which is not installed: pip install 'chimera-dml[{extra}]'"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigurationError, self.args


class CodeRefusedError(ConfigurationError):
    """A name by path where code by path is refused, see `chimera.core.registry.registered_names_only`."""


class DataError(ConfigurationError):
    """Data that is missing, empty, ragged or of a kind the model cannot take."""


class CodecError(DataError):
    """A message that no codec can have made, or a vector that a codec cannot pack."""


class RunError(ChimeraError):
    """A run that had begun and cannot go on."""


class ConflictError(RunError):
    """Asked for at the wrong moment: it does not go with the state that things are in now."""


class NoSpaceError(RunError):
    """A disk is full: nothing of the change was stored."""


class ActorLost(RunError):  # noqa: N818 - the field says "lost", and the architecture names it so
    """The actor is dead, or died under the call: the result will never come."""


class ActorError(RunError):
    """What an actor's own code raised, with the traceback of the place where it ran.

    It is the `__cause__` of the exception that `get` raises, and is raised itself where the original exception cannot
    travel (it does not unpickle, say).
    """


class MemoryLimitError(RunError, MemoryError):
    """An actor needed more memory than its `Resources` allow."""


class TimeLimitError(RunError, TimeoutError):
    """A time limit passed before the result came; the call goes on unless its actor is killed."""


class EngineClosedError(RunError):
    """The engine was closed; it takes no more calls."""


class NonFiniteError(RunError):
    """Losses or gradients that are NaN or infinite, and none left that are not; the message names a rank and the step."""


class UnavailableError(RunError):
    """Who was asked cannot answer now; somebody else can, or the same one later."""


class TooFewWorkersError(RunError):
    """Fewer workers are left than the run was told to go on with."""


class PrivacyError(RunError):
    """A message that would give away one client's update, or that the protocol between clients and server does not have."""


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return how a message about an unknown word goes on: with the known one that is most like it, or a semicolon."""
    import difflib  # only who errs needs it

    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ";"
