"""Cost of loading, and of a query, of a vision transformer and a BERT of full size with random weights.

Both have the default configuration of their class: that of ``google/vit-base-patch16-224`` (86 million parameters, with
1,000 classes) and of ``google-bert/bert-base-uncased`` (110 million). They are written once, into ``vit`` and ``bert`` of a
folder, each with a table of the model (``vit.toml``, ``bert.toml``)::

    python benchmarks/inference_models.py [--to runs/inference-models] [--threads 1] [--batch-size 8]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from chimera.inference import models

VOCABULARY = 30_522
SENTENCE = "w1000 w1001 [MASK] w1002 w1003 w1004 w1005 w1006 ."


def write_vit(folder: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    ViTForImageClassification(ViTConfig(num_labels=1000)).save_pretrained(folder)
    ViTImageProcessorPil().save_pretrained(folder)


def write_bert(folder: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words += [f"w{i}" for i in range(len(words), VOCABULARY)]
    BertTokenizer(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    BertForMaskedLM(BertConfig(vocab_size=VOCABULARY)).save_pretrained(folder)


MODELS = {"vit": ("image-classification", write_vit), "bert": ("fill-mask", write_bert)}


def write(folder: Path) -> dict[str, dict[str, Any]]:
    """Write missing models; return the table of each model."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    tables = {}
    for name, (task, write_model) in MODELS.items():
        toml = folder / f"{name}.toml"
        if not toml.exists():
            folder.mkdir(parents=True, exist_ok=True)
            torch.manual_seed(0)
            write_model(folder / name)
            toml.write_text(f'kind = "transformers"\ntask = "{task}"\nmodel = "{name}"\n')
        tables[name] = models.read(toml)
    return tables


def queries(name: str, count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (224, 224, 3), np.uint8) if name == "vit" else SENTENCE for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("runs/inference-models"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    tables = write(arguments.to)
    print(
        f"{'model':6} {'MB':>5} {'load s':>7} {'ms a query, alone':>18} {f'in a batch of {arguments.batch_size}':>18}"
    )
    for name, table in tables.items():
        weights = (arguments.to / name / "model.safetensors").stat().st_size
        began = time.perf_counter()
        predictor = models.load(table)
        loading_s = time.perf_counter() - began
        each_ms = []
        for size in (1, arguments.batch_size):
            asked, times = queries(name, size), []
            for _ in range(arguments.repeats):
                began = time.perf_counter()
                answers = models.answers(predictor, asked)
                times.append((time.perf_counter() - began) / size)
                assert all("result" in answer for answer in answers)
            each_ms.append(1e3 * statistics.median(times))
        print(f"{name:6} {weights / 1e6:5.0f} {loading_s:7.2f} {each_ms[0]:18.1f} {each_ms[1]:18.1f}", flush=True)


if __name__ == "__main__":
    main()
