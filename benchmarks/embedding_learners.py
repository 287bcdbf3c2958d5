"""Word embeddings with several learners: words a second, quality, and windows per learner to a target loss.

The text is in ``$CHIMERA_DATA/text``. There are three parts, each printed as a table::

    python benchmarks/embedding_learners.py throughput [--turns 3]   two learners, averaging included; two processes without
                                                                     averaging that train as many words each as a
                                                                     learner; one learner; and gensim
    python benchmarks/embedding_learners.py quality [--seeds 3]      1, 2 and 4 learners, and gensim, after 5 epochs
    python benchmarks/embedding_learners.py speed-up [--seeds 3]     full softmax: windows per learner to a target loss

Words are counted after sub-sampling, for gensim too. Throughput is by wall time: run it on an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chimera.embeddings import Analogies, Recipe, WordVectors, evaluate, vectors_of
from chimera.embeddings.run_files import VectorWriter

DATA = Path(os.environ.get("CHIMERA_DATA", ".")) / "text"
WIKI, MOBY, STOP_WORDS = DATA / "wiki_sample.txt.gz", DATA / "moby_dick.txt", DATA / "stopwords_english.txt"
EVALUATIONS = [DATA / "eval" / name for name in ("EN-MEN-TR-3k.txt", "wordsim353.tsv", "questions-words.txt")]
WORDS, SAMPLE, HALF, DIM, NEGATIVES = 10_000, 1e-3, 2, 32, 5
SETTINGS: dict[str, dict[str, Any]] = {
    "word by word": {},
    "256 shared": {"batch_size": 512, "local_steps": 400, "model_options": {"order": "batch", "shared_negatives": 256}},
    "64 shared": {"batch_size": 512, "local_steps": 400, "model_options": {"order": "batch", "shared_negatives": 64}},
}


def learn(folder: Path, setting: str, learners: int, epochs: float, seed: int) -> tuple[float, WordVectors]:
    """Return words a second and the vectors of one run."""
    recipe = Recipe(
        paths=[WIKI],
        learners=learners,
        output="negative-sampling",
        epochs=epochs,
        seed=seed,
        data={"vocabulary_size": WORDS, "sample": SAMPLE, "bounds": "lines"},
        **SETTINGS[setting],
    )
    seldom = [f"train.{what}_every=1000000" for what in ("evaluate", "log", "checkpoint")]
    trainer = (
        recipe.experiment().with_settings(seldom).trainer(out=folder / f"{setting}-{learners}-{seed}-{time.time()}")
    )
    trainer.callbacks.append(VectorWriter(trainer.run_dir))
    run = trainer.fit()
    return run.cost.samples / run.cost.seconds, vectors_of(run.run_dir)


def without_averaging(folder: Path, setting: str, epochs: float) -> float:
    """Return words a second of two processes together that train without averaging."""
    command = [
        sys.executable,
        __file__,
        "alone",
        "--setting",
        setting,
        "--epochs",
        str(epochs),
        "--folder",
        str(folder),
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return sum(float(process.communicate()[0]) for process in both)


def lines() -> Iterator[list[str]]:
    letters = bytes(c | 32 if bytes([c]).isalpha() else 10 if c == 10 else 32 for c in range(256))
    for line in gzip.decompress(WIKI.read_bytes()).translate(letters).decode().split("\n"):
        yield line.split()


def gensim(sentences: list[list[str]], threads: int, epochs: int, seed: int) -> tuple[float, WordVectors]:
    """Return words a second and the vectors of gensim with the same settings."""
    from gensim.models import Word2Vec

    model = Word2Vec(
        vector_size=DIM, window=HALF, shrink_windows=False, cbow_mean=1, sg=0, negative=NEGATIVES, alpha=0.05, min_alpha=1e-4,
        sample=SAMPLE, min_count=1, max_final_vocab=WORDS, workers=threads, seed=seed + 1,
    )  # fmt: skip
    model.build_vocab(sentences)
    begin = time.perf_counter()
    words, _ = model.train(sentences, total_examples=len(sentences), epochs=epochs)
    return words / (time.perf_counter() - begin), WordVectors(model.wv.index_to_key, model.wv.vectors)


def scores(vectors: WordVectors) -> list[float]:
    found = [evaluate(vectors, path) for path in EVALUATIONS]
    return [each.accuracy if isinstance(each, Analogies) else each.spearman for each in found]


def throughput(turns: int, epochs: int) -> None:
    sentences = list(lines())
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for _ in range(turns):
            for setting in SETTINGS:
                figures.setdefault(f"{setting}, 2 learners", []).append(learn(folder, setting, 2, epochs, 0)[0])
                figures.setdefault(f"{setting}, 2 without averaging", []).append(
                    without_averaging(folder, setting, epochs / 2)
                )
                figures.setdefault(f"{setting}, 1 learner", []).append(learn(folder, setting, 1, epochs, 0)[0])
            for threads in (1, 2):
                figures.setdefault(f"gensim, {threads} threads", []).append(gensim(sentences, threads, epochs, 0)[0])
    for name, found in figures.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"{name:<36}{middle / 1e6:6.2f} M words/s   ({low / 1e6:.2f} to {high / 1e6:.2f})")
    for setting in SETTINGS:
        pairs = zip(figures[f"{setting}, 2 learners"], figures[f"{setting}, 2 without averaging"], strict=True)
        print(
            f"{setting}: {statistics.median(a / b for a, b in pairs):.2f} of two processes without averaging (goal 0.93)"
        )


def quality(seeds: int, epochs: int) -> None:
    sentences = list(lines())
    with tempfile.TemporaryDirectory() as place:
        rows: dict[str, list[list[float]]] = {}
        for seed in range(seeds):
            rows.setdefault("gensim", []).append(scores(gensim(sentences, 1, epochs, seed)[1]))
            for setting in SETTINGS:
                for learners in (1, 2, 4):
                    found = scores(learn(Path(place), setting, learners, epochs, seed)[1])
                    rows.setdefault(f"{setting}, {learners}", []).append(found)
    print(f"{'':<22}{'MEN':>8}{'WordSim':>9}{'analogies':>11}   means of {seeds} seeds, {epochs} epochs")
    for name, found in rows.items():
        men, word_sim, analogies = (statistics.mean(column) for column in zip(*found, strict=True))
        print(f"{name:<22}{men:8.3f}{word_sim:9.3f}{analogies:11.1%}")


def windows_to_target(
    folder: Path, learners: int, seed: int, options: dict[str, Any], faults: Sequence[str]
) -> tuple[float, float]:
    """Return windows per learner and seconds to the target; infinite if the run did not reach it."""
    recipe = Recipe(learners=learners, seed=seed, **options)
    place = folder / f"{learners}-{seed}-{time.time()}"
    experiment = recipe.experiment().with_settings(["train.checkpoint_every=1000000"])
    run = experiment.with_faults(faults if learners > 1 else ()).trainer(out=place).fit()
    met = run.stopped_by == "target"
    return (run.cost.samples / learners, run.cost.seconds) if met else (float("inf"), float("inf"))


def speed_up(seeds: int, engine: str, cases: Sequence[str], faults: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, (options, several, goals) in speed_up_cases(folder).items():
            if not any(name.startswith(case) for case in cases):
                continue
            one: dict[int, tuple[float, float]] = {}
            for learners, goal in goals.items():
                ratios, found = [], []
                for seed in range(seeds):
                    given = {**options, **(several if learners > 1 else {}), "engine": engine}
                    windows, seconds = windows_to_target(folder, learners, seed, given, faults)
                    one.setdefault(seed, (windows, seconds))
                    ratios.append(one[seed][0] / windows)
                    found.append(f"{windows:9,.0f} in {seconds:6.1f} s")
                times = f"{statistics.median(ratios):.2f} times" + (f" (goal {goal})" if goal else "")
                print(f"{name:<26}{learners:>3} learners  {' '.join(found)}   {times}", flush=True)


def speed_up_cases(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[int, float]]]:
    """Return each case: options, options for several learners, and goals by number of learners (the first is the baseline)."""
    windows = folder / "windows.txt"
    stop = set(STOP_WORDS.read_text().split())
    letters = bytes(c | 32 if bytes([c]).isalpha() else 32 for c in range(256))
    words = [word for word in MOBY.read_bytes().translate(letters).decode().split() if word not in stop]
    places = random.Random(0).sample(range(len(words) // 5), 1000)
    windows.write_text("".join(" ".join(words[5 * at : 5 * at + 5]) + "\n" for at in places))
    moby = {
        "paths": [MOBY],
        "target_loss": 8.4,
        "data": {"stop_words_path": str(STOP_WORDS), "test_path": str(windows)},
    }
    text = {"vocabulary_size": WORDS, "stop_words_path": str(STOP_WORDS), "test_windows": 5000}
    wiki = {"paths": [WIKI], "target_loss": 8.3, "data": text, "learning_rate": 2e-3}
    return {
        "moby, one pipeline": (moby, {}, {1: 0, 2: 1.7, 4: 2.4, 8: 3.0}),
        "moby, a pipeline each": ({**moby, "pipelines": 0}, {"learning_rate": 3e-3}, {1: 0, 2: 1.7, 4: 2.4}),
        "wiki, each its own part": ({**wiki, "pipelines": 0}, {}, {1: 0, 2: 1.95, 12: 7}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["throughput", "quality", "speed-up", "alone"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=None)
    parser.add_argument("--engine", default="simulated")
    parser.add_argument(
        "--cases", nargs="+", default=["moby", "wiki"], help="prefixes of the names of the cases of 'speed-up'"
    )
    parser.add_argument("--faults", nargs="+", default=[], help="faults of 'speed-up' with several learners")
    parser.add_argument("--setting", default="word by word")
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    if options.part == "alone":
        print(learn(options.folder, options.setting, 1, options.epochs, os.getpid())[0])
        return
    print(f"chimera {importlib.metadata.version('chimera-dml')}, gensim {importlib.metadata.version('gensim')}")
    if options.part == "throughput":
        throughput(options.turns, int(options.epochs or 2))
    elif options.part == "speed-up":
        speed_up(options.seeds, options.engine, options.cases, options.faults)
    else:
        quality(options.seeds, int(options.epochs or 5))


if __name__ == "__main__":
    main()
