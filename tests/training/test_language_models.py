"""Runs of the model ``huggingface`` with adapters: algebra over workers, bytes, shared memory, resume, saved folders."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

import chimera
from chimera.core.errors import ConfigurationError
from language_kit import GPT, MARKS, PAIR, text, written_base
from training.killing import Kill, KilledError

pytestmark = MARKS
LORA = {"r": 4, "targets": ["c_attn"]}
TRAINED = 2 * 4 * (32 + 96)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def fit(folder: Path, base: str, lora: dict[str, Any] | None = None, **options: Any) -> chimera.Run:
    given: dict[str, Any] = {
        "model": {"name": "huggingface", "task": "causal-lm", "path": base, "lora": {**LORA, **(lora or {})}},
        "data": {"name": "text-blocks", "path": text(folder.parent), "block": 16},
        "engine": "simulated",
        "workers": 2,
        "batch_size": 8,
        "rounds": 4,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "strategy": "all-reduce",
        "out": folder,
    }
    return chimera.train(**{**given, **options})


def weights(run: chimera.Run) -> Any:
    return run.trained.parameters().copy()


def logits(module: Any) -> torch.Tensor:
    with torch.no_grad():
        return module.eval()(input_ids=torch.from_numpy(PAIR[0])).logits


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
def test_n_workers_equal_one_worker_on_the_whole_batch(tmp_path: Path, base: str, strategy: str) -> None:
    still = {"model": model_without_dropout(base), "strategy": strategy}
    many = fit(tmp_path / "many", base, workers=4, batch_size=4, **still)
    one = fit(tmp_path / "one", base, workers=1, batch_size=16, **still)
    np.testing.assert_allclose(weights(many), weights(one), atol=1e-5)
    assert many.metrics.keys() == {"loss", "perplexity"}


def model_without_dropout(base: str, **lora: Any) -> dict[str, Any]:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return {"name": "huggingface", "task": "causal-lm", "path": base, "config": off, "lora": {**LORA, **lora}}


def test_a_worker_sends_four_bytes_for_each_trained_parameter(tmp_path: Path, base: str) -> None:
    run = fit(tmp_path / "run", base, strategy="parameter-server")
    assert run.cost.bytes_up == 4 * TRAINED * 2 * run.cost.rounds


def products(model: Any) -> torch.Tensor:
    """Return B A of each adapter."""
    tensors = dict(model.named_parameters())
    found = [
        tensors[name.replace("lora_A", "lora_B")] @ tensor
        for name, tensor in sorted(tensors.items())
        if "lora_A" in name
    ]
    return torch.stack(found).detach()


@pytest.mark.long
@pytest.mark.parametrize("frozen", [True, False])
def test_the_mean_of_products_is_the_product_of_means_if_a_is_frozen(tmp_path: Path, base: str, frozen: bool) -> None:
    halves = [(PAIR[0][rows], PAIR[1][rows]) for rows in (slice(6), slice(6, 12))]

    def trained(name: str, inputs: Any, targets: Any, workers: int) -> Any:
        samples = list(zip(*map(torch.from_numpy, (inputs, targets)), strict=True))
        run = fit(
            tmp_path / name, base, model=model_without_dropout(base, freeze_a=frozen), workers=workers, batch_size=6, rounds=1,
            data=(chimera.SampleDataset(samples), chimera.SampleDataset(samples)), partition=in_order,
            strategy={"name": "fed-avg", "local_steps": 10}, optimizer={"name": "sgd", "lr": 3.0},
        )  # fmt: skip
        return products(run.model)

    together = trained("both", *PAIR, workers=2)
    apart = torch.stack([trained(str(n), *half, workers=1) for n, half in enumerate(halves)])
    difference = (together - apart.mean(0)).abs().max() / together.abs().max()
    assert (difference < 1e-3) == frozen


def in_order(labels: Any, world_size: int, rng: Any) -> list[Any]:
    return np.array_split(np.arange(len(labels)), world_size)


def test_a_saved_adapter_loads_in_peft_and_in_transformers(tmp_path: Path, base: str) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    run = fit(tmp_path / "run", base)
    folder = run.save(tmp_path / "adapter")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {path.name for path in folder.iterdir()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about peft
        plain = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
        own = AutoModelForCausalLM.from_pretrained(folder)
    wanted = logits(run.model)
    assert not torch.equal(wanted, logits(AutoModelForCausalLM.from_pretrained(base)))
    assert torch.equal(logits(plain), wanted)
    torch.testing.assert_close(logits(own), wanted)


def test_the_folder_of_a_run_gives_the_model_back(tmp_path: Path, base: str) -> None:
    run = fit(tmp_path / "run", base)
    with safetensors.safe_open(run.run_dir / "weights.safetensors", "numpy") as file:
        assert set(file.keys()) == set(run.trained.layout.names)
    wanted = logits(run.model)
    loaded, merged = chimera.load(run.run_dir), chimera.load(run.run_dir, merge=True)
    assert torch.equal(logits(loaded), wanted)
    torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
    assert not hasattr(merged, "peft_config")


@pytest.mark.long
def test_mappings_without_a_signature_load_too(tmp_path: Path, base: str) -> None:
    rows = [{"input_ids": torch.from_numpy(row)} for row in PAIR[0]]
    run = fit(tmp_path / "run", base, data=(chimera.SampleDataset(rows),) * 2, batch_size=4)
    assert not (run.run_dir / "signature.json").exists()
    assert torch.equal(logits(chimera.load(run.run_dir)), logits(run.model))


@pytest.mark.long
def test_an_adapter_on_new_weights_is_saved_with_them(tmp_path: Path) -> None:
    import peft

    model = {"name": "huggingface", "task": "causal-lm", "from": "config", "config": GPT, "lora": LORA}
    run = fit(tmp_path / "run", "", model=model, seed=3)
    wanted = logits(run.model)
    with pytest.raises(ConfigurationError, match="no adapters to merge"):
        chimera.load(fit(tmp_path / "whole", "", model={**model, "lora": None}).run_dir, merge=True)
    assert torch.equal(logits(chimera.load(run.run_dir)), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert torch.equal(
            logits(peft.AutoPeftModelForCausalLM.from_pretrained(run.save(tmp_path / "adapter"))), wanted
        )
    assert torch.equal(logits(run.model), wanted)


@pytest.mark.long
def test_the_tokenizer_is_saved_with_the_adapter(tmp_path: Path) -> None:
    import tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    base = written_base(tmp_path / "base")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "whale": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(base)
    folder = fit(tmp_path / "run", base).save(tmp_path / "adapter")
    assert AutoTokenizer.from_pretrained(folder)("whale")["input_ids"] == [1]


OFTEN: dict[str, Any] = {"checkpoint_every": 2, "evaluate_every": 2, "log_every": 1, "rounds": 8}


def killed(folder: Path, base: str, **options: Any) -> None:
    with pytest.raises(KilledError):
        fit(folder, base, {"dropout": 0.2}, callbacks=[Kill()], **OFTEN, **options)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
@pytest.mark.parametrize(
    "strategy",
    ["all-reduce", "diloco", {"name": "streaming-diloco", "local_steps": 4, "fragments": 2}],
    ids=["all-reduce", "diloco", "streaming-diloco"],
)
def test_a_resumed_run_has_the_same_bits_with_dropout(tmp_path: Path, base: str, strategy: Any, engine: str) -> None:
    own: dict[str, Any] = {"strategy": strategy, "engine": engine, "optimizer": {"name": "adamw", "lr": 0.01}}
    whole = fit(tmp_path / "whole", base, {"dropout": 0.2}, **OFTEN, **own)
    killed(tmp_path / "killed", base, **own)
    resumed = fit(tmp_path / "killed", base, {"dropout": 0.2}, resume=True, **OFTEN, **own)
    assert np.array_equal(weights(whole), weights(resumed))


def test_a_run_resumes_and_loads_with_its_own_base_only(tmp_path: Path, base: str) -> None:
    killed(tmp_path / "run", base)
    other = written_base(tmp_path / "other", {**GPT, "initializer_range": 0.3})
    with pytest.raises(ConfigurationError, match="the checkpoint was written with another base model"):
        fit(tmp_path / "run", other, {"dropout": 0.2}, resume=True, **OFTEN)
    with pytest.raises(ConfigurationError, match="or another alpha of its adapters"):
        fit(tmp_path / "run", base, {"dropout": 0.2, "alpha": 1.0}, resume=True, **OFTEN)
    run = fit(tmp_path / "run", base, {"dropout": 0.2}, resume=True, **OFTEN)
    experiment = run.run_dir / "experiment.toml"
    experiment.write_text(experiment.read_text().replace(base, other))
    with pytest.raises(ConfigurationError, match="was written with another base model"):
        chimera.load(run.run_dir)


class Probe:
    """An actor with a model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def mapped(self) -> str:
        """Return the name of the mapping in which the frozen parameters are."""
        address = self.model.module.base_model.model.transformer.wte.weight.data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            ends, *_, name = line.split(maxsplit=5)
            first, last = (int(end, 16) for end in ends.split("-"))
            if first <= address < last:
                return name
        return ""


def of_local() -> Any:
    from chimera.engines.local import Local

    return Local()


def of_ray() -> Any:
    pytest.importorskip("ray")
    from chimera.engines.ray import Ray

    return Ray()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the mappings of a process are in /proc")
@pytest.mark.parametrize(("engine", "file"), [(of_local, "chimera"), (of_ray, "plasma")])
def test_workers_map_the_frozen_base(base: str, engine: Callable[[], Any], file: str) -> None:
    from language_kit import made

    model = made(path=base, lora=LORA)
    with engine() as opened:
        ref = opened.put(model)
        assert all(file in opened.get(opened.spawn(Probe, ref).mapped()) for _ in range(2))


@pytest.mark.long
def test_local_workers_train_as_in_one_process(tmp_path: Path, base: str) -> None:
    one, other = (fit(tmp_path / engine, base, engine=engine, workers=2) for engine in ("simulated", "local"))
    np.testing.assert_allclose(weights(one), weights(other), atol=1e-6)
