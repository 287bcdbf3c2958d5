"""Slow imports are done before the processes of a run start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import chimera
from chimera.core import call
from chimera.engines.local.process import LocalContext
from chimera.training.experiment.resolve import open_engine, preload_of

KERNELS = "chimera.codecs.kernels.compiled"


class ModuleProbe:
    def has(self, module: str) -> bool:
        return module in sys.modules


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("parts", "module", "ready"),
    [
        ({"codecs": []}, KERNELS, False),
        ({"codecs": ["identity"]}, KERNELS, False),
        ({"codecs": ["identity", {"name": "int8", "block": 64}]}, KERNELS, True),
        ({"model": "mlp"}, "sklearn", False),
        ({"model": "sklearn-sgd-classifier"}, "sklearn", True),
    ],
    ids=str,
)
def test_processes_preload_the_modules_of_a_run(parts: dict[str, Any], module: str, ready: bool) -> None:
    engine, _ = open_engine("local", preload_of(**parts))
    with engine:
        assert engine.get(engine.spawn(ModuleProbe).has(module)) is ready


def test_an_estimator_object_names_its_modules() -> None:
    from sklearn.linear_model import SGDClassifier  # this module's own imports reach the actors of this test

    assert preload_of(model=SGDClassifier())[-1].startswith("sklearn.linear_model")
    likewise = type("Likewise", (torch.nn.Linear,), {"__module__": "transformers.models.likewise"})(1, 1)
    assert preload_of(model=chimera.TorchModel(likewise))[-1] == "transformers.models.likewise"


class NeedsKernels(torch.nn.Linear):
    """A model that computes only after the kernels are loaded, and in the driver."""

    def forward(self, inputs: Any) -> Any:
        if isinstance(call.current(), LocalContext) and KERNELS not in sys.modules:
            raise RuntimeError("the kernels are missing")
        return super().forward(inputs)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["top-k", {"name": "identity", "downlink": "int8"}], ids=str)
def test_codec_kernels_are_compiled_before_the_first_gradient(tmp_path: Path, codec: Any) -> None:
    run = chimera.train(
        NeedsKernels(64, 10), "digits", engine="local", codec=codec, workers=1, rounds=1, out=tmp_path / "run"
    )
    assert run.cost.rounds == 1
