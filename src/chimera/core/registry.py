"""Names of plug-ins: a decorator registers a class under a name, which files and command lines use.

The plug-ins of a family are in one package, which is imported when a name is first needed. A list of names is thus cheap, and
a plug-in with a missing library does not affect the others. Plug-ins therefore import heavy libraries inside functions. Other
distributions add plug-ins by entry points (docs/how-to/plug-ins.md).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from chimera.core import installed_plugins
from chimera.core.errors import CodeRefusedError, ConfigurationError, MissingExtraError, UnknownNameError, did_you_mean
from chimera.core.file_modules import load_file
from chimera.core.signatures import hints_of, parameters_of
from chimera.core.validation_message import validation_message

T = TypeVar("T")
CITATION = re.compile(r"\s*\(([^()]*\b(?:1[89]|20)\d\d\b[^()]*|from no paper)\)")
"""Authors, year and title in parentheses, as the first line of a docstring has them."""
_refusal: ContextVar[str | None] = ContextVar("why names by path are refused", default=None)


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One registered plug-in.

    Attributes
    ----------
    name : the name that users write.
    factory : a class or a function with keyword options that creates the plug-in.
    requires : the top-level module that it needs beyond the base installation; None if there is none.
    extra : the extra of the distribution that installs that module; None if the distribution has the name of the module.
    preload : modules that it always needs and that take long to import.
    distribution : name and version of the distribution that it comes from; empty if it is Chimera.
    """

    name: str
    factory: Callable[..., T]
    requires: str | None = None
    extra: str | None = None
    preload: tuple[str, ...] = ()
    distribution: str = ""

    @property
    def summary(self) -> str:
        """The first line of the docstring, without the paper."""
        return CITATION.sub("", _first_line(self.factory))

    @property
    def package(self) -> str:
        """What pip installs for the module that it needs; empty if it needs none."""
        return f"chimera-dml[{self.extra}]" if self.extra else self.requires or ""

    @property
    def paper(self) -> str:
        """Authors, year and title, from the first line of the docstring or of the module's, whichever has the title."""
        lines = _first_line(self.factory), _first_line(inspect.getmodule(self.factory))
        found = [match[1] for match in map(CITATION.search, lines) if match]
        return next((paper for paper in found if '"' in paper), found[0] if found else "")

    @property
    def available(self) -> bool:
        """Whether the library it needs is installed."""
        if self.requires is None:
            return True
        spec = importlib.util.find_spec(self.requires)
        return spec is not None and spec.origin is not None  # a folder of the same name has no origin


class Registry(Generic[T]):
    """The plug-ins of one family.

    Parameters
    ----------
    kind : the word for a plug-in in messages, such as ``"strategy"``.
    package : the package whose modules hold the plug-ins of Chimera.
    base : the base class of all plug-ins; None if there is none.
    preload : default of `preload` for plug-ins that do not set it.
    family : other distributions add plug-ins by entry points of the group ``chimera.<family>``; empty if they cannot.
    """

    def __init__(
        self, kind: str, package: str, base: type | None = None, *, preload: Sequence[str] = (), family: str = ""
    ) -> None:
        self.kind, self.package, self._base, self._preload, self._family = kind, package, base, preload, family
        self._entries: dict[str, Entry[T]] = {}
        self._complete = False

    def register(
        self, name: str, *, requires: str | None = None, extra: str | None = None, preload: Sequence[str] | None = None
    ) -> Callable[[Any], Any]:
        """Register the decorated class or function under ``name``."""

        def decorate(factory: Callable[..., T]) -> Callable[..., T]:
            known = self._entries.get(name)
            if known is not None and known.factory.__qualname__ != factory.__qualname__:
                raise ConfigurationError(f"the {self.kind} {name!r} is registered twice")
            self._entries[name] = Entry(
                name, factory, requires, extra, tuple(self._preload if preload is None else preload)
            )
            return factory

        return decorate

    def entries(self) -> list[Entry[T]]:
        """Return all entries, by name. Warn of plug-ins of other distributions that cannot be loaded."""
        self._import_all()
        for name, point in installed_plugins.installed(self._family).items() if self._family else ():
            if name in self._entries and not self._entries[name].distribution:
                origin = installed_plugins.distribution_of(point)
                warnings.warn(f"the {self.kind} {name!r} of {origin} is ignored: Chimera has one", stacklevel=2)
            try:
                self._add_installed(name)
            except ConfigurationError as error:
                warnings.warn(str(error), stacklevel=2)
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    def _import_all(self) -> None:
        if not self._complete:
            for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            self._complete = True

    def _add_installed(self, name: str) -> None:
        """Load the plug-in of another distribution that has this name, unless a plug-in of Chimera has it."""
        point = installed_plugins.installed(self._family).get(name) if self._family else None
        if point is None or name in self._entries:
            return
        factory = installed_plugins.load(point, self.kind)
        own = self._entries.get(
            name, Entry(name, factory, preload=tuple(self._preload))
        )  # its module may have registered it, with more details
        self._entries[name] = replace(own, distribution=installed_plugins.distribution_of(point))

    def find(self, name: str) -> Entry[T]:
        """Return the entry of ``name``, which may also be ``package.module:attribute`` or ``file.py:attribute``.

        Raises
        ------
        UnknownNameError : the name is not registered.
        MissingExtraError : the library that it needs is not installed.
        """
        if ":" in name:
            if "=" in name.partition(":")[2]:  # the path of a file before it may contain this sign
                raise ConfigurationError(_options_in_name(self.kind, name))
            return Entry(name, load_object(name))
        if name not in self._entries:
            own = f"{self.package}.{name.replace('-', '_')}"
            if name.replace("-", "").isalnum() and importlib.util.find_spec(own) is not None:
                importlib.import_module(own)
        if name not in self._entries:
            self._import_all()
        self._add_installed(name)
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, [entry.name for entry in self.entries()])
        entry = self._entries[name]
        if not entry.available:
            raise MissingExtraError(f"the {self.kind} {name!r}", entry.requires or "", entry.extra)
        return entry

    def create(self, name: str, options: Mapping[str, Any] | None = None, /, **given: Any) -> T:
        """Create the plug-in ``name`` from a user's ``options``, checked, and from the arguments ``given`` by the caller.

        Raises
        ------
        ConfigurationError : an option is unknown, missing, or of the wrong type; or the object is not a plug-in of this family.
        """
        factory = self.find(name).factory
        made = factory(**checked_options(f"{self.kind} {name!r}", factory, options or {}, given), **given)
        if self._base is not None and not isinstance(made, self._base):
            base = f"{self._base.__module__}.{self._base.__qualname__}"
            raise ConfigurationError(f"{name!r} is no {self.kind}: it must be derived from {base}")
        return made


