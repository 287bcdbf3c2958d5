"""A device whose memory the host does not see, played by the host: code that mixes the two fails here as it would on a GPU.

It takes the name of torch's `meta` device, whose tensors have no memory. Within `Apart` they have some, that only a copy from
one device to the other reaches: `numpy` refuses them, and so does every operation that takes tensors of the host too.
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


class _There(torch.Tensor):
    """A tensor on the fake device; it wraps a tensor of the host."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        own = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=NAME
        )
        own.held = held
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
        self.held = value.held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()


class Apart(TorchDispatchMode):
    """Within it, the device is there for this thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the requested work in the right process."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    away = any(isinstance(each, _There) for each in tensors)
    if away and func not in _CROSSINGS:  # scalars may come from the host, as for a GPU
        assert all(isinstance(each, _There) or not each.dim() for each in tensors), f"{func} mixes two devices"
    if kwargs.get("device") is not None:
        away, kwargs = torch.device(kwargs["device"]).type == NAME, {**kwargs, "device": "cpu"}
    elif func is _aten.copy_.default:
        away = isinstance(args[0], _There)
    known = {id(each.held): each for each in tensors if isinstance(each, _There)}
    args, kwargs = tree_map(lambda value: value.held if isinstance(value, _There) else value, (args, kwargs))
    found = func(*args, **kwargs)
    return tree_map(lambda value: _there(value, known), found) if away else found


def _there(value: Any, known: dict[int, _There]) -> Any:
    """Wrap a tensor for the fake device; return the tensor itself if an in-place operation returned it."""
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else _There(value)


def on_each_device(test: Any) -> Any:
    """Run a test with ``device``, this one and a GPU."""
    return pytest.mark.usefixtures("apart")(pytest.mark.parametrize("device", DEVICES)(test))


@contextmanager
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the device in all threads, with the fused optimizers that GPUs have."""
    run, fused = threading.Thread.run, optimizer._get_fused_kernels_supported_devices

    def run_within(self: threading.Thread) -> None:
        with Apart():
            run(self)

    monkeypatch.setattr(threading.Thread, "run", run_within)
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [*fused(), NAME])
    with Apart():
        yield
