"""The program ``chimera``: its commands and exit codes.

Exit codes: 0 success, 1 failed run, 2 error in the command line or the configuration, 130 Ctrl-C, 143 SIGTERM; 3 an
altered log (``audit verify``). Each command imports the heavy modules that it needs, so that ``--help`` and mistakes are
answered at once.
"""

from __future__ import annotations

import atexit
import gc
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from chimera.cli import jobs
from chimera.cli.audit import app as audit
from chimera.cli.calibrate import calibrate
from chimera.cli.cluster import app as cluster
from chimera.cli.compare import compare
from chimera.cli.data import data
from chimera.cli.demo import demo
from chimera.cli.embed import app as embed
from chimera.cli.failure import exit_code_of
from chimera.cli.hub import app as hub
from chimera.cli.infer import app as infer
from chimera.cli.list import list_plugins
from chimera.cli.new import new
from chimera.cli.node import app as node
from chimera.cli.nodes import app as nodes
from chimera.cli.predict import predict
from chimera.cli.ranks import enter_job
from chimera.cli.report import report
from chimera.cli.start import print_warning
from chimera.cli.train import train
from chimera.cli.watch import watch
from chimera.core.processes import end_process
from chimera.core.stop_signals import exit_code_of_stop, reason_of_stop, terminable
from chimera.version import __version__

_RUNS = "compare", "demo", "embed", "train"
"""Commands that train."""


class _Program(typer.core.TyperGroup):
    """The group of commands; reports every exception on stderr and as an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            enter_job(sys.argv[1:] if args is None else args)
            outcome = super().main(
                args, prog_name or "chimera", complete_var, False, windows_expand_args=windows_expand_args, **extra
            )
            code = outcome if isinstance(outcome, int) else 0
        except (Exception, KeyboardInterrupt) as error:
            command = next(iter(sys.argv[1:] if args is None else args), "")
            code = exit_code_of(error, "the run" if command in _RUNS else "the command")
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the command; after a signal that it has not handled, exit with the signal's code and a line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # typer would exit with 130 and no line
            typer.echo(reason_of_stop(error), err=True)
            raise typer.Exit(exit_code_of_stop(error)) from None


app = typer.Typer(
    name="chimera",
    cls=_Program,
    help="Distributed machine learning from a laptop to a cluster.",
    pretty_exceptions_enable=False,
)
app.command("train")(train)
app.command("data")(data)
app.command("compare")(compare)
app.command("calibrate")(calibrate)
app.command("predict")(predict)
app.command("demo")(demo)
app.command("list")(list_plugins)
app.command("new")(new)
app.command("report")(report)
app.command("watch")(watch)
app.add_typer(audit, name="audit")
app.add_typer(cluster, name="cluster")
for _command in (jobs.submit, jobs.jobs, jobs.follow, jobs.fetch, jobs.cancel, jobs.retry):
    app.command(_command.__name__)(_command)
app.add_typer(embed, name="embed")
app.add_typer(nodes, name="nodes")
app.add_typer(hub, name="hub")
app.add_typer(node, name="node")
app.add_typer(infer, name="infer")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"chimera {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand in ("train", "compare", "embed"):
        context.with_resource(terminable())  # before the run begins: its own handlers write a checkpoint
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line of this process."""
    warnings.showwarning = print_warning
    atexit.register(gc.freeze)  # before it exits, the interpreter would search all objects for cycles
    try:
        app()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            end_process(end.code or 0)
        typer.echo(end.code, err=True)  # code of the user ended the program with a text
        end_process(1)


if __name__ == "__main__":
    main()
