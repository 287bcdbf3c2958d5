"""Checks of the options of jobs and of served models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from chimera.core.errors import ConfigurationError
from chimera.inference.client import with_version
from chimera.inference.models import check
from chimera.inference.pieces import MAX_QUERIES
from chimera.web.versions import is_unknown

MAX_RESERVE = 1000
"""Maximum number of workers that are reserved for a served model."""
MAX_WEIGHT = 1e6
"""Maximum weight of a job; the minimum is its reciprocal."""
MAX_SECONDS = 30 * 24 * 3600.0
"""Maximum of the time limit of batches, and of a latency target."""
MAX_TEXT = 4096
"""Maximum number of characters of a text in the table of a model, such as a path; logs and errors repeat it."""
MAX_TABLE_BYTES = 1 << 20
"""Maximum size of the table of a model, as JSON; each list of the jobs contains it."""
MAX_NAME = 100
"""Maximum number of characters in the name of a job."""


def checked_model(model: Mapping[str, Any], *, code: bool) -> dict[str, Any]:
    """Return the table of a model with its defaults, as `chimera.inference.models.check` does.

    Raises
    ------
    ConfigurationError : the table is invalid or too large, or has a value that answers in JSON cannot contain, such as an
        integer of more than 64 bits: the views of all jobs would fail.
    """
    try:
        table = check(model, code=code)
    except ConfigurationError as error:
        if is_unknown(str(error)):
            raise ConfigurationError(with_version(str(error))) from error
        raise
    for key, value in table.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise ConfigurationError(
                f"the model's {key!r} has {len(value):,} characters; at most {MAX_TEXT:,} are allowed"
            )
    try:
        size = len(orjson.dumps(table))
    except (TypeError, RecursionError) as error:
        raise ConfigurationError(f"the model's table has a value that JSON cannot contain: {error}") from error
    if size > MAX_TABLE_BYTES:
        raise ConfigurationError(
            f"the model's table has {size:,} bytes; at most {MAX_TABLE_BYTES:,} are allowed: write large values to a file"
        )
    return table


def check_name(name: str | None) -> None:
    """Raise ConfigurationError if a name is a number, which another job could have, or if it cannot be part of an address."""
    if name is None:
        return
    if name.isascii() and name.isdigit():
        raise ConfigurationError(f"the name {name!r} is a number, which jobs have too: add a letter")
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable() or "/" in name or name in (".", ".."):
        raise ConfigurationError(
            f"a name has 1 to {MAX_NAME} printable characters and no '/', unlike {name[:MAX_NAME]!r}"
        )


def checked_batch_size(batch_size: Any) -> int:
    """Return a batch size; 0 for ``auto``. Raise ConfigurationError if it is invalid."""
    if batch_size == "auto":
        return 0
    if type(batch_size) is not int or not 1 <= batch_size <= MAX_QUERIES:
        raise ConfigurationError(
            f"batch_size must be 'auto' or a whole number from 1 to {MAX_QUERIES}, not {batch_size!r}"
        )
    return batch_size


def checked_weight(weight: Any) -> float:
    """Return a weight. Raise ConfigurationError if it is not a number within the bounds."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise ConfigurationError(
            f"weight must be a number above 0, from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}, not {weight!r}"
        )
    return float(weight)


def checked_reserve(reserve: Any) -> int:
    """Return a number of reserved workers. Raise ConfigurationError if it is invalid."""
    if type(reserve) is not int or not 0 <= reserve <= MAX_RESERVE:
        raise ConfigurationError(f"reserve must be a whole number from 0 to {MAX_RESERVE}, not {reserve!r}")
    return reserve


def checked_latency_target(latency_target_s: Any) -> float:
    """Return a latency target in seconds; 0 for None, which is no target. Raise ConfigurationError if it is invalid."""
    if latency_target_s is None:
        return 0.0
    if not _is_duration(latency_target_s):
        raise ConfigurationError(
            f"latency_target_s must be a number above 0, at most {MAX_SECONDS:.0f}, not {latency_target_s!r}"
        )
    return float(latency_target_s)


def checked_max_workers(max_workers: Any) -> int:
    """Return a maximum number of workers; 0 for None, which is no limit. Raise ConfigurationError if it is invalid."""
    if max_workers is None:
        return 0
    if type(max_workers) is not int or not 1 <= max_workers <= MAX_QUERIES:
        raise ConfigurationError(f"max_workers must be a whole number from 1 to {MAX_QUERIES}, not {max_workers!r}")
    return max_workers


def checked_batch_timeout(batch_timeout_s: Any) -> float:
    """Return a time limit of batches in seconds; 0 for ``auto``. Raise ConfigurationError if it is invalid."""
    if batch_timeout_s == "auto":
        return 0.0
    if not _is_duration(batch_timeout_s):
        raise ConfigurationError(
            f"batch_timeout_s must be 'auto' or a number above 0, at most {MAX_SECONDS:.0f}, not {batch_timeout_s!r}"
        )
    return float(batch_timeout_s)


def checked_max_error_rate(rate: Any) -> float:
    """Return a maximum fraction of errors. Raise ConfigurationError if it is not a number from 0 to 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ConfigurationError(f"max_error_rate must be a number from 0 to 1, not {rate!r}")
    return float(rate)


def _is_duration(seconds: Any) -> bool:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_number and 0 < seconds <= MAX_SECONDS
