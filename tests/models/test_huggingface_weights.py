"""Differences between the weights of a checkpoint and the model that is made from it."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import chimera
from chimera.core.errors import ConfigurationError
from language_kit import BERT, GPT, LLAMA, PAIR, made, written_base

pytest.importorskip("transformers")
pytestmark = pytest.mark.takes("it imports transformers")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of models, by type; "bare" is a model without a head."""
    folder = tmp_path_factory.mktemp("bases")
    found = {
        str(config["model_type"]): written_base(folder / str(config["model_type"]), config, task)
        for config, task in ((GPT, "causal-lm"), (BERT, "masked-lm"), (LLAMA, "causal-lm"))
    }
    made(path=found["gpt2"]).module.transformer.save_pretrained(folder / "bare")
    return {**found, "bare": str(folder / "bare")}


CLASSES = "sequence-classification"


@pytest.mark.parametrize(
    ("base", "task", "config", "name"),
    [
        ("gpt2", "causal-lm", {"n_layer": 1}, r"transformer\.h\.1\."),
        ("gpt2", CLASSES, {"n_layer": 1, "pad_token_id": 0}, r"transformer\.h\.1\."),
        ("bare", CLASSES, {"n_layer": 1}, r"h\.1\."),
        ("bert", CLASSES, {"num_hidden_layers": 1}, r"bert\.encoder\.layer\.1\."),
        ("llama", "causal-lm", {"num_hidden_layers": 1}, r"model\.layers\.1\."),
    ],
)
def test_a_configuration_that_leaves_out_layers_is_refused(
    bases: dict[str, str], base: str, task: str, config: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"holds '{name}.*', but its configuration leaves out") as caught:
        made(task, path=bases[base], config=config)
    assert "remove the options in the table 'config' that change it, or set from = \"config\"" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "task", "config", "name"),
    [
        ("gpt2", "causal-lm", {"n_layer": 3}, r"transformer\.h\.2\."),
        ("bare", CLASSES, {"n_layer": 3}, r"transformer\.h\.2\."),
        ("bert", CLASSES, {"num_hidden_layers": 3}, r"bert\.encoder\.layer\.2\."),
        ("llama", CLASSES, {"attention_bias": True}, r"model\.layers\.0\.self_attn"),
    ],
)
def test_a_configuration_that_adds_weights_to_layers_is_refused(
    bases: dict[str, str], base: str, task: str, config: dict[str, Any], name: str
) -> None:
    words = rf"has no weights for '{name}.*', which its configuration needs: remove the options in the table 'config'"
    with pytest.raises(ConfigurationError, match=words):
        made(task, path=bases[base], config=config)


def test_a_file_of_a_configuration_that_leaves_out_layers_is_refused(bases: dict[str, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bases["gpt2"], tmp_path / "base"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 1}))
    with pytest.raises(ConfigurationError, match=r"holds 'transformer\.h\.1\."):
        made(path=str(folder))


def test_a_gguf_file_with_more_layers_than_the_configuration_is_refused(tmp_path: Path) -> None:
    file = written_gguf(tmp_path, layers=2)
    assert made(path=str(tmp_path), gguf_file=file).module.config.num_hidden_layers == 2
    with pytest.raises(ConfigurationError, match="num_hidden_layers = 2, and a table 'config' cannot change it to 1"):
        made(path=str(tmp_path), gguf_file=file, config={"num_hidden_layers": 1})


def written_gguf(folder: Path, layers: int) -> str:
    """Write a small Llama in the format GGUF; return the name of the file."""
    gguf = pytest.importorskip("gguf", reason="needs: pip install gguf")
    writer = gguf.GGUFWriter(folder / "a.gguf", "llama")
    writer.add_block_count(layers)
    writer.add_context_length(32)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    writer.add_rope_dimension_count(16)
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.{layer}.{name}.weight": (32, 32) for layer in range(layers) for name in names}
    norms = {f"blk.{layer}.{name}.weight": (32,) for layer in range(layers) for name in ("attn_norm", "ffn_norm")}
    others = {"token_embd.weight": (64, 32), "output.weight": (64, 32), "output_norm.weight": (32,)}
    for name, shape in {**shapes, **norms, **others}.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return "a.gguf"


