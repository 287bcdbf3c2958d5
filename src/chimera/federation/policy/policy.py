"""The policy of a node: the file ``policy.toml``, which the administrator of the node writes and no other program reads."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from chimera.core.errors import ConfigurationError
from chimera.core.toml import read_toml
from chimera.federation.policy.options import AllowedModel, AllowedStrategy, models_of, strategies_of
from chimera.federation.policy.requests import Requester
from chimera.federation.policy.tables import checked_keys, converted

Masks = Literal["required", "optional", "refused"]
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def _check(where: str, key: str, right: bool, must: str) -> None:
    if not right:
        raise ConfigurationError(f"{where}: {key} must be {must}")


@dataclass(frozen=True)
class Requesters:
    """The table ``[requesters]``: a requester with one of these names or certificates may begin runs.

    Attributes
    ----------
    names : names in certificates. The hub issues certificates: a dishonest hub can issue one with any name.
    fingerprints : SHA-256 of certificates, hexadecimal, with or without colons and ``sha256:``.
    """

    names: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprints", tuple(fingerprint(each, "[requesters]") for each in self.fingerprints))

    def include(self, requester: Requester) -> bool:
        """Return whether a requester may begin runs."""
        return requester.name in self.names or requester.fingerprint.lower() in self.fingerprints


@dataclass(frozen=True)
class PrivacyBounds:
    """The table ``[privacy]``: the protection of updates, and the budgets of epsilon.

    Attributes
    ----------
    min_noise : smallest noise multiplier of a run.
    max_clip : largest bound of the L2 norm of an update.
    delta : delta at which the node computes epsilon.
    epsilon_per_requester, epsilon_in_all : budgets; the defaults of 0 let no update leave. With ``inf`` for both, updates
        without noise may leave.
    protects : the neighbouring data sets of epsilon. ``rows``: the rows of the node differ in any way. ``node``: the node sends
        no update in one of them, as in the epsilon that runs report. A row can change an update by twice the clip, so ``rows``
        counts half of the noise.
    """

    min_noise: float = 1.0
    max_clip: float = math.inf
    delta: float = 1e-5
    epsilon_per_requester: float = 0.0
    epsilon_in_all: float = 0.0
    protects: Literal["rows", "node"] = "rows"

    def __post_init__(self) -> None:
        _check("[privacy]", "min_noise", 0 <= self.min_noise < math.inf, "a noise multiplier, at least 0")
        _check("[privacy]", "max_clip", self.max_clip > 0, "a norm, above 0")
        _check("[privacy]", "delta", 0 < self.delta < 1, "a probability, above 0 and below 1")
        for key in ("epsilon_per_requester", "epsilon_in_all"):
            _check("[privacy]", key, getattr(self, key) >= 0, "at least 0")
        if self.min_noise == 0 and not self.unlimited:
            raise ConfigurationError(
                "[privacy]: an update without noise has no epsilon: set min_noise above 0, or both budgets to inf"
            )

    @property
    def unlimited(self) -> bool:
        """Whether updates without noise are within the budgets."""
        return math.isinf(self.epsilon_per_requester) and math.isinf(self.epsilon_in_all)


@dataclass(frozen=True)
class Limits:
    """The table ``[limits]``.

    Attributes
    ----------
    rounds_per_day : maximum number of updates that leave in a day, for all requesters together. The maximum number of
        evaluations is larger by two. Further calls wait until the next day.
    bytes_per_day : maximum number of bytes of requests and answers in a day.
    hours : when calls run, ``HH:MM-HH:MM`` in local time; an interval over midnight is allowed. Other calls wait.
    min_rows : smallest number of rows of the node, and of rows that an update or a metric is computed from.
    """

    rounds_per_day: int | None = None
    bytes_per_day: int | None = None
    hours: str = "00:00-00:00"
    min_rows: int = 20

    def __post_init__(self) -> None:
        for key in ("rounds_per_day", "bytes_per_day"):
            _check("[limits]", key, getattr(self, key) is None or getattr(self, key) >= 0, "at least 0")
        _check("[limits]", "min_rows", self.min_rows >= 1, "at least 1")
        _check("[limits]", "hours", _HOURS.fullmatch(self.hours) is not None, 'an interval such as "08:00-18:00"')

    def open_at(self, minute: int) -> bool:
        """Return whether calls run at a minute of the day, from 0 to 1439. Equal ends are the whole day."""
        parts = [int(part) for part in re.split("[:-]", self.hours)]
        begin, end = parts[0] * 60 + parts[1], parts[2] * 60 + parts[3]
        if begin == end:
            return True
        return begin <= minute < end if begin < end else minute >= begin or minute < end

    def opens_in(self, minute: int) -> int:
        """Return the number of minutes from a minute of the day until calls run."""
        hours, minutes = map(int, self.hours[:5].split(":"))
        return (hours * 60 + minutes - minute) % 1440


@dataclass(frozen=True)
class Release:
    """The table ``[release]``: values that may leave the node besides updates. Epsilon does not cover them.

    Attributes
    ----------
    sample_rows : whether rows of the data may leave.
    statistics : whether sums, counts and bounds of columns may leave.
    metrics : names of the metrics of the node's test rows that may leave.
    epsilon : whether the hub, and the readers of its page, may know the spent epsilon and the budget of all requesters.
    """

    sample_rows: bool = False
    statistics: bool = False
    metrics: tuple[str, ...] = ()
    epsilon: bool = False


@dataclass(frozen=True)
class Policy:
    """The policy of a node. The default refuses every request.

    Attributes
    ----------
    requesters, privacy, limits, release : see their classes.
    strategies, models : those that a run may use, by name.
    secure_aggregation : whether updates leave with masks, of which only the sum can be read.
    min_nodes_in_sum : smallest number of updates in a sum; default 3 if masks are required, else 1.
    known_nodes : fingerprints of the certificates of other nodes that count in a sum; default: all of the federation.
    approval : ``ask``: a run waits for ``chimera node approve``. ``automatic``: it begins at once.
    """

    requesters: Requesters = field(default_factory=Requesters)
    strategies: Mapping[str, AllowedStrategy] = field(default_factory=dict)
    models: Mapping[str, AllowedModel] = field(default_factory=dict)
    privacy: PrivacyBounds = field(default_factory=PrivacyBounds)
    limits: Limits = field(default_factory=Limits)
    release: Release = field(default_factory=Release)
    secure_aggregation: Masks = "required"
    min_nodes_in_sum: int | None = None
    known_nodes: tuple[str, ...] = ()
    approval: Literal["ask", "automatic"] = "ask"

    def __post_init__(self) -> None:
        object.__setattr__(self, "known_nodes", tuple(fingerprint(each, "known_nodes") for each in self.known_nodes))
        least = self.min_nodes_in_sum
        if least is None:
            object.__setattr__(self, "min_nodes_in_sum", 3 if self.secure_aggregation == "required" else 1)
        elif least < (2 if self.secure_aggregation == "required" else 1):
            raise ConfigurationError("min_nodes_in_sum must be at least 1, and 2 with secure_aggregation = 'required'")
        elif least > 1 and self.secure_aggregation != "required":
            raise ConfigurationError(
                "min_nodes_in_sum above 1 needs secure_aggregation = 'required': without masks, single updates are read"
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a policy file. Folders of models start at its folder.

        Raises
        ------
        ConfigurationError : the file cannot be read, or a key or value is invalid; the message is one line.
        """
        try:
            tables = read_toml(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(f"there is no policy file {str(path)!r}") from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the policy file {str(path)!r} cannot be read: {error}") from error
        try:
            return cls.of(tables, path.resolve().parent)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error

    @classmethod
    def of(cls, tables: Mapping[str, Any], folder: Path) -> Self:
        """Return the policy of these tables; ``folder`` is where relative folders of models start.

        Raises
        ------
        ConfigurationError : a key or value is invalid.
        """
        checked_keys(tables, tuple(each.name for each in fields(cls)), "the policy")
        made: dict[str, Any] = dict(tables)
        for name, kind in _TABLES.items():
            made[name] = converted(kind, tables.get(name, {}), f"[{name}]")
        made["strategies"] = strategies_of(tables.get("strategies", {}))
        made["models"] = models_of(tables.get("models", {}), folder)
        plain = {key: value for key, value in made.items() if key in _PLAIN}
        checked = converted(_Plain, plain, "the policy")
        return cls(**{**made, **{key: getattr(checked, key) for key in plain}})


@dataclass(frozen=True)
class _Plain:
    """The keys of a policy outside its tables."""

    secure_aggregation: Masks = "required"
    min_nodes_in_sum: int | None = None
    known_nodes: tuple[str, ...] = ()
    approval: Literal["ask", "automatic"] = "ask"


_TABLES: Mapping[str, type[Any]] = {
    "requesters": Requesters,
    "privacy": PrivacyBounds,
    "limits": Limits,
    "release": Release,
}
_PLAIN = tuple(each.name for each in fields(_Plain))


def fingerprint(text: str, where: str) -> str:
    """Return the SHA-256 of a certificate as 64 lower-case digits.

    Raises
    ------
    ConfigurationError : the text has another form.
    """
    plain = text.lower().removeprefix("sha256:").replace(":", "")
    if not _FINGERPRINT.fullmatch(plain):
        raise ConfigurationError(f"{where}: {text!r:.80} is no SHA-256 of a certificate: 64 hexadecimal digits")
    return plain
