"""The modules of the option ``--preload``: named ones, or those that models of Hugging Face need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.inference.models import modules_of

AUTO = "auto"
"""The libraries of `KINDS`, if they are installed; workers do not wait for them."""
KINDS = ("transformers", "text-generation", "text-embeddings")
"""Kinds of models whose libraries take seconds to import, and whose weights may be shared."""


def awaited(preload: str) -> list[str]:
    """Return the modules that are imported before workers join."""
    return [] if preload == AUTO else [name for name in preload.split(",") if name]


def ahead(preload: str) -> list[str]:
    """Return the modules that are imported while workers start."""
    return modules_of(KINDS) if preload == AUTO else []


def preload_for(model: Mapping[str, Any]) -> str:
    """Return the option for a cluster that serves one model."""
    return AUTO if model.get("kind") in KINDS else ""
