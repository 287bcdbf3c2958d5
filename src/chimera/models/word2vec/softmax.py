"""Word models with a softmax over all words, as torch modules."""

from __future__ import annotations

from torch import Tensor, nn


class _Tables(nn.Module):
    """Vectors of context words, and a dense layer to all words."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim)
        nn.init.uniform_(self.embedding.weight, -0.5 / dim, 0.5 / dim)
        self.output = nn.Linear(dim, words)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)


class Cbow(_Tables):
    """Mean of the context vectors, then logits of all words."""

    def forward(self, contexts: Tensor) -> Tensor:
        """Return logits, shape (n, V), of windows, int64 (n, w), where -1 means no word."""
        if int(contexts.min()) >= 0:
            return self.output(nn.functional.embedding_bag(contexts, self.embedding.weight, mode="mean"))  # type: ignore[no-any-return]
        present = contexts >= 0
        vectors = self.embedding(contexts.clamp(min=0)) * present[:, :, None]
        return self.output(vectors.sum(1) / present.sum(1, keepdim=True).clamp(min=1))  # type: ignore[no-any-return]


class SkipGram(_Tables):
    """Logits of all words from each context word alone."""

    def forward(self, contexts: Tensor) -> Tensor:
        """Return the sums over the context words of log p(word | context word), shape (n, V)."""
        present = contexts >= 0
        logits = self.output(self.embedding(contexts.clamp(min=0)))
        total: Tensor = (logits.log_softmax(2) * present[:, :, None]).sum(1)
        return total
