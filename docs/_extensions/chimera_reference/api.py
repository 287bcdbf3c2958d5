"""Pages of the Python interface: directives of Sphinx that render docstrings, and the docstrings as Sphinx reads them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from chimera_reference.api_names import ApiPage, api_pages, plugin_anchor, target_of
from chimera_reference.docstrings import REFERENCE, parsed
from chimera_reference.markup import DOCUMENT, contents, heading
from chimera_reference.names import imported

_LITERAL = re.compile(r"(``.+?``)", re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_SPECIAL = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")
"""Characters that have a meaning in reStructuredText, outside of code."""
_FIELDS = {
    "Parameters": ("param", "type"),
    "Attributes": ("ivar", "vartype"),
    "Raises": ("raises", ""),
    "Returns": ("returns", ""),
    "Yields": ("yields", ""),
}
"""Names of the fields of Sphinx for an item of a section, and for its type."""


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    made = {f"{page.file}.md": _page(page) for page in api_pages()}
    lines = [
        heading(1, "Python interface: classes and functions", anchor="reference-api"),
        "These pages describe the public classes and functions. [Python interface](../api.md) states which names stay.\n",
        *(f"- [{page.title}]({page.file}.md)" for page in api_pages()),
        "- [Errors](errors.md)\n",
        contents([page.file for page in api_pages()]),
    ]
    return {**made, "api.md": "\n".join(lines)}


def _page(page: ApiPage) -> str:
    lines = [heading(1, page.title, anchor=f"reference-{page.file}"), f"{page.about}\n"]
    for name in page.names:
        lines += [heading(2, f"`{_short(name)}`"), _directive(name, members=page.members)]
    return "\n".join(lines)


def _short(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[1:]) if len(parts) <= 3 and not parts[1].islower() else parts[-1]


def _directive(name: str, *, members: bool) -> str:
    thing = imported(name)
    if inspect.isclass(thing):
        own_bases = any(base.__module__.startswith("chimera.") for base in thing.__bases__)
        kind, options = "autoclass", [":show-inheritance:"] if own_bases else []
        if members and not issubclass(thing, tuple):  # each field of a named tuple would be a member
            options.append(":members:")
    elif isinstance(thing, classmethod):
        kind, options = "automethod", []
    elif callable(thing):
        kind, options = "autofunction", []
    else:
        kind, options = "autodata", [":no-value:"]
    body = "".join(f"\n   {option}" for option in options)
    return f"```{{eval-rst}}\n.. {kind}:: {name}{body}\n```\n"


def as_restructured_text(text: str, owner: Any, types: Mapping[str, str] | None = None) -> str:
    """Return a docstring as reStructuredText for Sphinx: sections become lists of fields, names become links.

    ``types`` has the types of parameters and attributes by name, as text.
    """

    def marked(part: str) -> str:
        return _marked(part, owner)

    parts = parsed(text)
    lines = [marked(parts.summary), "", marked(parts.text), ""]
    for title in ("Notes", "References", "Examples", "See Also"):
        if title in parts.sections:
            lines += [f".. rubric:: {title}", "", marked(parts.sections[title]), ""]
    for title, (field, _) in _FIELDS.items():
        for item in parts.items.get(title, ()):
            for name in (each.lstrip("*") for each in item.names):
                lines += _described(title, name, marked(item.text), owner, types or {})
        if title in parts.sections and title in ("Returns", "Yields"):
            lines.append(_field(field, marked(parts.sections[title])))
    return "\n".join(lines).strip() + "\n"


def _described(title: str, name: str, text: str, owner: Any, types: Mapping[str, str]) -> Iterator[str]:
    """Yield the fields of one name. An attribute of a dataclass is a parameter as well, and is described as one."""
    if title == "Attributes" and name in _parameters(owner):
        title = "Parameters"
    field, type_field = _FIELDS[title]
    named = {"Raises": f"{field} {_error(name, owner)}", "Returns": field, "Yields": field}
    yield _field(named.get(title, f"{field} {name}"), text)
    if type_field and name in types:
        yield _field(f"{type_field} {name}", types[name])


def _parameters(owner: Any) -> Collection[str]:
    return inspect.signature(owner).parameters if inspect.isclass(owner) and dataclasses.is_dataclass(owner) else ()


def _field(name: str, text: str) -> str:
    return f":{name}: " + text.replace("\n", "\n    ")


def _error(name: str, owner: Any) -> str:
    try:
        target = target_of(name, owner)
    except LookupError:
        target = None
    return f"~{target}" if target else name


def _marked(text: str, owner: Any) -> str:
    blocks = re.split(r"(\n[ \t]*\n)", text)
    for place in range(0, len(blocks), 2):
        literal = place > 0 and blocks[place].startswith("    ") and blocks[place - 2].endswith("::")
        if not literal:
            blocks[place] = _marked_block(blocks[place], owner)
    return "".join(blocks)


def _marked_block(text: str, owner: Any) -> str:
    parts = _LITERAL.split(text)
    for place in range(0, len(parts), 2):  # the others are literals
        spans = _SPAN.split(parts[place])
        spans[::2] = [DOCUMENT.sub(r":doc:`/\1`", _SPECIAL.sub(r"\\\g<0>", plain)) for plain in spans[::2]]
        spans[1::2] = [_role(name, owner) for name in spans[1::2]]
        parts[place] = "".join(spans)
    return "".join(parts)


def _role(name: str, owner: Any) -> str:
    if anchor := plugin_anchor(name):
        return f":ref:`{name} <{anchor}>`"
    if not REFERENCE.fullmatch(f"`{name}`"):
        return f"``{name}``"
    try:
        target = target_of(name, owner)
    except LookupError:
        target = None
    return f":py:obj:`{name} <{target}>`" if target else f"``{name}``"
