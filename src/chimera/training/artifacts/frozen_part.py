"""The identity of a model's frozen part, which files of a run name and do not contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.models.model import Model

_KEY = "frozen"


def frozen_part(model: Model) -> dict[str, str]:
    """Return the entry of a file that identifies the model's frozen parameters; empty if there are none."""
    digest = getattr(model, "frozen_digest", None)
    return {} if digest is None else {_KEY: digest}


def check_frozen_part(entries: Mapping[str, Any], model: Model, source: str) -> None:
    """Raise ConfigurationError if the file ``source`` names other frozen parameters than those of the model.

    Files of older versions name none.
    """
    written = entries.get(_KEY)
    if written is not None and written != (own := getattr(model, "frozen_digest", None)):
        raise ConfigurationError(
            f"{source} was written with another base model, or another alpha of its adapters (SHA-256 of its frozen part "
            f"{str(written)[:12]}..., here {str(own)[:12]}...): use the model with which the run began"
        )
