"""The page of the errors: meaning, exit code, and what a user can do."""

from __future__ import annotations

from chimera.core.errors import ConfigurationError
from chimera_reference.api_names import error_classes, links_of
from chimera_reference.docstrings import docstring_of
from chimera_reference.markup import blocks, heading
from chimera_reference.names import full_name

REMEDIES = {
    "ChimeraError": "Catch it to handle all errors of Chimera at once.",
    "ConfigurationError": "Correct the name, key or value that the message names.",
    "UnknownNameError": "Choose one of the names that the message lists; `chimera list` shows them all.",
    "MissingExtraError": "Install the extra that the message names.",
    "CodeRefusedError": "Use a registered name instead of a path, or run the code on a machine of your own.",
    "DataError": "Correct the file or the array that the message names; `chimera data` shows how a run reads the data.",
    "CodecError": "Correct the codec's options. After a message over a network, check that both sides have the same version.",
    "RunError": "Read the message and `events.jsonl` in the run's folder. Resume the run with `--resume` after the correction.",
    "ConflictError": "Wait until the other request has ended, or cancel it.",
    "NoSpaceError": "Free space on the disk that the message names, then repeat the command.",
    "ActorLost": "A run replaces lost workers by itself, see `on_worker_loss`. In your own program, start the actor again.",
    "ActorError": "Read the remote traceback: it shows the line of the actor's code that failed.",
    "MemoryLimitError": "Set a larger `memory_mb` in the resources of workers or servers, or a smaller `batch_size`.",
    "TimeLimitError": "Set a longer time limit, or find why the call takes so long in `trace.jsonl`.",
    "EngineClosedError": "Make the call before the engine is closed, or open another engine.",
    "NonFiniteError": "Set a lower learning rate or `max_gradient_norm`, and check the data for extreme values.",
    "UnavailableError": "Repeat the request later, or send it to another server.",
    "TooFewWorkersError": "Read in `events.jsonl` why workers were lost. Set a lower `min_workers`, or resume the run.",
    "PrivacyError": "Check that all clients have the same version and settings. The round's updates were not revealed.",
}
"""What a user can do after each error, by the name of the class."""

_INTRODUCTION = """\
This page lists the errors that Chimera raises, their exit codes, and what a user can do.

A `ConfigurationError` is raised before anything runs. A `RunError` is raised while a run is under way. On the command line an
error is one line. A traceback follows only if code of the user raised the error.
"""
_SIGNALS = """\
Ctrl-C raises `KeyboardInterrupt`, and the exit code is 130. SIGTERM and SIGUSR1 raise
{py:obj}`Terminated <chimera.Terminated>`, and the exit code is 143. A run writes a checkpoint first; `--resume` continues it.
"""


def exit_code(error: type[BaseException]) -> int:
    """Return the exit code of a command that an error of this class ends."""
    return 2 if issubclass(error, ConfigurationError) else 1


def pages() -> dict[str, str]:
    """Return the text of the page, by file name."""
    lines = [
        heading(1, "Errors", anchor="reference-errors"),
        _INTRODUCTION,
    ]
    for error in error_classes():
        parts = docstring_of(error)
        link = links_of(error)
        base = error.__bases__[0]
        above = (
            f"[`{base.__name__}`](#error-{base.__name__.lower()})"
            if base.__module__ == error.__module__
            else "no other"
        )
        lines += [
            heading(2, f"`{error.__name__}`", anchor=f"error-{error.__name__.lower()}"),
            blocks(f"{parts.summary}\n\n{parts.text}", link) + "\n",
            f"- Exit code: {exit_code(error)}\n- What to do: {REMEDIES[error.__name__]}\n- Derived from: {above}\n",
            f"```{{eval-rst}}\n.. py:exception:: {full_name(error)}\n```\n",
        ]
    lines += [
        heading(2, "Signals", anchor="errors-signals"),
        _SIGNALS,
    ]
    return {"errors.md": "\n".join(lines)}
