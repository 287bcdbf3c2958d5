"""The values of a model's table that the scheduler reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_AT_ONCE = 1024
"""Maximum number of queries that a model computes at once."""


def key_of(model: Mapping[str, Any]) -> str:
    """Return a hash of a table. Workers identify the models in their memory by it."""
    return hashlib.sha256(msgspec.json.encode(model, order="sorted")).hexdigest()[:16]


def queries_at_once(model: Mapping[str, Any]) -> int:
    """Return the number of queries that a model computes in little more time than one: ``max_num_seqs`` of its table."""
    number = model.get("max_num_seqs", 1)
    return min(max(number, 1), MAX_AT_ONCE) if isinstance(number, int) else 1
