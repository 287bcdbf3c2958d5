"""Batches that are objects with fields: named tuples, dataclasses, classes of attrs, structs of msgspec."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import chimera
from chimera.core.batch import mapped, pieces_of, rows_of, samples_in, with_targets
from chimera.models.torch_model import TorchModel

attrs = pytest.importorskip("attrs")

N = 24
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4)).astype(np.float32)
Y = RNG.integers(0, 3, N)


@attrs.frozen
class Frozen:
    x: Any
    y: Any
    name: str = "name"


@attrs.define
class _Base:
    x: Any


@attrs.define(slots=True)
class Slots(_Base):
    y: Any
    _seen: int = 0


class Struct(msgspec.Struct, frozen=True):
    x: Any
    y: Any
    name: str = "name"


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    x: Any
    y: Any


class Named(NamedTuple):
    x: Any
    y: Any


KINDS: list[Callable[..., Any]] = [Frozen, Slots, Struct, Data, Named]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def own_step(module: Any, batch: Any) -> Any:
    outputs = module(batch.x)
    return F.cross_entropy(outputs, batch.y), outputs


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_the_class_and_its_other_fields(kind: Any) -> None:
    batch = kind(X, {"labels": Y})
    assert samples_in(batch) == N
    part = rows_of(batch, slice(2, 5))
    assert type(part) is kind
    np.testing.assert_array_equal(part.x, X[2:5])
    np.testing.assert_array_equal(part.y["labels"], Y[2:5])
    assert batch.x is X
    assert [samples_in(piece) for piece in pieces_of(batch, 10)] == [10, 10, 4]
    assert getattr(part, "name", "name") == "name"
    assert getattr(part, "_seen", 0) == 0
    assert mapped(lambda leaf: leaf, kind) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_plain_pytorch(kind: Any) -> None:
    module = network()
    F.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()  # type: ignore[no-untyped-call]
    gradient, _ = TorchModel(network(), step=own_step).gradient(kind(X, Y))
    expected = [p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None]
    np.testing.assert_allclose(gradient, np.concatenate(expected), rtol=1e-5, atol=1e-7)


class Samples:
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_collate_function_may_return_them(kind: Any, engine: str, tmp_path: Path) -> None:
    def collate(samples: list[Any]) -> Any:
        inputs, targets = zip(*samples, strict=True)
        return kind(torch.from_numpy(np.stack(inputs)), torch.tensor(targets))

    data = chimera.Split.of(chimera.SampleDataset(Samples(), collate=collate))
    model = TorchModel(network(), step=own_step)
    run = chimera.train(
        model, data, engine=engine, workers=2, batch_size=4, epochs=2, progress=False, out=str(tmp_path / "run")
    )
    assert run.metrics["loss"] < 2


def test_other_targets_keep_a_named_tuple() -> None:
    changed = with_targets(Named(X, Y), 2 - Y)
    assert type(changed) is Named
    np.testing.assert_array_equal(changed.y, 2 - Y)
