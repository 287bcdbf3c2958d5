"""Pages of the plug-ins: one for each family, with each registered name, its options and an example."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chimera.cli.list import FAMILIES, PASSED_BY_TRAINER, options_of
from chimera.core.registry import Entry, load_object
from chimera.models.conversion import ADAPTER_OPTIONS
from chimera.training.experiment.toml import dump_toml
from chimera_reference.api_names import links_of
from chimera_reference.docstrings import docstring_of
from chimera_reference.examples import ABOUT, example_of
from chimera_reference.markup import blocks, fenced, heading, inline
from chimera_reference.names import full_name
from chimera_reference.options import Option, option_table, options_of_plugin


def family_of(name: str) -> list[Entry[Any]]:
    """Return the plug-ins of a family that are part of Chimera, by name."""
    return [entry for entry in load_object(FAMILIES[name]).entries() if not entry.distribution]


def options_in_files(family: str, entry: Entry[Any]) -> list[Option]:
    """Return the options of a plug-in that an experiment file may set, in the order of ``chimera list``."""
    names = [re.split(r"=| \(", shown)[0] for shown in options_of(entry, PASSED_BY_TRAINER.get(family, ()))]
    found = options_of_plugin(entry.factory, names)
    if family == "models":  # the trainer passes the seed of the run unless the user sets one
        found = [_of_run(option) if option.name == "seed" else option for option in found]
    return found


def _of_run(option: Option) -> Option:
    return dataclasses.replace(option, default="that of the run")


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    overview = [
        "---\norphan: true\n---\n",  # the index of the reference lists the families, not this page
        heading(1, "All plug-ins", anchor="reference-plug-ins"),
        "This page lists the names of all plug-ins, by family.\n",
        *(f"- [{ABOUT[family][0]}]({family}.md): {_names(family)}" for family in FAMILIES),
        "",
    ]
    return {"plug-ins.md": "\n".join(overview), **{f"{family}.md": _page(family) for family in FAMILIES}}


def _names(family: str) -> str:
    return ", ".join(f"[`{entry.name}`](#{family}-{entry.name})" for entry in family_of(family))


def _page(family: str) -> str:
    entries = family_of(family)
    title, about = ABOUT[family]
    lines = [heading(1, title, anchor=f"reference-{family}"), f"{about}\n"]
    lines += [*(_line(family, entry) for entry in entries), ""]
    for entry in entries:
        lines += _section(family, entry)
    return "\n".join(lines)


def _line(family: str, entry: Entry[Any]) -> str:
    return f"- [`{entry.name}`](#{family}-{entry.name}): {inline(entry.summary, links_of(entry.factory))}"


def _section(family: str, entry: Entry[Any]) -> Iterator[str]:
    link = links_of(entry.factory)
    parts = docstring_of(entry.factory)
    yield heading(2, entry.name, anchor=f"{family}-{entry.name}")
    yield inline(entry.summary, link) + "\n"
    if entry.paper:
        yield f"Source: {inline(entry.paper, link)}.\n"
    if parts.text:
        yield blocks(parts.text, link) + "\n"
    for title in ("Notes", "References"):
        if title in parts.sections:
            yield f"**{title}**\n\n{blocks(parts.sections[title], link)}\n"
    if entry.package:
        yield f"It needs the package `{entry.requires}`: `pip install '{entry.package}'`.\n"
    options = options_in_files(family, entry)
    yield option_table(options, links_of) if options else "It has no options.\n"
    if family == "models":
        yield "Options of the adapter, such as " + ", ".join(f"`{name}`" for name in ADAPTER_OPTIONS) + _ADAPTER
    example = example_of(family, entry.name, options)
    if isinstance(example, Mapping):
        yield "Example:\n\n" + fenced("toml", dump_toml(example))
    else:
        yield "Example:\n\n" + fenced("sh", example)
    kind = "Class" if inspect.isclass(entry.factory) else "Function"
    yield f"{kind}: {{py:obj}}`{full_name(entry.factory)}`.\n"


_ADAPTER = ", are those of {py:obj}`TorchModel <chimera.TorchModel>`.\n"
