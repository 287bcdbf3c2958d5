"""The frozen parameters of a module. They travel out of band, so that the processes of a machine read the same memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

_version = attrgetter("_version")


class FrozenParameters:
    """Frozen parameters that all processes of a machine share. A pickle of protocol 5 holds their bytes as buffers.

    Receivers use these buffers in place, so no module may write to them. `check` finds writes that torch counts: all in-place
    operations, except those on ``parameter.data``.

    Parameters
    ----------
    named : the parameters by name, each once.
    """

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        self.names, self.parameters = tuple(named), list(named.values())
        self.watch()

    @classmethod
    def of(cls, module: nn.Module) -> FrozenParameters:
        """Return the parameters of a module that do not require a gradient."""
        return cls({name: parameter for name, parameter in module.named_parameters() if not parameter.requires_grad})

    def watch(self) -> None:
        """Accept the present values as the right ones."""
        self._versions = list(map(_version, self.parameters))

    def check(self) -> None:
        """Raise ConfigurationError if a parameter was written to since `watch`."""
        if list(map(_version, self.parameters)) == self._versions:
            return
        versions = zip(self.names, self.parameters, self._versions, strict=True)
        written = next(name for name, parameter, version in versions if parameter._version != version)
        raise ConfigurationError(
            f"the module wrote to its frozen parameter {written!r}, which all workers of a machine share: train it, or make it "
            "a buffer"
        )

    def digest(self) -> str | None:
        """Return the SHA-256 of names, types, shapes and values, in hexadecimal; None if there are no parameters."""
        if not self.names:
            return None
        found = hashlib.sha256()
        for name, parameter in zip(self.names, self.parameters, strict=True):
            found.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}\n".encode())
            found.update(_bytes_of(parameter))  # type: ignore[arg-type]
        return found.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "bytes": list(map(_bytes_of, self.parameters)),
            "forms": [(parameter.dtype, tuple(parameter.shape)) for parameter in self.parameters],
            "marks": [vars(parameter) for parameter in self.parameters],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        import torch

        self.names, self.parameters = state["names"], []
        for held, (dtype, shape), marks in zip(state["bytes"], state["forms"], state["marks"], strict=True):
            values = torch.from_numpy(np.asarray(_Writable(held))).view(dtype).view(shape)
            parameter = torch.nn.Parameter(values, requires_grad=False)
            vars(parameter).update(marks)
            self.parameters.append(parameter)
        self.watch()


class _Writable:
    """Read-only memory in the form in which torch accepts it: it has no read-only tensors, and warns of such arrays.

    The memory is kept until the array that NumPy creates from this object is deleted.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def frozen_digest(module: nn.Module) -> str | None:
    """Return the SHA-256 of the frozen parameters and of the factors of adapters, such as ``alpha / r``, of a module.

    None if the module has no frozen parameters.
    """
    digest = FrozenParameters.of(module).digest()
    if digest is None:
        return None
    factors = sorted(
        (name, float(factor))
        for name, part in module.named_modules()
        if type(part).__module__.startswith("peft.") and isinstance(scaling := getattr(part, "scaling", None), dict)
        for factor in scaling.values()
    )
    return hashlib.sha256(f"{digest} {factors}".encode()).hexdigest() if factors else digest


def _bytes_of(parameter: nn.Parameter) -> NDArray[np.uint8]:
    """Return the bytes of a parameter, without a copy if it is contiguous: NumPy lacks some types of torch."""
    import torch

    flat: NDArray[np.uint8] = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat
