"""Runs on data sets that are read lazily, and on batches of any nesting: algebra over workers, resume, reading ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import chimera
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.order import GlobalOrder
from training.killing import Kill, KilledError


class Images(Dataset):  # type: ignore[type-arg]
    """Small images of three classes; with ``flips``, half of those that are read are mirrored at random."""

    def __init__(self, size: int, *, flips: bool = False) -> None:
        self.size, self.flips = size, flips
        self.targets = [row % 3 for row in range(size)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image = np.random.default_rng(row).standard_normal((1, 6, 6)).astype(np.float32) * 0.3
        label = row % 3
        image[0, 2 * label : 2 * label + 2, :3] += 1
        mirrored = self.flips and float(torch.rand(())) < 0.5
        return torch.tensor(image[:, :, ::-1].copy() if mirrored else image), label


class Encoded(Images):
    """The same images as mappings."""

    def __getitem__(self, row: int) -> Any:
        image, label = super().__getitem__(row)
        return {"pixels": image, "labels": label}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(64, 3)

    def forward(self, pixels: Any) -> Any:
        return self.out(torch.relu(self.conv(pixels)).flatten(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def fit(folder: Path, data: Any, **options: Any) -> chimera.Run:
    given: dict[str, Any] = {"engine": "simulated", "workers": 2, "batch_size": 6, "rounds": 6, "out": folder}
    return chimera.train(network(), data, **{"optimizer": {"name": "sgd", "lr": 0.1}, **given, **options})


def weights(run: chimera.Run) -> Any:
    return run.trained.parameters().copy()


TEST = Images(30)


@pytest.mark.parametrize("kind", [Images, Encoded])
def test_n_workers_equal_one_worker_on_the_whole_batch(tmp_path: Path, kind: type) -> None:
    many = fit(tmp_path / "many", (kind(60), TEST if kind is Images else Encoded(30)), workers=3)
    one = fit(tmp_path / "one", (kind(60), TEST if kind is Images else Encoded(30)), workers=1, batch_size=18)
    np.testing.assert_allclose(weights(many), weights(one), atol=2e-6)
    assert many.metrics.keys() == {"loss", "accuracy"}


def test_lazy_samples_train_as_the_same_arrays(tmp_path: Path) -> None:
    source = Images(60)
    arrays = np.stack([source[row][0].numpy() for row in range(60)]), np.arange(60) % 3
    tests = np.stack([TEST[row][0].numpy() for row in range(30)]), np.arange(30) % 3
    lazy, stacked = fit(tmp_path / "lazy", (source, TEST)), fit(tmp_path / "arrays", (arrays, tests))
    assert np.array_equal(weights(lazy), weights(stacked))
    assert lazy.metrics == stacked.metrics


@pytest.mark.parametrize("strategy", ["all-reduce", "fed-avg", "d-psgd", "diloco", "async-parameter-server"])
def test_strategies_train_on_augmented_samples(tmp_path: Path, strategy: str) -> None:
    options = {} if strategy in ("fed-avg", "diloco") else {"optimizer": {"name": "sgd", "lr": 0.1}}
    data = Images(90, flips=True), Images(30, flips=True)
    runs = [
        chimera.train(
            network(),
            data,
            strategy=strategy,
            engine="simulated",
            batch_size=6,
            rounds=4,
            out=tmp_path / name,
            **options,
        )
        for name in ("first", "second")
    ]
    assert np.array_equal(weights(runs[0]), weights(runs[1]))
    assert runs[0].metrics == runs[1].metrics


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_resumed_run_has_the_same_bits_with_augmentation(tmp_path: Path, engine: str) -> None:
    data = Images(40, flips=True), TEST  # 5 rounds are in the middle of the second epoch
    options: dict[str, Any] = {
        "engine": engine,
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "log_every": 1,
        "rounds": 8,
    }
    whole = fit(tmp_path / "whole", data, **options)
    with pytest.raises(KilledError):
        fit(tmp_path / "killed", data, callbacks=[Kill()], **options)
    resumed = fit(tmp_path / "killed", data, resume=True, **options)
    assert np.array_equal(weights(whole), weights(resumed))


@pytest.mark.long
def test_reading_ahead_changes_nothing(tmp_path: Path) -> None:
    data = Images(60, flips=True), TEST
    line, ahead = (fit(tmp_path / str(n), data, engine="local", loader={"workers": n, "ahead": 2}) for n in (0, 2))
    assert np.array_equal(weights(line), weights(ahead))


READER = """
import sys
from pathlib import Path

