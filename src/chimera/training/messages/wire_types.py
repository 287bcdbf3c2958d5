"""The small values of training, as they travel between a driver and nodes (`chimera.engines.http.wire`); import to let them."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import msgspec

from chimera.core.errors import DataError
from chimera.data.order import OwnOrder
from chimera.engines.http import wire
from chimera.training.messages.rejection import Applied, Rejected
from chimera.training.messages.tally import Tally
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy

T = TypeVar("T")


def let_travel(kind: type[Any]) -> None:
    """Let values of this type travel, a dataclass or a struct of plain fields; what arrives is checked against their types."""
    wire.register(kind, kind.__name__.lower(), msgspec.to_builtins, partial(_checked, kind=kind))


def _checked(plain: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"a {kind.__name__} cannot be made of this: {error}") from error


for _kind in (Rejected, Applied, Tally, OptimizerSettings, OwnOrder, Privacy):
    let_travel(_kind)
