"""Word vectors: training, files, neighbours, analogies, and evaluation. Torch is not needed for finished vectors."""

from __future__ import annotations

from chimera.data.text.unigram import unigram_cross_entropy
from chimera.embeddings.evaluation import Analogies, Similarities, evaluate
from chimera.embeddings.recipe import Recipe, embed
from chimera.embeddings.run_files import vectors_of
from chimera.embeddings.word_vectors import WordVectors

__all__ = [
    "Analogies",
    "Recipe",
    "Similarities",
    "WordVectors",
    "embed",
    "evaluate",
    "unigram_cross_entropy",
    "vectors_of",
]
