"""A torch module whose parameters are views of one flat vector, and whose gradients are views of another."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from operator import attrgetter, getitem, is_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from chimera.core.device import copy_to
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, Layout
from chimera.core.pickling import ByValuePickler, Unpickler

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Memory: TypeAlias = Callable[[int], Flat]
"""Returns uninitialised float32 memory of that many elements."""

_grad = attrgetter("grad")


class FlatModule:
    """Lays the trainable parameters of a module into one vector, in the order of ``named_parameters()``.

    A parameter that occurs several times (tied) lies there once. One that does not require a gradient when the module is
    wrapped is left where it is: it is neither trained nor sent, and pickling takes it along.

    Parameters
    ----------
    module : all its parameters float32, on the CPU.
    memory : gives the two vectors; that of the gradient when it is first needed.

    Raises
    ------
    ConfigurationError : a parameter that cannot lie in the vector, or none to train.
    """

    def __init__(self, module: nn.Module, memory: Memory) -> None:
        self.module, self.memory = module, memory
        places = dict(_trainable(module))
        self._set_places(list(places))
        self.layout = Layout(tuple(places), tuple(tuple(parameter.shape) for parameter in places.values()))
        self._set_vector(memory(self.layout.size))
        self._parameters = list(places.values())
        self._lay_in()

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
        self._ahead = False  # whether the weights on the device are newer than those on the host
        self._gradient: Flat | None = None
        self._host_gradient: Tensor | None = None  # the same memory
        self._gradient_tensor: Tensor | None = None  # where the module computes
        self._gradient_views: list[Tensor] = []
        self._flat_parameter: nn.Parameter | None = None

    def _set_views(self, views: list[Tensor]) -> None:
        self._weight_views = views
        self._addresses = [view.data_ptr() for view in views]

    def _views(self, flat: Tensor) -> list[Tensor]:
        offsets = self.layout.offsets
        return [flat[begin:end].view(shape) for begin, end, shape in zip(offsets, offsets[1:], self.layout.shapes)]  # noqa: B905

    def _lay_in(self) -> None:
        """Make the module's parameters views of the vector, with the values they have."""
        for index, (owner, key) in enumerate(zip(self._owners, self._keys, strict=True)):
            parameter, view = owner.get(key), self._weight_views[index]
            if parameter is None or parameter.shape != view.shape or parameter.dtype != view.dtype:
                now = "gone" if parameter is None else f"{parameter.dtype} of shape {tuple(parameter.shape)}"
                raise ConfigurationError(
                    f"the parameter {self.layout.names[index]!r} is now {now}: wrap the module anew"
                )
            if parameter.data_ptr() != self._addresses[index]:
                view.copy_(parameter.data)
                if self.moved:
                    self._host_views[index].copy_(parameter.data)
                parameter.data = view
            self._parameters[index] = parameter

    @property
    def moved(self) -> bool:
        """Whether the module computes on a copy of the vector, on a device."""
        return self._on_device is not self._host

    @property
    def device(self) -> torch.device:
        """Where the module computes."""
        return self._on_device.device

    def address(self) -> int:
        """Return where the memory of the vector that the module computes with begins."""
        return self._on_device.untyped_storage().data_ptr()

    def move(self, device: str) -> None:
        """Let the module compute on ``device``, on a copy of the vector; on the CPU too, where that only costs.

        `weights` and `gradient` stay on the host, and what they hold counts, until `near_weights` is asked for. `upload` brings
        the weights, `collect_gradient` the gradient.
        """
        self.settle()
        self.land()
        self.module.to(device)
        self._on_device = self._host.to(device, copy=True)
        self._set_views(self._views(self._on_device))
        self._lay_in()
        self._gradient_tensor = None

    def upload(self) -> None:
        """Bring the weights to where the module computes, unless those there are newer."""
        if self.moved and not self._ahead:
            copy_to(self.weights, self._on_device)

    def land(self) -> None:
        """Bring the weights to the host, if those on the device are newer; from now on the host's count."""
        if self._ahead:
            copy_to(self._on_device, self.weights)
            self._ahead = False

    def near_weights(self) -> Any:
        """Return the vector that the module computes with; from now on it counts, until `land`."""
        self.upload()
        self._ahead = self.moved
        return self._on_device if self.moved else self.weights

    def settle(self) -> None:
        """Lay in again whatever was put elsewhere since (``parameter.data = ...``, a new `Parameter` in its place)."""
        same = all(map(is_, map(getitem, self._owners, self._keys), self._parameters))
        if not same or list(map(self._address, self._parameters)) != self._addresses:
            self._lay_in()

    @property
    def gradient(self) -> Flat:
        """The vector of all gradients, zero until a backward pass."""
        if self._gradient is None:
            import torch

            self._gradient = self.memory(self.layout.size)
            self._gradient.fill(0)
            self._host_gradient = torch.from_numpy(self._gradient)
        return self._gradient

    def _place_gradient(self) -> None:
        """Make the vector of gradients where the module computes; on the host it is that of `gradient`."""
        if self.moved:
            self._gradient_tensor = self._on_device.new_zeros(self.layout.size)
        else:
            _ = self.gradient
            self._gradient_tensor = self._host_gradient
        self._gradient_views = self._views(self._gradient_tensor)  # type: ignore[arg-type]

    def zero_gradient(self) -> None:
        """Make every ``.grad`` a zero view of the gradient vector, whatever it was before."""
        # On the hot path one parameter stands for all: what moves a module (``to``, ``load_state_dict(assign=True)``) moves
        # every one. `settle` looks at all of them.
        first = self._owners[0].get(self._keys[0])
        if first is not self._parameters[0] or first.data_ptr() != self._addresses[0]:
            self._lay_in()
        if self._gradient_tensor is None:
            self._place_gradient()
        self._gradient_tensor.zero_()  # type: ignore[union-attr]
        if not all(map(is_, map(_grad, self._parameters), self._gradient_views)):
            for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
                parameter.grad = view

    def collect_gradient(self) -> Flat:
        """Return the gradient vector on the host after a backward pass, see `near_gradient`."""
        found = self.near_gradient()
        if found is not self._gradient:
            copy_to(found, self.gradient)
        return self.gradient

    def near_gradient(self) -> Any:
        """Return that where the module computes, also if the module cleared its gradients on the way, or never had any."""
        if self._gradient_tensor is None:
            self._place_gradient()
        if self._parameters[0].grad is not self._gradient_views[0]:
            for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
                if parameter.grad is not view:
                    view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
                    parameter.grad = view
        return self._gradient_tensor if self.moved else self._gradient

    def flat_parameter(self) -> nn.Parameter:
        """Return one parameter of shape (P,) that shares the memory of all, its ``.grad`` the gradient vector."""
        import torch

        if self._flat_parameter is None:
            self._flat_parameter = torch.nn.Parameter(self._host)
        _ = self.gradient
        self._flat_parameter.grad = self._host_gradient
        return self._flat_parameter

    def __getstate__(self) -> dict[str, Any]:
        """The module without its parameters, and the vector once; the gradient stays behind."""
        if self.moved:
            raise ConfigurationError(f"a model that was moved to {self.device} does not travel: pickle it before that")
        self.settle()
        file = io.BytesIO()
        _ModulePickler(file, self._parameters).dump(self.module)
        return {
            "module": file.getvalue(),
            "memory": self.memory,
            "layout": self.layout,
            "weights": self.weights,
            "marks": [vars(parameter) for parameter in self._parameters],
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
        self.module = _ModuleUnpickler(io.BytesIO(state["module"]), self._parameters).load()
        self._set_places(list(self.layout.names))


class _ModulePickler(ByValuePickler):  # type: ignore[misc]
    """Writes an index in place of each flat parameter: torch's own pickling would write the whole vector for each."""

    def __init__(self, file: io.BytesIO, parameters: list[nn.Parameter]) -> None:
        super().__init__(file, protocol=5)
        self._places = {id(parameter): index for index, parameter in enumerate(parameters)}

    def persistent_id(self, thing: Any) -> int | None:
        return self._places.get(id(thing))


class _ModuleUnpickler(Unpickler):
    def __init__(self, file: io.BytesIO, parameters: list[nn.Parameter]) -> None:
        super().__init__(file)
        self._parameters = parameters

    def persistent_load(self, index: int) -> nn.Parameter:
        return self._parameters[index]


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    import torch

    places: dict[int, str] = {}
    none = True
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ConfigurationError(f"the parameter {name!r} has no shape yet: run the module on a batch first")
        if not parameter.requires_grad:
            continue
        none = False
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
        raise ConfigurationError(f"{type(module).__name__} has no parameter that requires a gradient: nothing to train")
