"""The small values of training, as they travel between a driver and nodes (`chimera.engines.http.wire`); import to let them."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import msgspec

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.training.rejection import Applied, Rejected

T = TypeVar("T")


def _checked(plain: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"a {kind.__name__} cannot be made of this: {error}") from error


for _kind in (Rejected, Applied):
    wire.register(_kind, _kind.__name__.lower(), msgspec.to_builtins, partial(_checked, kind=_kind))
