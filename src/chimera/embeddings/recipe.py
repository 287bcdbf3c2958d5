"""Word vectors from text, in one call: the usual choices, written down as an experiment like any other."""

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

_SAMPLED: dict[str, Any] = {
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
_LEARN: dict[str, dict[str, Any]] = {
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
    "negative-sampling": _SAMPLED,
    "hierarchical-softmax": _SAMPLED,
}
"""What an output is learnt with, unless told otherwise; the rate of SGD is per word."""

_PATIENCE_EPOCHS = 100
"""After so many passes a run ends that has not met its target, if nothing else ends it."""
_EVERY_ROUNDS = 20
"""After so many rounds there is a checkpoint: it holds what all learners remember."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to learn word vectors; `experiment` says it in full.

    Attributes
    ----------
    paths : text files, plain or gzip, or folders of them.
    learners : how many learn at once.
    pipelines : how many actors read the text for them; 0: each learner reads its own part itself. By default 1 for ``softmax``,
        and 0 for the others, which learn nearly as fast as a text is read.
    stages : ``fused``: a pipeline is one actor; ``apart``: tokenizer, filter and batcher are three.
    model, output, dim : ``cbow`` or ``skip-gram``, what its vectors are asked, and how long they are.
    target_loss, epochs, rounds, max_seconds : when to stop; 5 passes over the text if nothing is said.
    batch_size, local_steps : windows in a batch, and batches between two averages.
    optimizer, learning_rate : of each learner. The rate of ``sgd`` is per word, as in word2vec: an experiment file has it times
        the batch size, since gradients are means over a batch. It decays linearly to 0 over the epochs or rounds, unless
        something else may end the run. It is the rate of one learner, and multiplied by their number, except where sampled
        outputs learn by batches and not word by word.
    strategy : ``fed-avg``, which averages, or any other.
    engine, seed : as everywhere.
    data, model_options : more options of the text (see `chimera.data.text.Text.of`) and of the model.
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
        """Return the experiment in full.

        Raises
        ------
        ConfigurationError : options that do not go together.
        """
        if self.learners < 1:
            raise ConfigurationError(f"learners must be at least 1, not {self.learners}")
        if self.output not in _LEARN:
            raise ConfigurationError(f"the output {self.output!r} is unknown; known: {', '.join(_LEARN)}")
        usual = _LEARN[self.output]
        batch_size = usual["batch_size"] if self.batch_size is None else self.batch_size
        train: dict[str, Any] = {"workers": self.learners, "batch_size": batch_size, "seed": self.seed}
        limits = {"epochs": self.epochs, "rounds": self.rounds, "max_seconds": self.max_seconds}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        if self.target_loss is not None:
            train["target"] = {"loss": self.target_loss}
        train |= given or {"epochs": 5 if self.target_loss is None else _PATIENCE_EPOCHS}
        known_end = set(given) <= {"epochs", "rounds"} and bool(given or self.target_loss is None)
        optimizer = self._optimizer(usual, batch_size, decays=known_end)
        strategy: dict[str, Any] = {"name": self.strategy}
        if self.strategy == "fed-avg":
            local_steps = usual["local_steps"] if self.local_steps is None else self.local_steps
            strategy |= {"local_steps": local_steps, "local_optimizer": optimizer, **usual["strategy"]}
            in_batches = "shared_negatives" in self.model_options or self.model_options.get("order") == "batch"
            if "lr" not in optimizer or in_batches:  # a batch that moves a row many times at once bears no larger rate
                strategy.pop("scaled", None)
            train |= {"evaluate_every": usual["evaluate_every"], "checkpoint_every": _EVERY_ROUNDS}
        else:
            if self.local_steps is not None:
                raise ConfigurationError(f"local_steps says nothing to the strategy {self.strategy!r}: use fed-avg")
            train["optimizer"] = optimizer
        data = {"stride": usual["stride"], "seed": self.seed, **usual["data"], **self.data}
        paths = [str(Path(path).expanduser().resolve()) for path in self.paths]
        return Experiment(
            {
                "data": {
                    "name": "text",
                    "path": paths,
                    "pipelines": usual["pipelines"] if self.pipelines is None else self.pipelines,
                    "stages": self.stages,
                    **data,
                },
                "model": {
                    "name": self.model,
                    "output": self.output,
                    "dim": self.dim,
                    **usual["model"],
                    **self.model_options,
                },
                "strategy": strategy,
                "engine": self.engine,
                "train": train,
            },
            "chimera embed",
        )

    def _optimizer(self, usual: Mapping[str, Any], batch_size: int, *, decays: bool) -> dict[str, Any]:
        name = usual["optimizer"] if self.optimizer is None else self.optimizer
        rate = self.learning_rate
        if rate is None and name == usual["optimizer"]:
            rate = usual["rate"]
        table: dict[str, Any] = {"name": name}
        if name == "sgd" and self.output != "softmax":
            table["lr"] = (usual["rate"] if rate is None else rate) * batch_size
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
    """Learn word vectors from text files; `chimera.embeddings.vectors_of` reads them from the run's folder.

    Parameters
    ----------
    out, callbacks : see `Trainer`.
    also : further files of vectors to leave, such as ``embeddings.bin``; their endings say how.
    options : those of `Recipe`.

    Raises
    ------
    ConfigurationError, DataError : options or texts that cannot be used.
    """
    from chimera.embeddings.leaves import Leaves

    trainer = Recipe(paths=paths, **options).experiment().trainer(out=out, callbacks=list(callbacks))
    trainer.callbacks.append(Leaves(trainer.run_dir, also))
    return trainer.fit()
