"""The entry of the program ``chimera``. A rank of an MPI job that only hosts actors imports no commands.

Nothing is imported outside of the functions: Ctrl-C during these imports would print a traceback.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on stderr, without the source line that raised it."""
    import contextlib

    if sys.stderr is not None:  # it is closed, as by a service: 2>&-
        with contextlib.suppress(OSError):  # a full disk: as without this function, the warning is lost
            sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Run the command line of this process. Ctrl-C before it has imported its commands ends it with one line, too."""
    try:
        _prepare_streams()
        _run()
    except KeyboardInterrupt:
        import contextlib

        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                sys.stderr.write("error: interrupted\n")
        sys.exit(130)


def _prepare_streams() -> None:
    """Replace standard streams that are closed, as by some services, and let stdout write each character.

    Without them, the next file that is opened would get the number of stdout or stderr, and with it the output of libraries.
    Characters that the encoding of stdout lacks, such as the dots of a title in ASCII, become escapes, as on stderr.
    """
    import os

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    if sys.stdout.errors in ("strict", "surrogateescape"):  # the defaults; PYTHONIOENCODING may name another
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # a TextIOWrapper


def _run() -> None:
    import atexit
    import gc
    import warnings

    from chimera.cli.ranks import enter_job
    from chimera.core.errors import ConfigurationError
    from chimera.core.processes import end_process
    from chimera.engines.mpi_launch import launch_of

    warnings.showwarning = print_warning
    if launch_of().rank > 0:
        atexit.register(gc.freeze)  # before it exits, the interpreter would search all objects for cycles
        try:
            enter_job(sys.argv[1:])
        except SystemExit as end:
            end_process(int(end.code or 0))
        except KeyboardInterrupt:  # before the rank ignores signals; rank 0 reports it
            end_process(130)
        except ConfigurationError:  # rank 0 of a torchrun that srun has started: the program reports it
            pass
    from chimera.cli.main import main as run_command

    run_command()
