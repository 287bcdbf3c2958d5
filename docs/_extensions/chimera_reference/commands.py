"""Pages of the command line: each command with its arguments, options and defaults, read from the program itself."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import typer

from chimera.cli.main import app
from chimera_reference.markup import cell, contents, fenced, heading, inline, table

EXIT_CODES = (
    ("0", "The command succeeded."),
    ("1", "A run, a job or a server failed after it had started, or a server refused the request."),
    ("2", "The command line, the experiment file or the data has a mistake. Nothing was started."),
    ("130", "Ctrl-C ended the command. A run wrote a checkpoint first."),
    ("143", "SIGTERM or SIGUSR1 ended the command. A run wrote a checkpoint first."),
)
"""Exit codes of all commands, and their meaning."""

PROGRAM: Any = typer.main.get_command(app)


def pages() -> dict[str, str]:
    """Return the text of each page, by file name: one for the commands of the program, one for each group."""
    groups = {name: command for name, command in _visible(PROGRAM) if _is_group(command)}
    single = {name: command for name, command in _visible(PROGRAM) if not _is_group(command)}
    made = {"cli.md": "\n".join(_program(single, groups))}
    for name, group in groups.items():
        made[f"cli-{name}.md"] = "\n".join(_group(name, group))
    return made


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command that is no group, with its full name."""
    for name, command in _visible(PROGRAM):
        if not _is_group(command):
            yield f"chimera {name}", command
        else:
            yield from ((f"chimera {name} {inner}", each) for inner, each in _visible(command))


def _visible(group: Any) -> list[tuple[str, Any]]:
    return [(name, command) for name, command in group.commands.items() if not command.hidden]


def _is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def _program(single: dict[str, Any], groups: dict[str, Any]) -> Iterator[str]:
    yield heading(1, "Command line", anchor="reference-cli")
    yield "The program `chimera` has these commands. `chimera COMMAND --help` prints the same text.\n"
    yield from (f"- [`chimera {name}`](#cli-{name}): {_summary(command)}" for name, command in single.items())
    yield from (f"- [`chimera {name}`](cli-{name}.md): {_summary(group)}" for name, group in groups.items())
    yield ""
    yield heading(2, "Exit codes", anchor="cli-exit-codes")
    yield "Errors are printed on stderr as one line that begins with `error:`.\n"
    yield table(("exit code", "meaning"), [(f"`{code}`", meaning) for code, meaning in EXIT_CODES])
    for name, command in single.items():
        yield from _command(f"chimera {name}", f"cli-{name}", command)
    yield contents([f"cli-{name}" for name in groups])


def _group(name: str, group: Any) -> Iterator[str]:
    yield heading(1, f"`chimera {name}`", anchor=f"cli-{name}")
    yield f"{inline(_help(group))}\n"
    own = [parameter for parameter in group.params if parameter.name != "help" and not _hidden(parameter)]
    if own:
        yield from _parameters(own)
    yield from (
        f"- [`chimera {name} {inner}`](#cli-{name}-{inner}): {_summary(each)}" for inner, each in _visible(group)
    )
    yield "\n[Exit codes](#cli-exit-codes) are the same for all commands.\n"
    for inner, each in _visible(group):
        yield from _command(f"chimera {name} {inner}", f"cli-{name}-{inner}", each)


def _command(full: str, anchor: str, command: Any) -> Iterator[str]:
    yield heading(2, f"`{full}`", anchor=anchor)
    yield f"{inline(_help(command))}\n"
    shown = [parameter for parameter in command.params if parameter.name != "help" and not _hidden(parameter)]
    arguments = [_metavar(each) for each in shown if each.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(arguments) < len(shown) else []
    yield fenced("text", " ".join([full, *options, *arguments]))
    yield from _parameters(shown)


def _parameters(parameters: list[Any]) -> Iterator[str]:
    rows = [(cell(_spelling(each)), cell(_default(each)), cell(_text(each))) for each in parameters]
    if rows:
        yield table(("argument or option", "default", "effect"), rows)


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"``{_metavar(parameter)}``"
    names = [*parameter.opts, *parameter.secondary_opts]
    value = "" if parameter.is_flag else f" {_metavar(parameter)}"
    return ", ".join(f"``{name}{value}``" for name in names)


def _metavar(parameter: Any) -> str:
    if parameter.metavar or parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    described = getattr(parameter, "type_descriptor", None)  # of newer versions of typer
    if described is None:
        return str(parameter.type.name).upper()
    kind = (typing.get_args(described.annotation) or (described.annotation,))[0]
    return str({str: "TEXT", int: "INTEGER", float: "FLOAT"}.get(kind, kind.__name__.upper()))


def _default(parameter: Any) -> str:
    default = parameter.default() if callable(parameter.default) else parameter.default
    if parameter.required:
        return "required"
    if parameter.param_type_name == "option" and parameter.is_flag:
        return "on" if default else "off"
    if default is None or default == () or type(default).__name__ == "Sentinel":
        return "not set"
    return f"``{getattr(default, 'value', default)}``"


def _text(parameter: Any) -> str:
    return _with_code(getattr(parameter, "help", None) or "")


def _hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def _help(command: Any) -> str:
    return _with_code(inspect.cleandoc(command.help or ""))


def _with_code(text: str) -> str:
    """Return a help text with its commands and options as code, so that two hyphens stay two."""
    return re.sub(r"'([\w-]*chimera [^']+|[\w ]*--[^']+)'|(?<![\w'-])(--[a-z][\w-]*)", r"``\1\2``", text)


def _summary(command: Any) -> str:
    return inline(_help(command).partition("\n")[0])
