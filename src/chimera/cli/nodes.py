"""``chimera nodes``: start, stop and inspect the REST nodes of a folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from chimera.core.errors import ConfigurationError

POLL_S = 0.05
STOP_S = 60.0

app = typer.Typer(help="Start, stop and inspect REST nodes: a master and its workers.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", metavar="DIR", help="Use the nodes of this folder.")]


@app.command("up")
def up(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file of the master; default: the nodes of chimera.toml."),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher", metavar="NAME", help="Start workers by auto, docker or process; default: CHIMERA_LAUNCHER."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once the master serves; it keeps running in the background.")
    ] = False,
) -> None:
    """Start the workers and the master, and serve until Ctrl-C; a FILE runs in its own folder."""
    if file is not None and not file.is_file():
        raise ConfigurationError(f"there is no file {str(file)!r}")
    if launcher is not None:
        os.environ["CHIMERA_LAUNCHER"] = launcher
    if detach:
        _detach(file)
        return
    from chimera.nodes.launchers.launcher import LauncherError
    from chimera.nodes.program import run_file, run_table

    try:
        run_table() if file is None else run_file(file)
    except LauncherError as error:  # lines after the first are the log of a worker
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command("down")
def down(folder: Folder = Path()) -> None:
    """Stop the master of this folder and its workers."""
    from chimera.nodes.state import read_state

    state = read_state(folder)
    if state is None:
        typer.echo(f"no nodes run from {folder.absolute()}")
        return
    os.kill(state["pid"], signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while read_state(folder) is not None:
        if time.monotonic() > deadline:
            typer.echo(f"error: process {state['pid']} has not ended within {STOP_S:g} s", err=True)
            raise typer.Exit(1)
        time.sleep(POLL_S)
    typer.echo(f"stopped the master and {len(state.get('workers', {}))} workers")


@app.command("status")
def status(folder: Folder = Path()) -> None:
    """Show the address and the health of each node; exit with 1 unless all are healthy."""
    from chimera.cli.rows import Shown, printed, table
    from chimera.nodes.health import health_problem
    from chimera.nodes.state import read_state
    from chimera.report.text_table import FILE_INSTEAD

    state = read_state(folder)
    if state is None:
        typer.echo(f"no nodes run from {folder.absolute()}")
        raise typer.Exit(1)
    columns = Shown("node", 0), Shown("where", 3), Shown("address", 2), Shown("health", 1, least=24)
    rows = []
    nodes: list[tuple[str, str, str]] = [("master", f"process {state.get('pid')}", state.get("master", ""))]
    nodes += [(name, state["launcher"], worker["url"]) for name, worker in state.get("workers", {}).items()]
    well = True
    for name, where, url in nodes:
        tls_cert, tls_key = state.get("tls_cert") or None, state.get("tls_key") or None
        reason = health_problem(url, tls_cert=tls_cert, tls_key=tls_key) if url else "is starting"
        well &= not reason
        rows.append({"node": name, "where": where, "address": url, "health": f"not well: {reason}" if reason else "ok"})
    printed(table(rows, columns, instead=FILE_INSTEAD))
    if not well:
        raise typer.Exit(1)


@app.command("logs")
def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show only this worker, or 'master'; default: all.")
    ] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", min=1, metavar="N", help="Show only the last N lines; default: all.")
    ] = None,
    folder: Folder = Path(),
) -> None:
    """Show the logs of the nodes; logs of processes also after they have stopped."""
    from chimera.nodes.launchers.launcher import read_log

    places = _log_places(folder)
    if not places:
        raise ConfigurationError(f"there are no logs of nodes in {folder.absolute()}; give the folder by --folder")
    if name is not None and name not in places:
        raise ConfigurationError(f"there is no log of {name!r}; there are: {', '.join(places)}")
    for node in [name] if name else places:
        if name is None:
            typer.echo(f"--- {node}")
        typer.echo(read_log(places[node], lines).rstrip("\n"))


@app.command("init")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The folder to write; it must not contain these files yet.")
    ] = Path("chimera_nodes"),
) -> None:
    """Write a runnable example: a master, two workers with their own data, and a client."""
    from chimera.nodes.project import write_project

    for file in write_project(folder):
        typer.echo(f"  {file}")
    typer.echo(f"to run it: cd {shlex.quote(str(folder))} && python master.py    then, elsewhere: python client.py")


def _detach(file: Path | None) -> None:
    from chimera.core.private import make_folder, opener
    from chimera.nodes.state import FOLDER, SERVES, read_state

    folder = file.resolve().parent if file else Path.cwd()
    if (state := read_state(folder)) is not None:
        raise ConfigurationError(f"nodes run from {folder} already, process {state.get('pid')}; 'chimera nodes down'")
    log = folder / FOLDER / "master.log"
    make_folder(log.parent)
    command = [sys.executable, "-m", "chimera", "nodes", "up", *([file.name] if file else [])]
    with open(log, "wb", opener=opener) as out:
        process = subprocess.Popen(  # noqa: S603 - the user's own Python and program, no shell
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    with log.open(encoding="utf-8", errors="replace") as lines:
        try:
            state = _serving(folder, process, lines)
        except KeyboardInterrupt:
            process.terminate()
            raise
        if state is None:
            typer.echo(lines.read().rstrip(), err=True)
            raise typer.Exit(process.returncode or 1)
    typer.echo(f"{SERVES} {state['master']} (process {state['pid']}); 'chimera nodes down' stops it")


def _serving(folder: Path, process: subprocess.Popen[bytes], lines: TextIO) -> dict[str, Any] | None:
    """Wait until the master of this process serves, print its lines, and return its state; None if the process ended."""
    from chimera.nodes.state import SERVES, read_state

    while process.poll() is None:  # the master exits if the workers do not start in time
        state = read_state(folder)
        typer.echo(lines.read().partition(SERVES)[0], nl=False)
        if state and state.get("serving"):
            return state
        time.sleep(POLL_S)
    return None


def _log_places(folder: Path) -> dict[str, str]:
    from chimera.nodes.launchers.processes import LOGS_FOLDER
    from chimera.nodes.state import FOLDER, read_state

    places = {}
    master = folder / FOLDER / "master.log"
    if master.is_file():
        places["master"] = f"file:{master}"
    state = read_state(folder)
    if state is not None and "workers" in state:
        return places | {name: worker["log"] for name, worker in state["workers"].items()}
    return places | {file.stem: f"file:{file}" for file in sorted((folder / LOGS_FOLDER).glob("*.log"))}
