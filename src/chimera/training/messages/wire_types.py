"""Wire types of training, which a driver and its nodes exchange (`chimera.engines.http.wire`); registered on import."""

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


def register_wire_type(kind: type[Any], name: str) -> None:
    """Register a dataclass or struct of plain fields as a type of message values; its name in messages is ``name``.

    A receiver checks values against the types of the fields.
    """
    wire.register(kind, name, msgspec.to_builtins, partial(_checked, kind=kind))


def _checked(plain: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"a message has no valid {kind.__name__}: {error}") from error


for _kind in (Rejected, Applied, Tally, OptimizerSettings, OwnOrder, Privacy):
    register_wire_type(_kind, _kind.__name__.lower())
