"""The hook in scripts of other libraries, started as their users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_hook.py"
LIGHTNING = """
import sys
import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
import chimera

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(20, 2)
    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.last = loss.item()
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)

class Register(lightning.Callback):  # Lightning itself registers hooks on GPUs only
    def on_train_start(self, trainer, module):
        strategy = trainer.strategy
        strategy.model.register_comm_hook(strategy._ddp_comm_state, strategy._ddp_comm_hook)

if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(512, 20)
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    state, hook = chimera.ddp.hook("top-k", ratio=0.2, error_feedback=True)
    pair = {"ddp_comm_state": state, "ddp_comm_hook": hook}
    strategy = DDPStrategy(process_group_backend="gloo", start_method=sys.argv[1], **pair)
    module = Module()
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_epochs=8, accelerator="cpu", devices=2, strategy=strategy, callbacks=[Register()], **quiet)
    trainer.fit(module, torch.utils.data.DataLoader(data, 32))
    if sys.argv[1] == "popen" and trainer.global_rank == 0:
        print("steps", state.steps, "share", state.bytes_sent / state.bytes_plain)
    accuracy = (module.net(inputs).argmax(1) == data.tensors[1]).float().mean().item()
    if trainer.global_rank == 0:
        print("accuracy", accuracy)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
import chimera

torch.manual_seed(0)
inputs = torch.randn(512, 20)
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
net = torch.nn.Linear(20, 2)
accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(net.parameters(), 0.5)
model, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, 32))
state, hook = chimera.ddp.hook("powersgd", rank=1)
model.register_comm_hook(state, hook)
for _ in range(8):
    for batch, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(batch), labels))
        optimizer.step()
if accelerator.is_main_process:
    print("steps", state.steps, "share", state.bytes_sent / state.bytes_plain)
    print("accuracy", (net(inputs).argmax(1) == data.tensors[1]).float().mean().item())
"""


def told(*command: object) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True, text=True, check=False, timeout=150, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: float(number) for name, number in re.findall(r"(accuracy|steps|share) ([\d.]+)", done.stdout)}


def test_the_example_learns_with_a_sixtieth_of_the_bytes() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", EXAMPLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.findall(r"accuracy ([\d.]+)", done.stdout)[0]) > 0.95
    sent, plain = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:bytes|without)", done.stdout))
    assert 60 * sent < plain


@pytest.mark.parametrize("start", ["popen", "spawn"])
def test_lightning_takes_the_pair(tmp_path: Path, start: str) -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed: pip install lightning")
    script = tmp_path / "script.py"
    script.write_text(LIGHTNING)
    found = told(script, start)
    assert found["accuracy"] > 0.9
    if start == "popen":  # otherwise the state is in another process
        assert found["steps"] == 64
        assert found["share"] < 1


def test_accelerate_takes_the_pair(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
    script = tmp_path / "script.py"
    script.write_text(ACCELERATE)
    found = told("-m", "torch.distributed.run", "--nproc-per-node", "2", script)
    assert found["accuracy"] > 0.9
    assert found["steps"] == 64
