"""The protocol of trackers, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.training.plugin import named


@dataclass(frozen=True)
class Tracked:
    """The data about a run that a tracker receives when training starts.

    Attributes
    ----------
    name : name of the run.
    folder : the run's folder.
    settings : the experiment as flat values by dotted key, such as ``train.batch_size``.
    known : what `Tracker.begin` returned when this run was tracked before; None for a new run.
    """

    name: str
    folder: Path
    settings: Mapping[str, str | int | float | bool]
    known: str | None


class Tracker(ABC):
    """Records one run in an experiment tracker. One thread calls all methods; it is not the thread of training."""

    @abstractmethod
    def begin(self, run: Tracked) -> str:
        """Start or continue the record of a run; return its identity in the tracker, by which it can be continued."""

    @abstractmethod
    def log(self, values: Mapping[str, float], round_: int, seconds: float) -> None:
        """Record values by name, after ``round_`` rounds and ``seconds`` of training."""

    @abstractmethod
    def event(self, text: str, round_: int) -> None:
        """Record an event, such as the loss of a worker."""

    @abstractmethod
    def end(self, summary: Mapping[str, float], files: Mapping[str, Path], *, finished: bool) -> None:
        """Record the final figures and files by name, and close the record."""


class RoundTexts:
    """The texts of each round, for libraries that keep only the last text of a name and a round."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}

    def added(self, text: str, round_: int) -> str:
        """Add a text; return all texts of its round, one a line."""
        self._texts.setdefault(round_, []).append(text)
        return "\n".join(self._texts[round_])


def trackers_of(given: Sequence[Any]) -> dict[str, Tracker]:
    """Return new trackers by name, from names and tables with options.

    Raises
    ------
    ConfigurationError : there is no such tracker, it is named twice, or an option is invalid.
    """
    if isinstance(given, str):
        raise ConfigurationError(f'track is a list: write track = ["{given}"]')
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"track is a list of names and tables, not {given!r}")
    found: dict[str, Tracker] = {}
    for each in given:
        name, options = named(each)
        if name in found:
            raise ConfigurationError(f"track names {name!r} twice")
        found[name] = TRACKERS.create(name, options)
    return found


TRACKERS: Registry[Tracker] = Registry("tracker", "chimera.training.tracking", Tracker, family="trackers")
