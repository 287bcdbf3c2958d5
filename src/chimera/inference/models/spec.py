"""A model as a table, which a worker loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec


def key_of(model: Mapping[str, Any]) -> str:
    """Return a short text that is the same for the same table: what a worker calls a model that it has loaded."""
    return hashlib.sha256(msgspec.json.encode(model, order="sorted")).hexdigest()[:16]
