"""Word embeddings in one process: words per second and quality of Chimera and gensim's `Word2Vec`, settings interleaved.

The text is the wiki sample in ``$CHIMERA_DATA/text``: its 10,000 most frequent words (including stop words, which sub-sampling
reduces), two words on either side, 32 elements, 5 negatives, sub-sampling 1e-3, and a rate per word that decays linearly.
*Training* is the time of the model alone. *With windows* adds sub-sampling and the creation of windows, as in gensim's
figure, which also includes splitting its file into words. Words are counted after sub-sampling; seconds are processor time
of one thread::

    python benchmarks/word_embeddings.py [--seeds 3] [--epochs 5] [--only gensim word shared-256 ...]
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from chimera.embeddings import Analogies, WordVectors, evaluate
from chimera.models.conversion import build_model

HALF, DIM, NEGATIVES, SAMPLE, WORDS = 2, 32, 5, 1e-3, 10_000
LOWEST_RATE = 1e-4  # gensim's min_alpha
SAMPLED = {"output": "negative-sampling"}
SETTINGS: dict[str, tuple[str, dict[str, Any], int, float]] = {  # model, options, batch size, rate a word
    "word": ("cbow", SAMPLED | {"order": "word"}, 2048, 0.05),
    "batch": ("cbow", SAMPLED, 512, 0.05),
    "shared-256": ("cbow", SAMPLED | {"shared_negatives": 256}, 512, 0.05),
    "shared-64": ("cbow", SAMPLED | {"shared_negatives": 64}, 512, 0.05),
    "hierarchical": ("cbow", {"output": "hierarchical-softmax", "order": "word"}, 2048, 0.05),
    "skip-gram": ("skip-gram", SAMPLED | {"order": "word"}, 2048, 0.025),
}
GENSIM: dict[str, tuple[dict[str, Any], float]] = {
    "gensim": ({"sg": 0, "cbow_mean": 1, "negative": NEGATIVES}, 0.05),
    "gensim-hierarchical": ({"sg": 0, "cbow_mean": 1, "negative": 0, "hs": 1}, 0.05),
    "gensim-skip-gram": ({"sg": 1, "negative": NEGATIVES}, 0.025),
}


class Corpus(NamedTuple):
    """Words by frequency; the text as word indices, and the line number of each."""

    words: list[str]
    ids: NDArray[np.int32]
    lines: NDArray[np.int32]
    counts: NDArray[np.int64]


class Result(NamedTuple):
    """Result of one run: words per second of processor time, and the quality of its vectors."""

    learning: float
    with_windows: float
    men: float
    word_sim: float
    analogies: float


def read(path: Path) -> Corpus:
    letters = bytes(c | 32 if bytes([c]).isalpha() else 10 if c == 10 else 32 for c in range(256))
    lines = [line.split() for line in gzip.decompress(path.read_bytes()).translate(letters).split(b"\n")]
    top = Counter(word for line in lines for word in line).most_common(WORDS)
    index = {word: place for place, (word, _) in enumerate(top)}
    known = [[index[word] for word in line if word in index] for line in lines]
    ids = np.fromiter((word for line in known for word in line), np.int32)
    owners = np.repeat(np.arange(len(known), dtype=np.int32), [len(line) for line in known])
    return Corpus([word.decode() for word, _ in top], ids, owners, np.bincount(ids, minlength=WORDS))


def kept_share(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probability that sub-sampling keeps each word, as in gensim."""
    often = counts / (SAMPLE * counts.sum())
    return np.minimum((np.sqrt(often) + 1) / often, 1)


