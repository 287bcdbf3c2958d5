"""A first load and answer of a model of transformers, which makes those in processes that are forked later faster."""

from __future__ import annotations

import tempfile

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")
_SIZE = 8


def warm_up() -> None:
    """Load a tiny model, and let it answer a query.

    The first load in a process takes 0.3 s, because torch and transformers import more modules and fill caches. Random
    numbers drawn later are not affected.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer
    from transformers.utils import logging

    from chimera.inference.models import answers, load

    logging.disable_progress_bar()
    config = BertConfig(
        vocab_size=len(_WORDS), hidden_size=_SIZE, num_hidden_layers=1, num_attention_heads=1, intermediate_size=_SIZE,
        max_position_embeddings=_SIZE,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory(prefix="chimera-") as folder:
        BertTokenizer(vocab={word: number for number, word in enumerate(_WORDS)}).save_pretrained(folder)
        BertForMaskedLM(config).save_pretrained(folder)
        table = {"kind": "transformers", "task": "fill-mask", "model": folder, "device": "cpu"}
        answers(load(table), ["a [MASK]"])
