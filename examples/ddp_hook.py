"""A plain PyTorch script of two processes, whose gradients a codec of Chimera compresses: the two marked lines are the change.

    torchrun --nproc-per-node 2 examples/ddp_hook.py                 # top-k, 1 % of the elements
    torchrun --nproc-per-node 2 examples/ddp_hook.py powersgd
    torchrun --nproc-per-node 2 examples/ddp_hook.py none            # plain DistributedDataParallel

Takes about 15 s on two cores.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import chimera

CODECS = {"top-k": {"ratio": 0.01, "error_feedback": True}, "powersgd": {"rank": 4}}

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
inputs, labels = load_digits(return_X_y=True)
inputs, labels = torch.tensor(inputs, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
test, own = order[:360], order[360:][rank::size]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
ddp_model = DistributedDataParallel(model)
codec = sys.argv[1] if len(sys.argv) > 1 else "top-k"
state = None
if codec != "none":
    state, hook = chimera.ddp.hook(codec, **CODECS.get(codec, {}))  # (1)
    ddp_model.register_comm_hook(state, hook)  # (2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(20):
    shuffled = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(epoch))]
    for batch in shuffled.split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp_model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
if rank == 0:
    accuracy = (model(inputs[test]).argmax(1) == labels[test]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    if state is not None:
        print(f"{state.bytes_sent:,} bytes sent; {state.bytes_plain:,} without the codec")
dist.destroy_process_group()
