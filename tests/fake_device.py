"""A fake device with separate memory, emulated on the host: code that mixes host and device tensors fails as on a GPU.

It has the name of torch's `meta` device, whose tensors have no memory. Within `FakeDevice`, they have memory that only copies
between devices can access: NumPy rejects these tensors, and so do operations that also take host tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"
NO_GPU = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="torch sees no GPU here: run it where there is one, with a build of torch for CUDA",
)
DEVICES = [NAME, pytest.param("cuda", marks=NO_GPU)]

_aten = torch.ops.aten
_CROSSINGS = _aten.copy_.default, _aten._to_copy.default


class _DeviceTensor(torch.Tensor):
    """A tensor on the fake device, backed by a host tensor."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> Any:
        own = torch.Tensor._make_wrapper_subclass(
            cls, host.size(), host.stride(), host.storage_offset(), dtype=host.dtype, device=NAME
        )
        own.host = host
        return own

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        self.host = value.host

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()


class FakeDevice(TorchDispatchMode):
    """A context in which this thread has the fake device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the host tensors behind its arguments; wrap the results if they belong on the fake device."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    away = any(isinstance(each, _DeviceTensor) for each in tensors)
    if away and func not in _CROSSINGS:  # scalars may come from the host, as for a GPU
        assert all(isinstance(each, _DeviceTensor) or not each.dim() for each in tensors), f"{func} mixes two devices"
    if kwargs.get("device") is not None:
        away, kwargs = torch.device(kwargs["device"]).type == NAME, {**kwargs, "device": "cpu"}
    elif func is _aten.copy_.default:
        away = isinstance(args[0], _DeviceTensor)
    known = {id(each.host): each for each in tensors if isinstance(each, _DeviceTensor)}
    args, kwargs = tree_map(lambda value: value.host if isinstance(value, _DeviceTensor) else value, (args, kwargs))
    found = func(*args, **kwargs)
    return tree_map(lambda value: _to_device_tensor(value, known), found) if away else found


def _to_device_tensor(value: Any, known: dict[int, _DeviceTensor]) -> Any:
    """Return a result as a device tensor; an in-place operation returns the device tensor that it changed."""
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else _DeviceTensor(value)


def on_each_device(test: Any) -> Any:
    """Run a test with the parameter ``device``: the fake device and a GPU."""
    return pytest.mark.usefixtures("fake_device")(pytest.mark.parametrize("device", DEVICES)(test))


@contextmanager
def in_all_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the fake device available in all threads, with fused optimizers as on GPUs."""
    run, fused = threading.Thread.run, optimizer._get_fused_kernels_supported_devices

    def run_within(self: threading.Thread) -> None:
        with FakeDevice():
            run(self)

    monkeypatch.setattr(threading.Thread, "run", run_within)
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused(), NAME])
    with FakeDevice():
        yield
