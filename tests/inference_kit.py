"""Tiny models of random weights, in the files of the real ones, for the tests of inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = ["the", "a", "cat", "dog", "sat", "lay", "on", "under", "mat", "tree", ".", ","]
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
LABELS = ["cat", "dog", "owl", "fox", "hen", "cow", "bee"]
_SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def tiny_vit(folder: Path, *, safetensors: bool = True) -> Path:
    """Write an image classifier of `LABELS`; return the folder."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(1)
    names = dict(enumerate(LABELS))
    config = ViTConfig(image_size=32, patch_size=16, id2label=names, label2id={v: k for k, v in names.items()}, **_SIZE)
    model = ViTForImageClassification(config)
    model.save_pretrained(folder)
    if not safetensors:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def tiny_bert(folder: Path, *, classifier: bool = False, dtype: str = "float32", **size: int) -> Path:
    """Write a model that fills masks, or one that sorts texts into two classes; return the folder.

    ``size`` has other sizes, by the names of the configuration.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(2)
    BertTokenizer(vocab=VOCABULARY, do_lower_case=True).save_pretrained(folder)
    config = BertConfig(**{"vocab_size": len(VOCABULARY), "max_position_embeddings": 16, **_SIZE, **size})
    made = (BertForSequenceClassification if classifier else BertForMaskedLM)(config)
    made.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def tiny_roberta(folder: Path) -> Path:
    """Write a model that fills masks, whose first two positions are not those of tokens; return the folder."""
    import torch
    from transformers import BertTokenizer, RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(2)
    BertTokenizer(vocab=VOCABULARY, do_lower_case=True).save_pretrained(folder)
    config = RobertaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=16, pad_token_id=1, **_SIZE)
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


def tiny_gpt(folder: Path) -> Path:
    """Write a model that continues texts; return the folder."""
    import torch
    from transformers import BertTokenizer, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        eos_token_id=3,
        initializer_range=1.0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    BertTokenizer(vocab=VOCABULARY).save_pretrained(folder)
    return folder


def tiny_llama(folder: Path, **size: int) -> Path:
    """Write a model that continues texts of the words ``w0`` to ``w60``, and return the folder.

    ``size`` has other sizes, by the names of the configuration.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[EOS]", *(f"w{n}" for n in range(61))]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "[UNK]", "eos_token": "[EOS]", "pad_token": "[PAD]"}
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    torch.manual_seed(4)
    own = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = LlamaConfig(
        vocab_size=len(words), max_position_embeddings=64, eos_token_id=2, pad_token_id=0, initializer_range=1.0,
        **{**own, "num_key_value_heads": own["num_attention_heads"], **size},
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