import torch
from chimera.data.loader import Loading, Reader
from chimera.data.order import GlobalOrder
from chimera.data.samples import SampleDataset

sys.path.insert(0, sys.argv[1])
from training.test_any_data import Images

data, order = SampleDataset(Images(20, flips=True)), GlobalOrder(20, world_size=2, rank=1, batch_size=4, seed=3)
ahead, line = Reader(data, 5, Loading(workers=2)), Reader(data, 5, Loading())
for step in (3, 4, 5, 1, 2):
    for one, other in zip(ahead.batch(order, 1, step), line.batch(order, 1, step), strict=True):
        assert torch.equal(one, other)
processes = [process.pid for process in ahead._batches._workers]
if sys.argv[2] == "dropped":
    del ahead
    assert not any(Path(f"/proc/{pid}/stat").exists() for pid in processes)
print(*processes, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [pytest.param("dropped", marks=pytest.mark.long), "killed"])
def test_reading_processes_end_with_their_reader_and_start_at_any_step(end: str) -> None:
    command = [sys.executable, "-c", READER, str(Path(__file__).parents[1]), end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        processes = [int(pid) for pid in reader.stdout.readline().split()]
        if end == "killed":
            reader.kill()
    assert len(processes) == 2
    assert all(gone(pid) for pid in processes)


def gone(pid: int) -> bool:
    """Wait until a process that is no child has ended, at most 20 s; return whether it has."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        os.sched_yield()
    return False


class Table(Dataset):  # type: ignore[type-arg]
    """Arrays, of which a sample is a view: read-only in a worker, where they are in shared memory."""

    def __init__(self) -> None:
        self.images = np.random.default_rng(0).standard_normal((60, 1, 6, 6)).astype(np.float32)
        self.images.flags.writeable = False

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> Any:
        return (torch.from_numpy(self.images[row]) if row % 2 else torch.as_tensor(self.images[row])), row % 3


class ArrayTable(Table):
    def __getitem__(self, row: int) -> Any:
        return self.images[row], row % 3


@pytest.mark.parametrize("kind", [pytest.param(Table, marks=pytest.mark.long), ArrayTable])
def test_samples_that_are_views_of_shared_arrays_give_no_warning(tmp_path: Path, kind: type, capfd: Any) -> None:
    fit(tmp_path, (kind(), kind()), engine="local", rounds=2)
    assert "not writable" not in capfd.readouterr().err


def test_accumulated_batches_equal_one_batch(tmp_path: Path) -> None:
    data = Images(60), TEST
    small = fit(tmp_path / "small", data, batch_size=3, accumulate=4)
    large = fit(tmp_path / "large", data, batch_size=12)
    np.testing.assert_allclose(weights(small), weights(large), atol=2e-6)
    assert small.cost.samples == large.cost.samples


def test_mixed_precision_computes_in_bfloat16_and_steps_in_float32(tmp_path: Path) -> None:
    seen = []

    def step(module: Any, batch: Any) -> Any:
        outputs = module(batch[0])
        seen.append(outputs.dtype)
        return nn.functional.cross_entropy(outputs, batch[1])

    data = Images(60), TEST
    model = chimera.TorchModel(network(), step=step)
    options: dict[str, Any] = {
        "engine": "simulated",
        "batch_size": 6,
        "rounds": 3,
        "optimizer": {"name": "sgd", "lr": 0.1},
    }
    mixed = chimera.train(model, data, precision="bf16-mixed", out=tmp_path / "mixed", **options)
    full = fit(tmp_path / "full", data, rounds=3)
    assert set(seen) == {torch.bfloat16}
    assert weights(mixed).dtype == np.float32
    np.testing.assert_allclose(weights(mixed), weights(full), atol=0.01)
    assert not np.array_equal(weights(mixed), weights(full))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loader": {"workers": -1}}, "workers must be at least 0"),
        ({"loader": {"threads": 2}}, "loader has no option 'threads'; its options: workers, ahead"),
        ({"accumulate": 0}, "accumulate must be at least 1, not 0"),
        ({"precision": "fp8"}, "precision"),
        ({"activation_checkpointing": True}, "Network has no gradient_checkpointing_enable"),
    ],
)
def test_mistakes_get_a_clear_message(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, (Images(60), TEST), **options)


def test_a_partition_by_labels_works_and_an_attack_flips_labels(tmp_path: Path) -> None:
    run = fit(tmp_path / "labels", (Encoded(60), Encoded(30)), partition={"name": "dirichlet", "alpha": 0.3})
    assert run.cost.samples == 6 * 12
    flipped = fit(tmp_path / "flips", (Encoded(60), Encoded(30)), faults=["label flip worker 0 at step 1"], rounds=30)
    honest = fit(tmp_path / "honest", (Encoded(60), Encoded(30)), rounds=30)
    assert flipped.metrics["loss"] > honest.metrics["loss"]


def test_a_sample_that_is_not_finite_ends_the_run_with_its_number(tmp_path: Path) -> None:
    class Broken(Images):
        def __getitem__(self, row: int) -> Any:
            image, label = super().__getitem__(row)
            return image * (float("nan") if row == 7 else 1), label

    with pytest.raises(DataError, match="sample 7 of 'Broken' has NaN or infinite values"):
        fit(tmp_path, (Broken(20), TEST))


@pytest.mark.takes("it imports transformers")
def test_a_transformer_of_hugging_face_trains_on_mappings(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    rng = np.random.default_rng(0)
    texts = [
        {"input_ids": torch.tensor(rng.integers(row % 2 * 10, row % 2 * 10 + 10, 6)), "labels": row % 2}
        for row in range(80)
    ]

    class Texts(Images):
        def __getitem__(self, row: int) -> Any:
            return texts[row] | {"attention_mask": torch.ones(6, dtype=torch.int64)}

    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    options: dict[str, Any] = {
        "engine": "simulated",
        "workers": 2,
        "batch_size": 8,
        "epochs": 6,
        "out": tmp_path / "bert",
    }
    run = chimera.train(model, Texts(80), optimizer={"name": "adam", "lr": 0.01}, **options)
    assert run.metrics["accuracy"] > 0.9
    assert run.trained.layout.size == sum(parameter.numel() for parameter in model.parameters())


def test_a_causal_language_model_with_tied_weights_trains(tmp_path: Path) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.mix = nn.Embedding(8, 16), nn.GRU(16, 16, batch_first=True)
            self.out = nn.Linear(16, 8, bias=False)
            self.out.weight = self.words.weight

        def forward(self, tokens: Any) -> Any:
            return self.out(self.mix(self.words(tokens))[0])

    cycle = torch.arange(0, 120) % 8
    blocks = torch.stack([cycle[start : start + 11] for start in range(100)])
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(blocks[:, :-1], blocks[:, 1:])
    options: dict[str, Any] = {
        "engine": "simulated",
        "workers": 2,
        "batch_size": 10,
        "epochs": 8,
        "out": tmp_path / "gru",
    }
    run = chimera.train(Language(), data, optimizer={"name": "adam", "lr": 0.03}, **options)
    assert run.metrics["loss"] < 0.5
    assert run.model.out.weight is run.model.words.weight


@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce", "ring-all-reduce"])
def test_the_mean_gradient_is_clipped_as_by_one_worker(tmp_path: Path, strategy: str) -> None:
    data, limit = (Images(60), TEST), 0.3
    options: dict[str, Any] = {"max_gradient_norm": limit, "optimizer": {"name": "sgd", "lr": 0.5}, "rounds": 4}
    many = fit(tmp_path / "many", data, strategy=strategy, workers=3, **options)
    one = fit(tmp_path / "one", data, workers=1, batch_size=18, **options)
    np.testing.assert_allclose(weights(many), weights(one), atol=2e-6)
    free = fit(tmp_path / "free", data, workers=1, batch_size=18, optimizer=options["optimizer"], rounds=4)
    assert not np.allclose(weights(free), weights(one), atol=1e-3)


def test_clipping_is_that_of_torch(tmp_path: Path) -> None:
    source, module = Images(60), network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    order = GlobalOrder(60, world_size=1, rank=0, batch_size=18, seed=0)
    for step in range(3):
        samples = [source[row] for row in order.batch(step).tolist()]
        optimizer.zero_grad()
        outputs = module(torch.stack([image for image, _ in samples]))
        nn.functional.cross_entropy(outputs, torch.tensor([label for _, label in samples])).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        optimizer.step()
    run = fit(
        tmp_path,
        (source, TEST),
        workers=1,
        batch_size=18,
        rounds=3,
        max_gradient_norm=0.3,
        optimizer={"name": "sgd", "lr": 0.5},
    )
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_allclose(weights(run), expected, atol=1e-6)


def test_local_steps_clip_the_gradient_of_each_worker(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": "fed-avg", "optimizer": {"name": "sgd", "lr": 0.5}, "rounds": 2}
    data = Images(60), TEST
    start = chimera.TorchModel(network()).parameters().copy()
    moved = weights(fit(tmp_path / "clipped", data, max_gradient_norm=1e-3, **options)) - start
    assert 0 < np.linalg.norm(moved) < 1e-3 * 0.5 * 2 * 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_gradient_norm": 0.0}, "max_gradient_norm must be above 0, not 0.0"),
        ({"max_gradient_norm": 1.0, "strategy": {"name": "parameter-server", "shards": 2}}, "set shards to 1"),
    ],
)
def test_a_norm_that_cannot_be_kept_is_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, (Images(60), TEST), **options)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """The images in sequence, with random flips."""

    def __iter__(self) -> Any:
        source = Images(60, flips=True)
        return (source[row] for row in range(60))


def test_n_workers_read_a_stream_as_one_worker_reads_it(tmp_path: Path) -> None:
    class Plain(Stream):
        def __iter__(self) -> Any:
            return (Images(60)[row] for row in range(60))

    many = fit(tmp_path / "many", (chimera.IterableSamples(Plain(), 60), TEST), workers=3)
    one = fit(tmp_path / "one", (chimera.IterableSamples(Plain(), 60), TEST), workers=1, batch_size=18)
    np.testing.assert_allclose(weights(many), weights(one), atol=2e-6)
    assert many.cost.epochs == pytest.approx(6 * 18 / 60)


@pytest.mark.parametrize("strategy", ["parameter-server", "fed-avg", "d-psgd", "async-parameter-server"])
def test_a_resumed_run_continues_its_stream(tmp_path: Path, strategy: str) -> None:
    data = chimera.IterableSamples(Stream(), 60), TEST
    options: dict[str, Any] = {
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "log_every": 1,
        "rounds": 8,
        "strategy": strategy,
    }
    whole = fit(tmp_path / "whole", data, **options)
    with pytest.raises(KilledError):
        fit(tmp_path / "killed", data, callbacks=[Kill()], **options)
    resumed = fit(tmp_path / "killed", data, resume=True, **options)
    assert np.array_equal(weights(whole), weights(resumed))


class Stateful(Stream):
    """The same stream, which continues from a state; each pass over the data counts the samples it reads in a file."""

    def __init__(self, log: Path) -> None:
        self.log, self.next = log, 0

    def __iter__(self) -> Any:
        source, begin = Images(60, flips=True), self.next
        for row in range(begin, 60):
            self.next = row + 1
            with self.log.open("a") as file:
                print(row, file=file)
            yield source[row]
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_resumed_run_does_not_read_again_what_the_checkpoint_has_passed(tmp_path: Path, engine: str) -> None:
    options: dict[str, Any] = {
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "log_every": 1,
        "rounds": 8,
        "engine": engine,
    }

    def fitted(name: str, log: str, **more: Any) -> chimera.Run:
        return fit(tmp_path / name, (chimera.IterableSamples(Stateful(tmp_path / log), 60), TEST), **options, **more)

    whole = fitted("whole", "of the whole run")
    with pytest.raises(KilledError):
        fitted("killed", "of the killed run", callbacks=[Kill()])
    resumed = fitted("killed", "of the resumed run", resume=True)
    assert np.array_equal(weights(whole), weights(resumed))
    rows = {log: len((tmp_path / log).read_text().splitlines()) for log in ("of the whole run", "of the resumed run")}
    assert rows["of the resumed run"] <= rows["of the whole run"] / 2 + 4  # from round 4 or 6 of 8


@pytest.mark.long
def test_a_stream_on_processes_equals_one_in_virtual_time(tmp_path: Path) -> None:
    data = chimera.IterableSamples(Stream(), 60), TEST
    runs = [fit(tmp_path / engine, data, engine=engine, rounds=4) for engine in ("simulated", "local")]
    np.testing.assert_allclose(weights(runs[0]), weights(runs[1]), atol=1e-6)
