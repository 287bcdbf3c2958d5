"""Pickling of torch modules without their flat and shared parameters."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from chimera.core.pickling import ByValuePickler, Unpickler

if TYPE_CHECKING:
    from torch import nn


class ModulePickler(ByValuePickler):  # type: ignore[misc]
    """Writes an index in place of each flat or shared parameter: torch's own pickling would write the whole vector for each."""

    def __init__(self, file: io.BytesIO, parameters: list[nn.Parameter]) -> None:
        super().__init__(file, protocol=5)
        self._places = {id(parameter): index for index, parameter in enumerate(parameters)}

    def persistent_id(self, thing: Any) -> int | None:
        """Return the index of a parameter that is not written; None for other objects."""
        return self._places.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        """Reduce modules of `torch.nn.utils.parametrize`, which refuse pickling, to their class and attributes."""
        parts = getattr(thing, "_modules", None)
        known = isinstance(parts, dict) and "parametrizations" in parts
        if not known or not type(thing).__name__.startswith("Parametrized"):
            return super().reducer_override(thing)
        from torch.nn.utils.parametrize import type_before_parametrizations

        names = list(thing.parametrizations.keys())
        return _parametrized, (type_before_parametrizations(thing), names), vars(thing), None, None, _set_attributes


def _parametrized(kind: type[nn.Module], names: list[str]) -> nn.Module:
    """Return a module whose attributes are not set yet, with the class that the parametrized tensors need."""
    import torch
    from torch.nn.utils.parametrize import register_parametrization

    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name in names:
        module.register_parameter(name, torch.nn.Parameter(torch.empty(0)))
        register_parametrization(module, name, torch.nn.Identity(), unsafe=True)
    return module


def _set_attributes(module: nn.Module, attributes: dict[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(attributes)


class ModuleUnpickler(Unpickler):
    """Reads what `ModulePickler` wrote."""

    def __init__(self, file: io.BytesIO, parameters: list[nn.Parameter]) -> None:
        super().__init__(file)
        self._parameters = parameters

    def persistent_load(self, index: int) -> nn.Parameter:
        """Return the parameter of an index."""
        return self._parameters[index]
