"""Models that the user's own code makes: ``package.module:name`` or ``file.py:name``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from chimera.core.errors import ConfigurationError
from chimera.core.registry import checked_options, load_object
from chimera.inference.models.table import KINDS, Predictor, existing_path, file_stamp
from chimera.models.instantiation import instantiate


@KINDS.register("factory")
@dataclass(frozen=True, kw_only=True)
class Factory:
    """A model made by a class or function of the user. It must have a method ``predict(queries: list) -> list``.

    Parameters
    ----------
    factory : ``package.module:name``, which the worker must be able to import, or ``file.py:name``. Its code is run.
    options : keyword arguments of the factory.
    stamp : set automatically. It changes when the file is written again, so that workers load the model again.
    """

    factory: str
    options: dict[str, Any] = field(default_factory=dict)
    stamp: str | None = None

    def __post_init__(self) -> None:
        place, colon, name = self.factory.rpartition(":")
        if not (place and colon and name.isidentifier()):
            raise ConfigurationError(
                f"factory = {self.factory!r} must have the form 'package.module:name' or 'file.py:name'"
            )

    @property
    def code(self) -> str:
        """The key of the table that names code."""
        return "factory"

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with an absolute path, if the factory is in a file."""
        place, _, name = self.factory.rpartition(":")
        if not place.endswith(".py"):
            return self
        whole = existing_path("factory", place, folder)
        return replace(self, factory=f"{whole}:{name}", stamp=self.stamp or file_stamp(Path(whole)))

    def load(self) -> Predictor:
        """Import the factory, and call it."""
        factory = load_object(self.factory)
        if not callable(factory):
            raise ConfigurationError(f"{self.factory!r} is a {type(factory).__name__}, not a class or function")
        options = checked_options(f"the factory {self.factory!r}", factory, self.options, {})
        made = instantiate(factory, options, seed=None, name=self.factory)
        if not callable(getattr(made, "predict", None)):
            raise ConfigurationError(
                f"the factory {self.factory!r} made a {type(made).__name__}, which has no method predict(queries)"
            )
        return cast(Predictor, made)
