"""The model ``huggingface``: tasks, sources, batches, adapters and mistakes."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chimera.cli.list import options_of
from chimera.core.errors import CodeRefusedError, ConfigurationError, DataError
from chimera.core.registry import registered_names_only
from chimera.models.instantiation import parameter_limit
from chimera.models.model import MODELS
from language_kit import BERT, GPT, LLAMA, PAIR, T5, TOKENS, made, written_base

pytest.importorskip("transformers")
pytestmark = pytest.mark.takes("it imports transformers")
NEW = {"from": "config", "config": GPT}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"))


def test_pairs_of_next_tokens_and_the_library_s_own_labels_give_the_same_loss() -> None:
    model = made(**{"from": "config", "config": {**GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}})
    whole, loss = model.gradient((PAIR[0][:, :-1], PAIR[0][:, 1:]))
    whole = whole.copy()
    own, own_loss = model.gradient({"input_ids": PAIR[0], "labels": PAIR[0]})  # the library shifts the labels itself
    assert loss == pytest.approx(own_loss, rel=1e-5)
    np.testing.assert_allclose(whole, own, atol=1e-5)


def test_a_causal_model_without_labels_predicts_its_tokens_and_no_padding() -> None:
    model, mask = made(**NEW), np.ones_like(TOKENS)
    mask[:, 10:] = 0
    figures = model.evaluate({"input_ids": TOKENS, "attention_mask": mask})
    assert figures["loss"] == pytest.approx(model.evaluate((TOKENS[:, :9], TOKENS[:, 1:10]))["loss"], rel=1e-5)
    assert figures["perplexity"] == pytest.approx(np.exp(figures["loss"]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "batch", "metric"),
    [
        ("masked-lm", (np.where(PAIR[0] % 3, PAIR[0], 0), np.where(PAIR[0] % 3, -100, PAIR[0])), "perplexity"),
        ("sequence-classification", {"input_ids": PAIR[0], "label": np.arange(12) % 3}, "accuracy"),
        ("token-classification", (PAIR[0], PAIR[0] % 3), "accuracy"),
    ],
)
def test_each_task_learns_its_targets(task: str, batch: Any, metric: str) -> None:
    model = made(task, **{"from": "config", "config": BERT})
    before = model.evaluate(batch)
    optimizer = torch.optim.AdamW([model.flat_parameter()], lr=0.01)
    for _ in range(60):
        model.gradient(batch)
        optimizer.step()
    after = model.evaluate(batch)
    assert after["loss"] < 0.5 * before["loss"]
    assert (after[metric] > before[metric]) == (metric == "accuracy")
    predicted = model.predict(PAIR[0])
    assert predicted.shape == ((12,) if task.startswith("sequence") else (12, 16))
    if metric == "accuracy":
        targets = batch["label"] if isinstance(batch, dict) else batch[1]
        assert (predicted == targets).mean() == after["accuracy"]


@pytest.mark.parametrize(
    ("task", "batch", "words"),
    [
        ("masked-lm", PAIR, "the targets of a batch are the next tokens of its inputs, which BertForMaskedLM reads"),
        ("seq2seq", PAIR, "the targets of a batch are the next tokens .*: set task = 'causal-lm'"),
        (
            "masked-lm",
            (PAIR[0], np.where(PAIR[0] % 3, -100, PAIR[0])),
            "those of its inputs at the same positions, .* by the mask token",
        ),
        ("masked-lm", {"input_ids": PAIR[0]}, "a batch has no targets: the task needs the original tokens"),
    ],
)
def test_targets_that_a_model_reads_are_a_data_error(task: str, batch: Any, words: str) -> None:
    model = made(task, **{"from": "config", "config": T5 if task == "seq2seq" else BERT})
    with pytest.raises(DataError, match=words) as caught:
        model.gradient(batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        (
            "masked-lm",
            (PAIR[0][:1, :8], np.where(np.arange(8) == 3, PAIR[0][:1, :8], -100)),
        ),  # one token, kept by chance
        ("seq2seq", {"input_ids": PAIR[0], "labels": PAIR[0]}),  # a copy
    ],
)
def test_plausible_targets_are_accepted(task: str, batch: Any) -> None:
    assert np.isfinite(made(task, **{"from": "config", "config": T5 if task == "seq2seq" else BERT}).gradient(batch)[1])


VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
IMAGES = np.random.default_rng(0).random((6, 3, 8, 8)), np.arange(6) % 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "config", "batch"),
    [
        (
            "image-classification",
            VIT,
            IMAGES,
        ),
        (
            "seq2seq",
            T5,
            {"input_ids": PAIR[0], "labels": PAIR[1][:, ::-1].copy()},
        ),
    ],
)  # fmt: skip
def test_images_and_sequences_train(task: str, config: dict[str, Any], batch: Any) -> None:
    model = made(task, **{"from": "config", "config": config})
    gradient, loss = model.gradient(batch)
    assert np.isfinite(loss)
    assert np.abs(gradient).max() > 0


def test_a_pretrained_folder_gives_its_weights(base: str) -> None:
    model, new = made(path=base), made(**NEW)
    assert np.array_equal(model.parameters(), new.parameters())
    assert made(path=base, config={"resid_pdrop": 0.3}).module.config.resid_pdrop == 0.3


@pytest.mark.parametrize("file", ["", "config.json"])
def test_new_weights_of_the_configuration_of_a_model(base: str, file: str) -> None:
    model = made(**{"from": "config", "path": str(Path(base) / file), "config": {"n_layer": 1}})
    assert 0 < model.layout.size < made(path=base).layout.size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option 'path'"),
        ({"path": "no-such/model"}, "the model 'no-such/model' is not a folder, and it cannot be read from the hub"),
        ({"path": "/no/such"}, "there is no folder '/no/such'"),
        ({**NEW, "config": {**GPT, "n_layers": 2}}, "GPT2Config has no option 'n_layers'; did you mean 'n_layer'"),
        ({**NEW, "config": {"model_type": "gtp2"}}, "transformers has no model_type 'gtp2'"),
        ({**NEW, "dtype": "bf16"}, "'bf16' is the type of frozen parameters"),
        ({**NEW, "lora": {}, "peft": {}}, "both tables 'lora' and 'peft'"),
        ({"from": "elsewhere"}, "option 'from'"),
        ({**NEW, "gguf_file": "a.gguf"}, "gguf_file holds weights"),
        ({**NEW, "loss": "mse"}, "'loss' cannot be set"),
        ({**NEW, "config": {**GPT, "n_embd": "wide"}}, "'n_embd': TypeError: Field 'n_embd' expected int"),
        ({**NEW, "config": {**GPT, "n_layer": -1}}, "has -1 layers"),
        ({**NEW, "config": {**GPT, "vocab_size": 0}}, "'transformer.wte.weight' of the model has shape (0, 32"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("(", r"\(")) as caught:
        made(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"model.safetensors": 3000}, {}, "the weights of the model '.*' cannot be read: SafetensorError"),
        (
            {"config.json": 9},
            {},
            "the configuration of the model '.*' cannot be read: OSError: .* is not a valid JSON file",
        ),
        ({}, {"task": "seq2seq"}, "no model of type 'gpt2' for this task"),
        (
            {},
            {"config": {"n_embd": 64}},
            "of shape .*, but its configuration needs .*: remove the options in the table 'config'",
        ),
        ({}, {"task": "sequence-classification", "config": {"vocab_size": 9}}, "'transformer.wte.weight' of shape"),
        ({}, {"gguf_file": "a.gguf"}, "has no file 'a.gguf'; its GGUF files: none"),
        ({}, {"peft": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 0}}, "trains no parameters"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(
    base: str, tmp_path: Path, change: dict[str, int], options: dict[str, Any], words: str
) -> None:
    """Files of a model are cut, or the options do not fit them."""
    if "peft" in options:
        pytest.importorskip("peft")
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    for name, size in change.items():
        (folder / name).write_bytes((folder / name).read_bytes()[:size])
    with pytest.raises(ConfigurationError, match=words) as caught:
        made(path=str(folder), **options)
    assert "\n" not in str(caught.value)


def test_a_truncated_gguf_file_is_one_line(base: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs: pip install gguf")
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    (folder / "a.gguf").write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + bytes([1] + [0] * 7) * 2 + bytes([5] + [0] * 7))
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*; if the file is incomplete") as caught:
        made(path=str(folder), gguf_file="a.gguf")
    assert "\n" not in str(caught.value)


def test_a_task_must_be_given_and_known() -> None:
    with pytest.raises(ConfigurationError, match="needs the option 'task': causal-lm"):
        MODELS.create("huggingface", {"from": "config"}, count_outputs=int, task="classification")
    with pytest.raises(ConfigurationError, match="option 'task'"):
        made("speech")


def test_a_base_for_another_task_is_refused(tmp_path: Path) -> None:
    folder = written_base(tmp_path, BERT, "sequence-classification")
    with pytest.raises(ConfigurationError, match="has no weights for"):
        made("masked-lm", path=folder)


def test_a_token_beyond_the_vocabulary_is_a_data_error() -> None:
    with pytest.raises(DataError, match="set vocab_size"):
        made(**NEW).gradient((PAIR[0] + 250, PAIR[1]))


@pytest.mark.parametrize(
    ("targets", "words"),
    [(PAIR[1], "predicts one class of each sample"), (PAIR[1][:, 0] % 3, "set config = { pad_token_id")],
)
def test_classes_that_a_model_of_sequences_cannot_predict_are_a_data_error(targets: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        made("sequence-classification", **NEW).gradient((PAIR[0], targets))


@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_more_tokens_than_positions_are_a_data_error(config: dict[str, Any]) -> None:
    model, twice = made(**{**NEW, "config": config}), np.tile(PAIR[0], 3)
    with pytest.raises(DataError, match="a sample has 48 tokens, and the model has 32 positions: use shorter samples"):
        model.gradient((twice, twice))


def test_code_of_a_model_is_refused_where_code_by_path_is(base: str) -> None:
    with registered_names_only("a stranger"), pytest.raises(CodeRefusedError, match="trust_remote_code"):
        made(path=base, trust_remote_code=True)


def test_a_model_may_be_as_large_as_its_own_files(base: str) -> None:
    with parameter_limit(100, "a file has bytes"):
        assert made(path=base).layout.size > 100
    with parameter_limit(100, "a file has bytes"), pytest.raises(ConfigurationError, match="more parameters"):
        made(**NEW)


def test_the_list_of_options_has_the_keyword() -> None:
    listed = dict(option.split("=") for option in options_of(MODELS.find("huggingface"), ("count_outputs", "task")))
    assert listed["from"] == "'pretrained'"


@pytest.fixture(scope="module")
def _peft() -> None:
    pytest.importorskip("peft")


@pytest.mark.usefixtures("_peft")
class TestAdapters:
    def test_only_adapters_are_trained_and_sent(self, base: str) -> None:
        model = made(path=base, lora={"r": 4, "targets": ["c_attn"]})
        assert model.layout.size == 2 * (4 * 32 + 96 * 4)
        assert all("lora_" in name for name in model.layout.names)
        assert np.array_equal(model.parameters(), made(path=base, lora={"r": 4, "targets": ["c_attn"]}).parameters())

    def test_frozen_a_leaves_b(self, base: str) -> None:
        model = made(path=base, lora={"r": 4, "targets": ["c_attn"], "freeze_a": True})
        assert model.layout.size == 2 * 96 * 4
        assert all("lora_B" in name for name in model.layout.names)

    def test_a_base_in_bfloat16_is_half_as_large_and_computes_nearly_the_same(self, base: str) -> None:
        half, whole = (made(path=base, dtype=dtype, lora={"targets": ["c_attn"]}) for dtype in ("bf16", "fp32"))
        sizes = [
            sum(len(buffer.raw()) for buffer in buffers_of(model)) - 4 * model.layout.size for model in (half, whole)
        ]
        assert sizes[1] == 2 * sizes[0]
        assert half.gradient(PAIR)[1] == pytest.approx(whole.gradient(PAIR)[1], rel=0.02)

    def test_another_factor_of_the_adapters_is_another_frozen_part(self, base: str) -> None:
        digests = [
            made(path=base, lora={"r": 4, "targets": ["c_attn"], **more}).frozen_digest
            for more in ({}, {"alpha": 8.0}, {"dropout": 0.1}, {"alpha": 16.0})
        ]
        assert digests[0] == digests[2] == digests[3] != digests[1]

    def test_an_adapter_starts_as_the_base(self, base: str) -> None:
        assert made(path=base, lora={}).evaluate(PAIR) == made(path=base).evaluate(PAIR)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"lora": {"rank": 4}}, "table 'lora' has no option 'rank'"),
            ({"lora": {"r": 0}}, "r must be at least 1"),
            ({"lora": {"r": 2.5}}, "table 'lora', option 'r': 2.5 cannot be used"),
            ({"lora": {"r": 10**9}}, "r is 1000000000, and no layer has more than 32 inputs or outputs"),
            ({"lora": {"alpha": 0.0}}, "alpha is 0.0: it must be a finite number above 0"),
            ({"lora": {"alpha": float("nan")}}, "alpha is nan"),
            ({"lora": {"targets": ["q_proj"]}}, "does not fit GPT2LMHeadModel.*set targets .* its layers: c_attn"),
            ({"peft": {}}, "peft_type is ''; known: ADALORA"),
            ({"peft": {"peft_type": "IA3", "rr": 3}}, "IA3 has no option 'rr'"),
            (
                {"peft": {"peft_type": "IA3", "inference_mode": True}},
                "trains no parameters: .* remove inference_mode",
            ),
        ],
    )
    def test_mistakes_are_one_line(self, base: str, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as caught:
            made(path=base, **options)
        assert "\n" not in str(caught.value)

    @pytest.mark.long
    @pytest.mark.parametrize("dtype", ["fp32", "bf16"])
    @pytest.mark.parametrize(
        ("task", "config", "options"),
        [
            ("causal-lm", LLAMA, {"lora": {"targets": "all-linear", "dropout": 0.1}}),
            (
                "causal-lm",
                LLAMA,
                {"peft": {"peft_type": "LORA", "r": 2, "use_dora": True, "target_modules": ["q_proj"]}},
            ),
            ("causal-lm", GPT, {"peft": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 3}}),
            ("causal-lm", GPT, {"peft": {"peft_type": "ia3"}}),
            ("sequence-classification", BERT, {"lora": {}}),
            ("token-classification", BERT, {"lora": {}}),
            ("image-classification", VIT, {"lora": {"targets": "all-linear"}}),
        ],
    )
    def test_any_adapter_trains(
        self, tmp_path: Path, task: str, config: dict[str, Any], options: dict[str, Any], dtype: str
    ) -> None:
        model = made(task, path=written_base(tmp_path, config, task), dtype=dtype, **options)
        batch: Any = {
            "causal-lm": PAIR,
            "sequence-classification": (PAIR[0], np.arange(12) % 3),
            "token-classification": (PAIR[0], PAIR[0] % 3),
            "image-classification": IMAGES,
        }[task]
        digest = model.frozen_digest
        before, optimizer = model.evaluate(batch)["loss"], torch.optim.AdamW([model.flat_parameter()], lr=0.03)
        for _ in range(20):
            model.gradient(batch)
            optimizer.step()
        assert model.evaluate(batch)["loss"] < before
        del model.__dict__["frozen_digest"]
        assert model.frozen_digest == digest

    @pytest.mark.parametrize("task", ["sequence-classification", "token-classification", "image-classification"])
    def test_all_linear_layers_but_the_head_get_adapters(self, task: str) -> None:
        config = VIT if task.startswith("image") else BERT
        model = made(task, **{"from": "config", "config": config, "lora": {"r": 2, "targets": "all-linear"}})
        assert any("lora_" in name for name in model.layout.names)
        assert {name for name in model.layout.names if "lora_" not in name} == {
            f"base_model.model.classifier.modules_to_save.default.{part}" for part in ("weight", "bias")
        }
        assert not [name for name in model.layout.names if "classifier" in name and "lora_" in name]

    def test_the_error_of_an_adapter_names_the_layers_of_the_model_itself(self) -> None:
        new = {"from": "config", "config": BERT}
        peft = {"peft_type": "LORA", "target_modules": "all-linear"}  # which includes the head, that is saved whole
        with pytest.raises(ConfigurationError, match="does not fit") as caught:
            made("token-classification", **new, peft=peft)
        assert "base_layer" not in str(caught.value)

    @pytest.mark.long
    def test_checkpointed_activations_give_the_same_gradient(self, base: str) -> None:
        from chimera.models.compute import Compute

        plain, saving = (made(path=base, config={"resid_pdrop": 0.0}, lora={"targets": ["c_fc"]}) for _ in range(2))
        saving.configure(Compute(activation_checkpointing=True))
        found = []
        for model in (plain, pickle.loads(pickle.dumps(saving))):
            model.reseed(7)
            found.append(model.gradient(PAIR)[0].copy())
        assert np.abs(found[0]).max() > 0
        np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def buffers_of(model: Any) -> list[pickle.PickleBuffer]:
    found: list[pickle.PickleBuffer] = []
    pickle.dumps(model, 5, buffer_callback=found.append)
    return found
