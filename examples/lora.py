"""Four clients adapt a small GPT to their texts and exchange adapters only; plain transformers then continues a sentence.

    python examples/lora.py moby_dick.txt

Any text of some 100 kB is enough. The script downloads nothing: it first trains the base on the text. The clients hold the same
text in capitals, which is new to the base. Takes about 40 s on two cores.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import chimera

CONFIG = {
    "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def train_base(text: Path, folder: Path) -> None:
    """Train a new GPT on the bytes of a text, and write it as transformers does."""
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "from": "config", "config": CONFIG},
        {"name": "text-blocks", "path": str(text), "block": 64},
        workers=2,
        batch_size=16,
        rounds=200,
        optimizer={"name": "adamw", "lr": 5e-3},
        out=folder / "base-run",
    )
    run.save(folder / "base")


def adapt(text: Path, folder: Path) -> None:
    """Adapt the base to another text on four clients, and write the adapter as peft does."""
    run = chimera.train(
        {
            "name": "huggingface",
            "task": "causal-lm",
            "path": str(folder / "base"),
            "lora": {"r": 8, "alpha": 16, "targets": "all-linear"},
        },
        {"name": "text-blocks", "path": str(text), "block": 64},
        strategy={"name": "fed-avg", "local_steps": 5},
        workers=4,
        batch_size=8,
        rounds=30,
        evaluate_every=1,
        optimizer={"name": "adamw", "lr": 1e-2},
        out=folder / "adapter-run",
    )
    adapter = run.save(folder / "adapter")
    first, last = run.history["perplexity"].dropna().iloc[[0, -1]]
    size = (adapter / "adapter_model.safetensors").stat().st_size
    print(f"perplexity on the clients' texts: {first:.1f} after one round, {last:.1f} after {run.cost.rounds}")
    print(f"the adapter has {size:,} bytes, the base {(folder / 'base' / 'model.safetensors').stat().st_size:,}")


def continued(folder: Path, beginning: str) -> str:
    """Return a sentence that the adapted model continues, in plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder / "adapter")
    tokens = torch.tensor([list(beginning.encode())])
    torch.manual_seed(1)
    found = model.generate(tokens, max_new_tokens=40, do_sample=True, temperature=0.6, pad_token_id=0)
    return bytes(found[0].tolist()).decode(errors="replace")


def main(source: str) -> None:
    """Train the base and the adapter, and print the sentence that the model generates."""
    folder = new_folder("runs/lora")
    lines = Path(source).read_text(encoding="utf-8")[:150_000]
    text, capitals = folder / "text.txt", folder / "capitals.txt"
    text.write_text(lines, encoding="utf-8")
    capitals.write_text(lines.upper(), encoding="utf-8")
    train_base(text, folder)
    adapt(capitals, folder)
    print(continued(folder, "THE "))


def new_folder(name: str) -> Path:
    """Return a new folder for the files of this example."""
    number = 1
    while (folder := Path(f"{name}-{number}")).exists():
        number += 1
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main(sys.argv[1])