def test_new_and_unused_weights_of_another_task_are_one_line(bases: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match="bert") as caught:
        made("token-classification", path=bases["bert"])
    (line,) = [str(each.message) for each in caught]
    assert line == (
        f"model {bases['bert']!r}: the weights of classifier are new, since its files have none that fit; "
        "the weights of cls.predictions in its files are not used"
    )


def test_a_new_pooler_is_named_too(bases: dict[str, str]) -> None:
    with pytest.warns(UserWarning, match=r"the weights of bert\.pooler\.dense, classifier are new"):
        made(CLASSES, path=bases["bert"])


def test_a_head_of_other_classes_is_named(tmp_path: Path) -> None:
    folder = written_base(tmp_path, BERT, CLASSES)
    with pytest.warns(UserWarning, match="the weights of classifier are new, since its files have none that fit$"):
        made(CLASSES, classes=7, path=folder)


def test_tensors_of_a_checkpoint_that_no_layer_uses_are_named(bases: dict[str, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bases["gpt2"], tmp_path / "base"))
    file = folder / "model.safetensors"
    save_file({**load_file(file), "transformer.h.0.attn.scale": np.ones((4,), np.float32)}, file, {"format": "pt"})
    with pytest.warns(UserWarning, match=r": the weights of transformer\.h\.0\.attn in its files are not used$"):
        made(path=str(folder))


def test_the_same_task_has_no_warning_and_the_library_writes_no_table(bases: dict[str, str]) -> None:
    messages: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, library = Kept(), logging.getLogger("transformers")
    library.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(path=bases["gpt2"])
        with pytest.warns(UserWarning, match="classifier"):
            made("token-classification", path=bases["bert"])
    finally:
        library.removeHandler(handler)
    assert not [message for message in messages if "LOAD REPORT" in message]


def test_a_run_shows_which_weights_are_new_and_the_loaded_run_has_none(bases: dict[str, str], tmp_path: Path) -> None:
    model = {"name": "huggingface", "task": CLASSES, "path": bases["bert"]}
    data = chimera.Dataset(PAIR[0], np.arange(12) % 3)
    with pytest.warns(UserWarning, match="classifier are new"):
        run = chimera.train(
            model, (data, data), engine="simulated", workers=2, batch_size=4, rounds=1, out=tmp_path / "run"
        )
    loaded = chimera.load(run.run_dir)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in run.model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": {"model_type": "bert"}}, "model_type = 'gpt2', and a table 'config' cannot change it to 'bert'"),
        ({"from": "config", "config": {"model_type": "bert"}}, "model_type = 'gpt2'"),
        ({"config": {"n_head": 4}}, "num_attention_heads = 2, and a table 'config' cannot change it to 4"),
        ({"config": {"to_dict": 1}}, "GPT2Config has no option 'to_dict'"),
        (
            {"config": {"tie_word_embeddings": False}},
            "'lm_head.weight': .* or an option in the table 'config' adds them",
        ),
        ({"tokenizer": "/no/such"}, "there is no folder '/no/such' with a tokenizer"),
    ],
)
def test_options_that_the_weights_do_not_have_are_one_line(
    bases: dict[str, str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        made(path=bases["gpt2"], **options)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_one_line(bases: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="has no tokenizer: write it with save_pretrained"):
        made(path=bases["gpt2"], tokenizer=bases["bert"])


def test_other_heads_of_attention_are_possible_for_new_weights(bases: dict[str, str]) -> None:
    assert made(**{"path": bases["gpt2"], "from": "config", "config": {"n_head": 4}}).module.config.n_head == 4


def test_next_tokens_of_a_model_that_reads_them_are_refused(bases: dict[str, str]) -> None:
    with pytest.raises(
        ConfigurationError, match="BertLMHeadModel reads the tokens that the task causal-lm predicts: set config"
    ):
        made(**{"from": "config", "config": BERT})
    model = made(path=bases["bert"], config={"is_decoder": True})
    changed = PAIR[0].copy()
    changed[:, 8:] += 1
    with torch.no_grad():
        first, second = (
            model.module.eval()(input_ids=torch.from_numpy(rows % 256)).logits for rows in (PAIR[0], changed)
        )
    assert torch.equal(first[:, :8], second[:, :8])
    assert not torch.equal(first, second)
