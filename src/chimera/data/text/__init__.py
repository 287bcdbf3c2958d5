"""Plain text as training data for word embeddings: vocabulary, windows, and the stages that make them (docs/text.md)."""

from __future__ import annotations

from typing import Literal, cast

from chimera.data.dataset import DATASETS, Dataset, Split


@DATASETS.register("text")
def plain_text(
    *,
    paths: str | list[str],
    vocabulary: str | None = None,
    vocabulary_size: int | None = None,
    min_count: int = 1,
    stop_words: str | None = None,
    width: int = 5,
    stride: Literal["sliding", "disjoint"] = "sliding",
    bounds: Literal["lines", "sentences"] | None = None,
    sample: float = 0.0,
    number_token: str | None = None,
    longest: int | None = None,
    test: str | None = None,
    test_windows: int = 1000,
    seed: int = 0,
) -> Split:
    """Context windows of plain text files, whose middle word is to be predicted (docs/text.md); options of `Text.of`."""
    from chimera.data.text.text import Text

    read = Text.of(
        paths,
        vocabulary=vocabulary,
        vocabulary_size=vocabulary_size,
        min_count=min_count,
        stop_words=stop_words,
        width=width,
        stride=stride,
        bounds=bounds,
        sample=sample,
        number_token=number_token,
        longest=longest,
        test=test,
        test_windows=test_windows,
        seed=seed,
    )
    return Split(cast(Dataset, read), read.test)  # it stands where a data set does, see `Text`
