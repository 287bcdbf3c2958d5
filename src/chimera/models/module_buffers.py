"""The buffers of a torch module (such as running means of batch normalisation) as one vector; the parameters beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat

if TYPE_CHECKING:
    from torch import nn

_LIBRARIES = ("torch", "torchvision", "torchaudio", "transformers", "peft", "timm", "diffusers")


def buffer_names(module: nn.Module) -> list[str]:
    """Return the names of the buffers that are part of the module's state, each buffer once."""
    persistent = module.state_dict()
    return [name for name, _ in module.named_buffers() if name in persistent]


def left_out(module: nn.Module) -> list[str]:
    """Return the names of the buffers of numbers that are not part of the state of a user's own modules, each buffer once.

    Modules of libraries compute such buffers from their options, such as the frequencies of rotary embeddings.
    """
    import torch

    known, own = set(buffer_names(module)), set[int]()
    for part in module.modules():
        if type(part).__module__.partition(".")[0] not in _LIBRARIES:
            own |= {id(buffer) for buffer in part.buffers(recurse=False)}
    return [
        name
        for name, buffer in module.named_buffers()
        if name not in known and id(buffer) in own and buffer.dtype != torch.bool
    ]


def pack_buffers(module: nn.Module, names: list[str]) -> Flat:
    """Return the named buffers as one float32 vector, a copy.

    Raises
    ------
    ConfigurationError : a complex buffer.
    """
    import torch

    pieces = []
    for name in names:
        buffer = module.get_buffer(name)
        if buffer.is_complex():
            raise ConfigurationError(f"the buffer {name!r} is complex and cannot be sent as float32")
        pieces.append(buffer.detach().reshape(-1).to("cpu", torch.float32))
    flat: Flat = torch.cat(pieces).numpy() if pieces else np.empty(0, np.float32)
    return flat


def unpack_buffers(module: nn.Module, names: list[str], flat: Flat) -> None:
    """Set the named buffers from one vector; integers are rounded.

    An element whose float32 value already equals the given one keeps all its bits, so that large integers and float64
    constants are not rounded.

    Raises
    ------
    ConfigurationError : the vector has another length than the buffers.
    """
    import torch

    buffers = [module.get_buffer(name) for name in names]
    size = sum(buffer.numel() for buffer in buffers)
    if len(flat) != size:
        raise ConfigurationError(f"the buffers have {size} elements, the vector has {len(flat)}")
    values, begin = torch.from_numpy(np.array(flat, np.float32)), 0
    for buffer in buffers:
        value = values[begin : begin + buffer.numel()].view(buffer.shape).to(buffer.device)
        begin += buffer.numel()
        if buffer.dtype != torch.float32:
            exact = value if buffer.is_floating_point() else value.round()
            value = torch.where(value == buffer.to(torch.float32), buffer, exact.to(buffer.dtype))
        with torch.no_grad():
            buffer.copy_(value)


def batch_norm_parameters(module: nn.Module) -> list[str]:
    """Return the names of the parameters of batch normalisation."""
    from torch.nn.modules.batchnorm import _BatchNorm

    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
    return [f"{name}.{own}" if name else own for name, part in parts for own, _ in part.named_parameters()]


def check_rows(module: nn.Module, error: Exception, rows: int) -> None:
    """Raise ConfigurationError if ``error`` is that of batch normalization for a training batch with one value per channel."""
    if isinstance(error, ValueError) and str(error).startswith("Expected more than 1 value per channel"):
        raise ConfigurationError(
            f"{type(module).__name__} has batch normalization, which needs two or more rows to train on, but the batch of a "
            f"worker has {rows}: set a larger batch_size (in a pipeline, for each micro-batch), or use GroupNorm or LayerNorm"
        ) from error
