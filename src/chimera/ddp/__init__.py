"""Codecs inside PyTorch's ``DistributedDataParallel``: communication hooks for an unchanged training script.

::

    state, hook = chimera.ddp.hook("top-k", ratio=0.01, error_feedback=True)
    ddp_model.register_comm_hook(state, hook)
"""

from __future__ import annotations

from chimera.ddp.hook import State, compress, hook

__all__ = ["State", "compress", "hook"]
