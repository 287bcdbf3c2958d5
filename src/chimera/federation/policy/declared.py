"""The settings that a requester declares for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.federation.policy.tables import converted
from chimera.training.privacy.settings import Privacy

MAX_BYTES = 65_536
"""Maximum size of the settings of a run as JSON."""
MAX_ROUNDS, MAX_NODES = 10_000_000, 1_000_000
_MAX_NAME_CHARACTERS = 200
_MAX_DEPTH, _MAX_NUMBER = 20, 1 << 63


@dataclass(frozen=True)
class Declared:
    """The settings of a run that a node uses for its decisions. The node compares calls with them.

    Attributes
    ----------
    strategy, model : tables with ``name`` and options, as in an experiment. ``{name = "folder", folder = NAME}`` is the model
        that the administrator of the node has called NAME.
    rounds : maximum number of updates that the run requests from the node.
    nodes : maximum number of nodes in a round.
    privacy : the table ``[train.privacy]``; None: updates leave without noise and masks.
    metrics : names of the metrics that the run requests of the node's test rows.
    """

    strategy: Mapping[str, Any]
    model: Mapping[str, Any]
    rounds: int
    nodes: int
    privacy: Mapping[str, Any] | None = None
    metrics: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for what, table in (("strategy", self.strategy), ("model", self.model)):
            name = table.get("name")
            if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARACTERS:
                raise ConfigurationError(f"the settings of the run: {what} has no name")
        for what, value, most in (("rounds", self.rounds, MAX_ROUNDS), ("nodes", self.nodes, MAX_NODES)):
            if not 1 <= value <= most:
                raise ConfigurationError(f"the settings of the run: {what} is from 1 to {most}")

    @classmethod
    def of(cls, given: Any) -> Declared:
        """Return the settings in a message.

        Raises
        ------
        ConfigurationError : they are too large, or a key or value is invalid.
        """
        made = converted(cls, given, "the settings of the run")
        made.text()
        _ = made.protection
        return made

    @cached_property
    def protection(self) -> Privacy | None:
        """The privacy settings of the run."""
        return Privacy.of(self.privacy)

    @property
    def model_name(self) -> str:
        """The name of the model in the node's policy."""
        name = self.model["name"]
        return str(self.model.get("folder")) if name == "folder" else str(name)

    def options(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in the table of the strategy or model."""
        reserved = ("name", "folder") if table.get("name") == "folder" else ("name",)
        return {key: value for key, value in table.items() if key not in reserved}

    def text(self) -> str:
        """Return the settings as JSON; equal settings have equal texts.

        Raises
        ------
        ConfigurationError : they are too large, or contain a value that JSON lacks. Other settings could have the same text.
        """
        _check_plain((self.strategy, self.model, self.privacy), _MAX_DEPTH)
        try:
            data = msgspec.json.encode(self, order="deterministic")
        except ValueError as error:
            raise ConfigurationError(f"the settings of the run cannot be read: {error}") from None
        if len(data) > MAX_BYTES:
            raise ConfigurationError(f"the settings of the run have more than {MAX_BYTES} bytes")
        return data.decode()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the settings, hexadecimal."""
        return sha256(self.text().encode()).hexdigest()


def _check_plain(value: Any, depth: int) -> None:
    """Raise ConfigurationError if JSON has no such value, so that it would become another one."""
    if depth and isinstance(value, Mapping) and all(type(key) is str for key in value):
        parts = list(value.values())
    elif depth and isinstance(value, list | tuple):
        parts = list(value)
    elif (
        value is None
        or type(value) in (bool, str)
        or (type(value) in (int, float) and -_MAX_NUMBER <= value < _MAX_NUMBER)
    ):
        return
    else:
        kind = "a number that is not finite or too large" if type(value) in (int, float) else "a value that JSON lacks"
        raise ConfigurationError(f"the settings of the run contain {kind}, or are nested too deeply")
    for part in parts:
        _check_plain(part, depth - 1)
