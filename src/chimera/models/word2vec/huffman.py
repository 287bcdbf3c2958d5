"""The Huffman tree of hierarchical softmax: frequent words are near its root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Paths:
    """The concatenated paths from the root to each word.

    Attributes
    ----------
    begin : start of the path to word i in the other arrays, shape (V + 1,), int64.
    nodes : inner nodes of the paths, 0 to V - 2, of which the root is V - 2; int32.
    labels : label of each node of a path: 1 if the path goes to the left child, otherwise 0; uint8.
    """

    begin: NDArray[np.int64]
    nodes: NDArray[np.int32]
    labels: NDArray[np.uint8]


def huffman_paths(counts: NDArray[np.int64]) -> Paths:
    """Return the paths of a Huffman tree; a count of 0 is treated as 1.

    Source: Morin and Bengio (2005), Hierarchical Probabilistic Neural Network Language Model; the Huffman tree is that of
    Mikolov et al. (2013), Efficient Estimation of Word Representations in Vector Space.
    """
    words = counts.size
    parents, left = _merge(np.maximum(counts, 1))
    steps: list[tuple[NDArray[np.int64], ...]] = []  # (words, their inner nodes, labels), from the leaves up
    here, word = np.arange(words), np.arange(words)
    while words > 1 and word.size:
        above = parents[here]
        steps.append((word, above - words, left[here]))
        unfinished = above != 2 * words - 2
        here, word = above[unfinished], word[unfinished]
    lengths = np.zeros(words, np.int64)
    for word, _, _ in steps:
        lengths[word] += 1
    begin = np.concatenate([[0], np.cumsum(lengths)])
    nodes, labels = np.empty(begin[-1], np.int32), np.empty(begin[-1], np.uint8)
    for up, (word, inner, label) in enumerate(steps):
        place = begin[word + 1] - 1 - up
        nodes[place], labels[place] = inner, label
    return Paths(begin, nodes, labels)


def _merge(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge the two lightest nodes until one is left. Return the parent of each node, and whether it is the left child.

    Leaves are 0 to V - 1. Inner nodes are created in ascending order of weight, so two queues suffice instead of a heap.
    """
    words = counts.size
    order = np.argsort(counts, kind="stable")
    leaves, weights = order.tolist(), counts[order].tolist()
    inner: list[int] = []
    parents, left = np.zeros(2 * words - 1, np.int64), np.zeros(2 * words - 1, np.int64)
    leaf = node = 0
    for made in range(words - 1):
        pair = []
        for _ in range(2):
            if leaf < words and (node == made or weights[leaf] <= inner[node]):
                pair.append((leaves[leaf], weights[leaf]))
                leaf += 1
            else:
                pair.append((words + node, inner[node]))
                node += 1
        (first, light), (second, heavy) = pair
        inner.append(light + heavy)
        parents[[first, second]] = words + made
        left[first] = 1
    return parents, left
