"""A torch module whose parameters are views of one flat vector, and whose gradients are views of another."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cached_property
from operator import getitem, is_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from chimera.core.device import copy_to, page_lock
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, Layout
from chimera.models.flat_gradient import FlatGradient
from chimera.models.frozen_parameters import FrozenParameters
from chimera.models.module_pickling import ModulePickler, ModuleUnpickler

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Memory: TypeAlias = Callable[[int], Flat]
"""A function that returns uninitialised float32 memory of the given number of elements."""


class FlatModule:
    """The trainable parameters of a module as one flat vector, in the order of ``named_parameters()``.

    A tied parameter is stored once. Parameters that do not require a gradient when the module is wrapped are not in the
    vector. They are neither trained nor sent, but they are pickled.

    Parameters
    ----------
    module : the module; its trainable parameters must be float32 and on the CPU.
    memory : allocates the two vectors; the gradient's on first use.
    share_frozen : whether the copies of this module in the processes of a machine share its frozen parameters.

    Raises
    ------
    ConfigurationError : a parameter that cannot be part of the vector, or no trainable parameter.
    """

    def __init__(self, module: nn.Module, memory: Memory, *, share_frozen: bool = False) -> None:
        self.module, self.memory = module, memory
        self._shared = FrozenParameters.of(module) if share_frozen else FrozenParameters({})
        places = dict(_trainable(module))
        self._set_places(list(places))
        self.layout = Layout(tuple(places), tuple(tuple(parameter.shape) for parameter in places.values()))
        self._set_vector(memory(self.layout.size))
        self._parameters = list(places.values())
        self._bind_parameters()

    @cached_property
    def parameters(self) -> int:
        """The number of parameters of the module, those that are not trained included."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def _set_places(self, names: list[str]) -> None:
        paths = [name.rpartition(".") for name in names]
        self._owners = [self.module.get_submodule(path)._parameters for path, _, _ in paths]
        self._keys = [key for _, _, key in paths]

    def _set_vector(self, weights: Flat) -> None:
        import torch

        self.weights = weights
        self._host = self._on_device = torch.from_numpy(weights)
        self._host_views = self._views(self._host)
        self._set_views(self._host_views)
        self._address: Callable[[Tensor], int] = torch.Tensor.data_ptr
        self._device_is_newer = False  # the weights on the device are newer than those on the host
        self._gradient: Flat | None = None
        self._host_gradient: Tensor | None = None  # the same memory
        self._placed: FlatGradient | None = None  # where the module computes
        self._flat_parameter: nn.Parameter | None = None

    def _set_views(self, views: list[Tensor]) -> None:
        self._weight_views = views
        self._addresses = [view.data_ptr() for view in views]

    def _views(self, flat: Tensor) -> list[Tensor]:
        offsets = self.layout.offsets
        return [flat[begin:end].view(shape) for begin, end, shape in zip(offsets, offsets[1:], self.layout.shapes)]  # noqa: B905

    def _bind_parameters(self) -> None:
        """Make the module's parameters views of the vector, keeping their values."""
        for index, (owner, key) in enumerate(zip(self._owners, self._keys, strict=True)):
            parameter, view = owner.get(key), self._weight_views[index]
            if parameter is None or parameter.shape != view.shape or parameter.dtype != view.dtype:
                now = "gone" if parameter is None else f"{parameter.dtype} of shape {tuple(parameter.shape)}"
                raise ConfigurationError(
                    f"the parameter {self.layout.names[index]!r} is now {now}: wrap the module again"
                )
            if parameter.data_ptr() != self._addresses[index]:
                view.copy_(parameter.data)
                if self.moved:
                    self._host_views[index].copy_(parameter.data)
                parameter.data = view
            self._parameters[index] = parameter
        if self._placed is not None:
            self._placed.watch(self._parameters)

    @property
    def moved(self) -> bool:
        """Whether the module computes on a copy of the vector, on a device."""
        return self._on_device is not self._host

    @property
    def device(self) -> torch.device:
        """The device on which the module computes."""
        return self._on_device.device

    def address(self) -> int:
        """Return the address of the memory of the vector that the module computes with."""
        return self._on_device.untyped_storage().data_ptr()

    def move(self, device: str) -> None:
        """Make the module compute on ``device`` with a copy of the vector. On the CPU this only costs time.

        `weights` and `gradient` stay on the host. `upload` copies the weights to the device, `collect_gradient` copies the
        gradient back. The host's weights are the valid ones until `device_weights` is called.
        """
        self.rebind()
        self.download()
        self.module.to(device)
        self._on_device = self._host.to(device, copy=True)
        self._set_views(self._views(self._on_device))
        self._bind_parameters()
        if self._placed is not None:
            self._placed.release()
            self._placed = None
        self._shared.watch()  # the device has its own copy

    def upload(self) -> None:
        """Copy the weights to the module's device, unless those on the device are newer."""
        if self.moved and not self._device_is_newer:
            copy_to(self.weights, self._on_device)

    def download(self) -> None:
        """Copy the weights to the host, if those on the device are newer. The host's weights are valid from now on."""
        if self._device_is_newer:
            copy_to(self._on_device, self.weights)
            self._device_is_newer = False

    def device_weights(self) -> Any:
        """Return the vector that the module computes with. It is the valid one until `download` is called."""
        self.upload()
        self._device_is_newer = self.moved
        return self._on_device if self.moved else self.weights

    def rebind(self) -> None:
        """Make parameters views again that were replaced since (``parameter.data = ...``, or a new `Parameter`)."""
        same = all(map(is_, map(getitem, self._owners, self._keys), self._parameters))
        if not same or list(map(self._address, self._parameters)) != self._addresses:
            self._bind_parameters()

    def check_complete(self) -> None:
        """Raise ConfigurationError if the module has a new trainable parameter, as after a first forward pass."""
        known = set(self.layout.names)
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and name not in known:
                raise ConfigurationError(
                    f"the parameter {name!r} was made in forward, so the run does not train it: make it in __init__, or run "
                    "the module on a batch before the run"
                )

    @property
    def gradient(self) -> Flat:
        """The vector of all gradients, zero until a backward pass."""
        if self._gradient is None:
            import torch

            self._gradient = self.memory(self.layout.size)
            self._gradient.fill(0)
            page_lock(self._gradient, self._on_device)
            self._host_gradient = torch.from_numpy(self._gradient)
        return self._gradient

    def _placed_gradient(self) -> FlatGradient:
        """Return a vector of gradients on the module's device; on the host it is `gradient`."""
        import torch

        vector = self._on_device.new_zeros(self.layout.size) if self.moved else torch.from_numpy(self.gradient)
        return FlatGradient(vector, self._views(vector), self._parameters)

    def clear_gradient(self) -> None:
        """Discard all gradients before a backward pass."""
        # Hot path: check one parameter only, since code that replaces parameters (``to``, ``load_state_dict(assign=True)``)
        # replaces all of them. `rebind` checks all.
        first = self._owners[0].get(self._keys[0])
        if first is not self._parameters[0] or first.data_ptr() != self._addresses[0]:
            self._bind_parameters()
        if self._placed is None:
            self._placed = self._placed_gradient()
        self._placed.clear()

    def collect_gradient(self) -> Flat:
        """Return the gradient vector on the host after a backward pass, see `device_gradient`."""
        found = self.device_gradient()
        if self._gradient is None or found is not self._gradient:
            copy_to(found, self.gradient)
            return self.gradient
        return self._gradient

    def device_gradient(self) -> Any:
        """Return the gradient on the module's device. Gradients that the module cleared or never computed are zero.

        Raises
        ------
        ConfigurationError : the module wrote to a frozen parameter that is shared.
        """
        if self._shared.parameters:
            self._shared.check()
        if self._placed is None:
            self._placed = self._placed_gradient()
        self._placed.collect()
        return self._placed.vector if self.moved else self._gradient

    def flat_parameter(self) -> nn.Parameter:
        """Return one parameter, shape (P,), that shares memory with all parameters; ``.grad`` is the gradient vector."""
        import torch

        if self._flat_parameter is None:
            self._flat_parameter = torch.nn.Parameter(self._host)
        _ = self.gradient
        self._flat_parameter.grad = self._host_gradient
        return self._flat_parameter

    def __getstate__(self) -> dict[str, Any]:
        """Return the module without its parameters, and the vector once; the gradient is not pickled."""
        if self.moved:
            raise ConfigurationError(
                f"a model that was moved to {self.device} cannot be pickled: pickle it before the move"
            )
        self.rebind()
        file = io.BytesIO()
        ModulePickler(file, [*self._parameters, *self._shared.parameters]).dump(self.module)
        return {
            "module": file.getvalue(),
            "memory": self.memory,
            "layout": self.layout,
            "weights": self.weights,
            "marks": [vars(parameter) for parameter in self._parameters],
            "shared": self._shared,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        import torch

        self.memory, self.layout = state["memory"], state["layout"]
        weights = self.memory(self.layout.size)
        np.copyto(weights, state["weights"])
        self._set_vector(weights)
        self._parameters = [torch.nn.Parameter(view) for view in self._weight_views]
        for parameter, marks in zip(self._parameters, state["marks"], strict=True):
            vars(parameter).update(marks)
        self._shared = state["shared"]
        known = [*self._parameters, *self._shared.parameters]
        self.module = ModuleUnpickler(io.BytesIO(state["module"]), known).load()
        self._set_places(list(self.layout.names))


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    import torch

    places: dict[int, str] = {}
    none = True
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigurationError(
            "a module of torch.jit cannot be trained: give the original module, with compile=True if needed"
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ConfigurationError(f"the parameter {name!r} has no shape yet: run the module on a batch first")
        if not parameter.requires_grad:
            continue
        none = False
        if parameter.dtype.is_complex:
            raise ConfigurationError(
                f"the parameter {name!r} is {parameter.dtype}; parameters must be torch.float32: store "
                "torch.view_as_real of it, and call torch.view_as_complex in forward"
            )
        if parameter.dtype != torch.float32:
            raise ConfigurationError(
                f"the parameter {name!r} is {parameter.dtype}; parameters must be torch.float32: call module.float()"
            )
        if parameter.device.type != "cpu":
            raise ConfigurationError(
                f"the parameter {name!r} is on {parameter.device}; it must be on the CPU: call module.cpu()"
            )
        if (first := places.setdefault(parameter.data_ptr(), name)) != name and parameter.numel():
            raise ConfigurationError(
                f"the parameters {first!r} and {name!r} share memory: to tie them, make both the same Parameter object"
            )
        yield name, parameter
    if none:
        what = f"{type(module).__name__} has no parameter that requires a gradient"
        raise ConfigurationError(f"{what}: nothing to train; if forward creates its layers, first run it on a batch")