def _options_in_name(kind: str, name: str) -> str:
    """Return the error for a name with options, which only variations of a comparison accept."""
    parts = name.split(":")
    first = next(i for i, part in enumerate(parts) if i and "=" in part)
    table = ", ".join([f'name = "{":".join(parts[:first])}"', *parts[first:]])
    return (
        f"{name!r} is no name of a {kind}: only the values of a comparison have options after a colon; "
        f"give a table: {{ {table} }}"
    )


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


@contextlib.contextmanager
def registered_names_only(source: str | None, remedy: str = "use a registered name") -> Iterator[None]:
    """Reject names by path: within this context `load_object`, and so every registry, raises.

    A name by path runs code. Use this context wherever values come from a peer or from a folder of another user.

    Parameters
    ----------
    source : origin of the names, for the error. None allows names by path again, for options of the owner of this process.
    remedy : advice to the user, for the error.
    """
    token = _refusal.set(None if source is None else f"{source} must not name code by path; {remedy}")
    try:
        yield
    finally:
        _refusal.reset(token)


def check_code_allowed(what: str) -> None:
    """Raise CodeRefusedError if code by path is rejected here, see `registered_names_only`; ``what`` names the code."""
    if refusal := _refusal.get():
        raise CodeRefusedError(f"{what} is refused: {refusal}")


def load_object(path: str) -> Any:
    """Import ``package.module:attribute`` or ``some/file.py:attribute``.

    Raises
    ------
    ConfigurationError : the path cannot be imported, or code by path is rejected here, see `registered_names_only`.
    """
    check_code_allowed(repr(path))
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{path!r} is not of the form 'package.module:attribute' or 'file.py:attribute'")
    try:
        module = load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"cannot import {module_name!r} for {path!r}: {error}") from error
    if not hasattr(module, attribute):
        raise ConfigurationError(f"{module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def checked_options(
    what: str, factory: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``factory`` for these ``options``, converted to the types in its signature.

    Raises
    ------
    ConfigurationError : an option is invalid; the message names it, its value and what is allowed.
    """
    parameters = parameters_of(factory)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    keywords = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    allowed = {option: p for option, p in parameters.items() if p.kind in keywords and p.name not in given}
    hints = hints_of(factory)
    checked = {}
    spelled = {p.name: option for option, p in allowed.items()}  # the parameter's name is accepted, too
    for given_name, value in options.items():
        name = spelled.get(given_name, given_name)
        if name in (moved := getattr(factory, "moved", {})):
            raise ConfigurationError(f"{what} no longer has the option {name!r}: {moved[name]}")
        if name not in allowed and not open_ended:
            meant, its = did_you_mean(name, allowed), ", ".join(allowed) or "none"
            raise ConfigurationError(f"{what} has no option {name!r}{meant} its options: {its}")
        argument = allowed[name].name if name in allowed else name
        checked[argument] = _converted(f"{what}, option {name!r}", value, hints.get(argument, Any))
    missing = [option for option, p in allowed.items() if p.default is p.empty and p.name not in checked]
    if missing:
        raise ConfigurationError(f"{what} needs the option {missing[0]!r}")
    return checked


def _converted(what: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what}: {value!r} cannot be used: {validation_message(error, hint)}") from error
    except TypeError:  # a hint that msgspec has no rule for, such as a callable: the factory checks it
        return value
