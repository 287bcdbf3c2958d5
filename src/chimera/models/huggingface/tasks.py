"""The tasks of models of the library transformers: their classes, adapters and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TaskName: TypeAlias = Literal[
    "causal-lm", "masked-lm", "seq2seq", "sequence-classification", "token-classification", "image-classification"
]


@dataclass(frozen=True)
class LibraryTask:
    """A task of the library.

    Attributes
    ----------
    auto : the class of transformers that makes models for it.
    adapter : its name in peft; None if that has none.
    classes : whether its outputs are classes of the data, whose number the data determines, else tokens.
    shifted : whether its models shift the labels of a mapping, to predict each token from the tokens before it.
    of_tokens : whether each parameter sees each token of the input, so that a step takes 6 FLOPs per parameter and
        token.
    """

    auto: str
    adapter: str | None
    classes: bool = False
    shifted: bool = False
    of_tokens: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """The default metrics."""
        return ("accuracy",) if self.classes else ("perplexity",)


TASKS: dict[str, LibraryTask] = {
    "causal-lm": LibraryTask("AutoModelForCausalLM", "CAUSAL_LM", shifted=True),
    "masked-lm": LibraryTask("AutoModelForMaskedLM", None),
    "seq2seq": LibraryTask("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM", of_tokens=False),
    "sequence-classification": LibraryTask("AutoModelForSequenceClassification", "SEQ_CLS", classes=True),
    "token-classification": LibraryTask("AutoModelForTokenClassification", "TOKEN_CLS", classes=True),
    "image-classification": LibraryTask("AutoModelForImageClassification", None, classes=True, of_tokens=False),
}
