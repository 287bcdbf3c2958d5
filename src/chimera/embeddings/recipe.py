"""Word vectors from text in one call: default settings as an ordinary experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chimera.core.errors import ConfigurationError
from chimera.training.experiment.experiment import Experiment

if TYPE_CHECKING:
    from chimera.training.artifacts.result import Run
    from chimera.training.progress.callback import Callback

_SAMPLED_DEFAULTS: dict[str, Any] = {
    "batch_size": 2048,
    "local_steps": 100,
    "evaluate_every": 5,
    "stride": "sliding",
    "pipelines": 0,
    "optimizer": "sgd",
    "rate": 0.05,
    "model": {"order": "word"},
    "strategy": {"aggregation": "touched", "scaled": True},
    "data": {},
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "softmax": {
        "batch_size": 32,
        "local_steps": 50,
        "evaluate_every": 1,
        "stride": "disjoint",
        "pipelines": 1,
        "optimizer": "adam",
        "rate": 1e-3,
        "model": {},
        "strategy": {"send": "weights", "scaled": True},
        "data": {"shuffle": True},
    },
    "negative-sampling": _SAMPLED_DEFAULTS,
    "hierarchical-softmax": _SAMPLED_DEFAULTS,
}
"""Default settings for training with each output; the learning rate of SGD is per word."""

_MAX_EPOCHS = 100
"""Number of passes after which a run without another limit ends if it has not met its target."""
_CHECKPOINT_ROUNDS = 20
"""Rounds between checkpoints; few, since a checkpoint holds the state of all learners."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings for training word vectors; `experiment` returns them as a complete experiment.

    Attributes
    ----------
    paths : text files, plain or gzip, or folders of them.
    learners : number of learners that train in parallel; default 2.
    pipelines : number of pipelines that read the text for the learners; with 0 each learner reads its own part. Default 1 for
        ``softmax``, and 0 for the other outputs, which train nearly as fast as a text is read.
    stages : ``fused``: a pipeline is one actor; ``apart``: tokenizer, filter and batcher are three actors.
    model, output, dim : ``cbow`` or ``skip-gram``, the output layer, and the dimension of the vectors.
    target_loss, epochs, rounds, max_seconds : conditions to stop; default 5 passes over the text.
    batch_size, local_steps : windows in a batch, and batches between two averages.
    optimizer, learning_rate : optimizer of each learner, and its learning rate. The rate of ``sgd`` is per word, as in
        word2vec: an experiment file has this rate times the batch size, since gradients are means over a batch. The rate decays
        linearly to 0 over the epochs or rounds, unless another condition can end the run. The rate of one learner is multiplied
        by the number of learners, except for sampled outputs in batches.
    strategy : ``fed-avg`` (the default), which averages, or another strategy.
    engine, seed : engine and seed of the run.
    data, model_options : further options of the text (see `chimera.data.text.Text.of`) and of the model.
    """

    paths: Sequence[str | os.PathLike[str]]
    learners: int = 2
    pipelines: int | None = None
    stages: str = "fused"
    model: str = "cbow"
    output: str = "softmax"
    dim: int = 32
    target_loss: float | None = None
    epochs: float | None = None
    rounds: int | None = None
    max_seconds: float | None = None
    batch_size: int | None = None
    local_steps: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    strategy: str = "fed-avg"
    engine: str = "local"
    seed: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def experiment(self) -> Experiment:
        """Return the complete experiment.

        Raises
        ------
        ConfigurationError : an option is invalid, or options conflict.
        """
        if self.learners < 1:
            raise ConfigurationError(f"learners must be at least 1, not {self.learners}")
        if self.output not in _DEFAULTS:
            raise ConfigurationError(f"the output {self.output!r} is unknown; known: {', '.join(_DEFAULTS)}")
        defaults = _DEFAULTS[self.output]
        batch_size = defaults["batch_size"] if self.batch_size is None else self.batch_size
        train: dict[str, Any] = {"workers": self.learners, "batch_size": batch_size, "seed": self.seed}
        limits = {"epochs": self.epochs, "rounds": self.rounds, "max_seconds": self.max_seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if self.target_loss is not None:
            train["target"] = {"loss": self.target_loss}
        train |= given or {"epochs": 5 if self.target_loss is None else _MAX_EPOCHS}
        known_end = set(given) <= {"epochs", "rounds"} and bool(given or self.target_loss is None)
        optimizer = self._optimizer(defaults, batch_size, decays=known_end)
        strategy: dict[str, Any] = {"name": self.strategy}
        if self.strategy == "fed-avg":
            local_steps = defaults["local_steps"] if self.local_steps is None else self.local_steps
            strategy |= {"local_steps": local_steps, **defaults["strategy"]}
            in_batches = "shared_negatives" in self.model_options or self.model_options.get("order") == "batch"
            if (
                "lr" not in optimizer or in_batches
            ):  # many gradients of one row in a batch add up, so a larger rate would diverge
                strategy.pop("scaled", None)
            train |= {"evaluate_every": defaults["evaluate_every"], "checkpoint_every": _CHECKPOINT_ROUNDS}
        else:
            if self.local_steps is not None:
                raise ConfigurationError(f"local_steps has no effect with the strategy {self.strategy!r}: use fed-avg")
        train["optimizer"] = optimizer
        data = {"stride": defaults["stride"], "seed": self.seed, **defaults["data"], **self.data}
        paths = [str(Path(path).expanduser().resolve()) for path in self.paths]
        return Experiment(
            {
                "data": {
                    "name": "text",
                    "path": paths,
                    "pipelines": defaults["pipelines"] if self.pipelines is None else self.pipelines,
                    "stages": self.stages,
                    **data,
                },
                "model": {
                    "name": self.model,
                    "output": self.output,
                    "dim": self.dim,
                    **defaults["model"],
                    **self.model_options,
                },
                "strategy": strategy,
                "engine": self.engine,
                "train": train,
            },
            "chimera embed",
        )

    def _optimizer(self, defaults: Mapping[str, Any], batch_size: int, *, decays: bool) -> dict[str, Any]:
        name = defaults["optimizer"] if self.optimizer is None else self.optimizer
        rate = self.learning_rate
        if rate is None and name == defaults["optimizer"]:
            rate = defaults["rate"]
        table: dict[str, Any] = {"name": name}
        if name == "sgd" and self.output != "softmax":
            table["lr"] = (defaults["rate"] if rate is None else rate) * batch_size
            if decays:
                table["schedule"] = "linear"
        elif rate is not None:
            table["lr"] = rate
        return table


def embed(
    *paths: str | os.PathLike[str],
    out: str | Path | None = None,
    also: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Run:
    """Train word vectors on text files; `chimera.embeddings.vectors_of` reads them from the run's folder.

    Parameters
    ----------
    out, callbacks : see `Trainer`.
    also : further files of vectors to write, such as ``embeddings.bin``; their endings set the formats.
    options : options of `Recipe`.

    Raises
    ------
    ConfigurationError, DataError : options or texts are invalid.
    """
    from chimera.embeddings.run_files import VectorWriter

    trainer = Recipe(paths=paths, **options).experiment().trainer(out=out, callbacks=list(callbacks))
    trainer.callbacks.append(VectorWriter(lambda: trainer.run_dir, also))
    return trainer.fit()
