"""Word embeddings: CBOW and skip-gram, with a full softmax, negative sampling or hierarchical softmax.

A batch is the context words, int64 (n, w), -1 where there is none, and the words in the middle, int64 (n,).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.models.instantiation import count_parameters
from chimera.models.model import MODELS, Task
from chimera.models.word2vec.noise import checked_counts
from chimera.models.word2vec.objectives import HierarchicalSoftmax, NegativeSampling, SharedNegatives
from chimera.models.word2vec.word_model import WordModel

Output = Literal["softmax", "negative-sampling", "hierarchical-softmax"]
Order = Literal["batch", "word"]
Combiner = Literal["mean", "sqrtn"]


@MODELS.register("cbow")
def cbow(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    counts: Any = None,
    task: Task = "classification",
    output: Output = "softmax",
    dim: int = 32,
    negatives: int | None = None,
    shared_negatives: int | None = None,
    noise_power: float | None = None,
    order: Order | None = None,
    combiner: Combiner | None = None,
    all_words: bool | None = None,
    seed: int = 0,
) -> Any:
    """Continuous bag of words: a word is predicted from the mean of the vectors of the words around it.

    Source: Mikolov et al. (2013), Efficient Estimation of Word Representations in Vector Space.

    Parameters
    ----------
    input_shape, outputs : ``(w,)``, the number of context words in a window, and the number of words.
    counts : number of occurrences of each word in the text; a full softmax does not need it.
    output : ``softmax`` over all words (needs torch), ``negative-sampling`` or ``hierarchical-softmax``.
    dim : dimension of a word vector.
    negatives : number of negative samples per word; default 5.
    shared_negatives : number of negative samples for a whole batch instead, weighted so that they count as ``negatives``.
    noise_power : negatives are drawn in proportion to ``counts ** noise_power``; default 0.75.
    order : ``batch`` (the default): local steps of SGD use the mean gradient; ``word``: SGD processes the windows of a batch
        one after another, each with its share of the learning rate, like the code of word2vec.
    combiner : divisor of the sum of c context vectors: c (``mean``) or its square root (``sqrtn``, the default where it is an
        option). With the root, SGD moves the pooled vector as far as the code of word2vec, which divides in the forward pass
        and not in the backward pass. Otherwise the two differ only by the scale of the vectors.
    all_words : whether an evaluation scores all words for each window, to get cross-entropy and accuracy; default True.
    seed : seed of the first word vectors; default: the seed of the run.
    """
    given = _Settings("cbow", input_shape, outputs, counts, task, output, dim, seed)
    sampled = _set(
        negatives=negatives, shared_negatives=shared_negatives, noise_power=noise_power, order=order,
        combiner=combiner, all_words=all_words,
    )  # fmt: skip
    if output == "softmax":
        given.require_torch(sampled)
        from chimera.models.word2vec.softmax import Cbow

        return Cbow(outputs, dim)
    return given.model(sampled, pairs=False)


@MODELS.register("skip-gram")
def skip_gram(
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    counts: Any = None,
    task: Task = "classification",
    output: Output = "negative-sampling",
    dim: int = 32,
    negatives: int | None = None,
    shared_negatives: int | None = None,
    noise_power: float | None = None,
    order: Order | None = None,
    all_words: bool | None = None,
    seed: int = 0,
) -> Any:
    """Skip-gram: each context word alone predicts the middle word; the loss of a window is the sum over its context words.

    Source: Mikolov et al. (2013), Efficient Estimation of Word Representations in Vector Space. As in the code
    of word2vec, the resulting vectors are those of the context words. If every word of a text is once in the middle, the
    pairs are the same in both directions. The options are those of `cbow`.
    """
    given = _Settings("skip-gram", input_shape, outputs, counts, task, output, dim, seed)
    sampled = _set(
        negatives=negatives,
        shared_negatives=shared_negatives,
        noise_power=noise_power,
        order=order,
        all_words=all_words,
    )
    if output == "softmax":
        given.require_torch(sampled)
        from chimera.models.torch_model import TorchModel
        from chimera.models.word2vec.softmax import SkipGram

        return TorchModel(SkipGram(outputs, dim), loss="nll")
    return given.model(sampled, pairs=True)


def _set(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class _Settings:
    """The checked arguments of both models."""

    name: str
    input_shape: tuple[int, ...]
    words: int
    counts: Any
    task: Task
    output: Output
    dim: int
    seed: int

    def __post_init__(self) -> None:
        if self.task != "classification" or len(self.input_shape) != 1:
            raise ConfigurationError(f"model {self.name!r} is for classification of words by windows of word indices")
        if self.words < 2:
            raise ConfigurationError(f"model {self.name!r} needs a vocabulary of 2 words or more, not {self.words}")
        _positive(self.name, dim=self.dim)
        count_parameters(self.words * self.dim)

    def reject(self, options: Mapping[str, Any], where: str) -> None:
        for name in options:
            raise ConfigurationError(f"model {self.name!r}, option {name!r}: it has no effect with {where}")

    def require_torch(self, options: Mapping[str, Any]) -> None:
        self.reject(options, "output = 'softmax'")
        try:
            importlib.import_module("torch")
        except ImportError as error:
            raise MissingExtraError(f"the model {self.name!r} with output = 'softmax'", "torch", "train") from error

    def model(self, options: dict[str, Any], *, pairs: bool) -> WordModel:
        what = f"model {self.name!r}"
        counts = checked_counts(self.counts, self.words, f"{what} with output = {self.output!r}")
        order, combiner = options.pop("order", "batch"), options.pop("combiner", "sqrtn")
        all_words = options.pop("all_words", True)
        make: functools.partial[Any]
        if self.output == "hierarchical-softmax":
            self.reject(options, "output = 'hierarchical-softmax'")
            make = functools.partial(HierarchicalSoftmax, counts)
        else:
            negatives, power = options.get("negatives", 5), options.get("noise_power", 0.75)
            shared = options.get("shared_negatives")
            _positive(self.name, negatives=negatives, shared_negatives=1 if shared is None else shared)
            if not 0 <= power <= 1:
                raise ConfigurationError(f"{what}, option 'noise_power': {power!r} must be from 0 to 1")
            if shared is not None and order == "word":
                raise ConfigurationError(
                    f"{what}: 'shared_negatives' are drawn per batch, so order = 'word' cannot be used"
                )
            make = functools.partial(NegativeSampling, counts, negatives, power)
            if shared is not None:
                make = functools.partial(SharedNegatives, counts, negatives, power, shared)
        return WordModel(
            self.words, self.input_shape[0], self.dim, make,
            pairs=pairs, order=order, combiner=combiner, all_words=all_words, seed=self.seed,
        )  # fmt: skip


def _positive(model: str, **values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigurationError(f"model {model!r}, option {name!r}: {value!r} must be at least 1")