def windows(corpus: Corpus, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sub-sample the text; return a window around each remaining word, with -1 beyond the ends of its line."""
    kept = np.random.default_rng(seed).random(corpus.ids.size) < kept_share(corpus.counts)[corpus.ids]
    ids, lines = corpus.ids[kept].astype(np.int64), corpus.lines[kept]
    inputs = np.full((ids.size, 2 * HALF), -1, np.int64)
    for column, shift in enumerate([*range(-HALF, 0), *range(1, HALF + 1)]):
        here = slice(max(-shift, 0), ids.size - max(shift, 0))
        there = slice(max(shift, 0), ids.size - max(-shift, 0))
        inputs[here, column] = np.where(lines[here] == lines[there], ids[there], -1)
    return inputs, ids


def quality(words: list[str], vectors: NDArray[np.float32], folder: Path) -> Iterator[float]:
    found = WordVectors(words, vectors)
    for name in ("EN-MEN-TR-3k.txt", "wordsim353.tsv", "questions-words.txt"):
        made = evaluate(found, folder / "eval" / name)
        yield made.accuracy if isinstance(made, Analogies) else made.spearman


def ours(name: str, corpus: Corpus, folder: Path, epochs: int, seed: int) -> Result:
    kind, options, batch, rate = SETTINGS[name]
    model: Any = build_model(
        kind, {"dim": DIM, **options}, input_shape=(2 * HALF,), outputs=WORDS, task="classification", seed=seed,
        counts=corpus.counts,
    )  # fmt: skip
    model.descend((np.zeros((batch, 2 * HALF), np.int64), np.zeros(batch, np.int64)), 0.0)  # compiles
    expected = epochs * float(kept_share(corpus.counts) @ corpus.counts)
    done, learning, begin = 0, 0.0, time.process_time()
    for epoch in range(epochs):
        inputs, targets = windows(corpus, 1000 * seed + epoch)
        turn = time.process_time()
        for first in range(0, targets.size - batch + 1, batch):
            rows = slice(first, first + batch)
            model.reseed((seed * epochs + epoch) * targets.size + first)
            loss = model.descend((inputs[rows], targets[rows]), batch * max(rate * (1 - done / expected), LOWEST_RATE))
            done += batch
        learning += time.process_time() - turn
    if not np.isfinite(loss):
        raise SystemExit(f"{name} diverged: the rate {rate} is too high")
    whole = time.process_time() - begin
    embedding = next(iter(model.layout.split(model.parameters()).values()))
    return Result(done / learning, done / whole, *quality(corpus.words, embedding, folder))


def gensims(name: str, corpus: Corpus, folder: Path, epochs: int, seed: int) -> Result:
    from gensim.models import Word2Vec

    options, rate = GENSIM[name]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for line in np.split(corpus.ids, np.flatnonzero(np.diff(corpus.lines)) + 1):
            file.write(" ".join(corpus.words[word] for word in line) + "\n")
        file.flush()
        model = Word2Vec(
            vector_size=DIM, window=HALF, shrink_windows=False, sample=SAMPLE, alpha=rate, min_alpha=LOWEST_RATE, workers=1,
            min_count=1, seed=seed, **options,
        )  # fmt: skip
        model.build_vocab(corpus_file=file.name)
        begin = time.process_time()
        model.train(
            corpus_file=file.name,
            total_words=model.corpus_total_words,
            total_examples=model.corpus_count,
            epochs=epochs,
        )
        speed = epochs * float(kept_share(corpus.counts) @ corpus.counts) / (time.process_time() - begin)
    return Result(float("nan"), speed, *quality(model.wv.index_to_key, model.wv.vectors, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[*GENSIM, *SETTINGS], default=["gensim", *list(SETTINGS)[:4]])
    options = parser.parse_args()
    folder = Path(os.environ["CHIMERA_DATA"]) / "text"
    threadpool_limits(1)
    corpus = read(folder / "wiki_sample.txt.gz")
    print(f"{corpus.ids.size:,} words, of which sub-sampling keeps {kept_share(corpus.counts) @ corpus.counts:,.0f}")
    found: dict[str, list[Result]] = {name: [] for name in options.only}
    for seed in range(options.seeds):
        for name, results in found.items():
            made = (gensims if name in GENSIM else ours)(name, corpus, folder, options.epochs, seed)
            results.append(made)
            print(f"seed {seed} {name}: {made}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(
        "\n| setting | M words/s training | with windows | MEN | WordSim-353 | analogies |\n|---|---|---|---|---|---|"
    )
    for name, results in found.items():
        learning, whole, *judged = (statistics.median(column) for column in zip(*results, strict=True))
        shown = " | ".join(f"{value:.3f}" for value in judged)
        print(f"| {name} | {learning / 1e6:.2f} | {whole / 1e6:.2f} | {shown} |")


if __name__ == "__main__":
    main()
