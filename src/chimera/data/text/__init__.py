"""Plain text as training data for word embeddings: vocabulary, windows, and pipeline stages (docs/how-to/text.md)."""

from __future__ import annotations

from typing import Literal, cast

from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.data.split import DATASETS, Split


@DATASETS.register(
    "text", preload=("chimera.core.jit_warm_up", "chimera.data.text.kernels", "chimera.data.text.pipeline.pipelines")
)
def plain_text(
    *,
    path: str | list[str],
    vocabulary_path: str | None = None,
    vocabulary_size: int | None = None,
    min_count: int = 1,
    stop_words: Literal["english"] | None = None,
    stop_words_path: str | None = None,
    width: int = 5,
    stride: Literal["sliding", "disjoint"] = "sliding",
    bounds: Literal["lines", "sentences"] | None = None,
    sample: float = 0.0,
    number_token: str | None = None,
    longest: int | None = None,
    test_path: str | None = None,
    test_windows: int = 1000,
    seed: int = 0,
    shuffle: bool = False,
    pipelines: int = 0,
    stages: Literal["fused", "apart"] = "fused",
    ahead: int = 2,
) -> Split:
    """Context windows of plain text files, from which a model predicts the middle word.

    See docs/how-to/text.md. The options that have no description here are those of `chimera.data.text.text.Text.of`.

    Parameters
    ----------
    path : a file, plain or gzip, a folder with such files, or a list of both.
    vocabulary_path : a file of the known words; by default the words of the text.
    stop_words : ``english`` excludes the frequent words of English from the vocabulary.
    stop_words_path : a file of the words to exclude instead.
    test_path : a file of test windows, one per line, the target in the middle. If the text contains them, they are not
        excluded from training.
    seed : seed of the choice of the test windows.
    """
    if stop_words is not None and stop_words_path is not None:
        raise ConfigurationError("stop_words and stop_words_path both set the words to exclude: give one of them")
    from chimera.data.text.text import Text

    read = Text.of(
        path,
        vocabulary=vocabulary_path,
        vocabulary_size=vocabulary_size,
        min_count=min_count,
        stop_words=stop_words or stop_words_path,
        width=width,
        stride=stride,
        bounds=bounds,
        sample=sample,
        number_token=number_token,
        longest=longest,
        test=test_path,
        test_windows=test_windows,
        seed=seed,
        shuffle=shuffle,
        pipelines=pipelines,
        stages=stages,
        ahead=ahead,
    )
    return Split(cast(Dataset, read), read.test)  # `Text` has the interface of a data set
