"""The key of a model's table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec


def key_of(model: Mapping[str, Any]) -> str:
    """Return a hash of a table. Workers identify the models in their memory by it."""
    return hashlib.sha256(msgspec.json.encode(model, order="sorted")).hexdigest()[:16]
