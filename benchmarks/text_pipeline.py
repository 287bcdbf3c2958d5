"""Speed of converting text to windows: tokenizing on one core, and pipelines in one process and of actors on ``local``.

Single processes are measured by processor time, which other load affects little; pipelines by wall time.
The text is the wiki sample in ``$CHIMERA_DATA/text`` (first decompressed to a temporary file), or a generated one. MB refer to
the plain text, and words to the vocabulary (10,000 words, including stop words). Run it on an idle machine::

    python benchmarks/text_pipeline.py [--text PATH] [--repeats 3]
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chimera.core.engine import ENGINES
from chimera.data.download import data_folder
from chimera.data.text.pipeline.pipelines import Pipelines, Stages
from chimera.data.text.reading.source import Reader
from chimera.data.text.text import Text

BATCH = 512
STAGES: tuple[Stages, ...] = ("fused", "apart")
PRELOAD = ["chimera.data.text.kernels", "chimera.data.text.pipeline.pipelines"]


class ReadingLearner:
    """A learner that reads batches without training."""

    def __init__(self, text: Text, order: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self.text, self.order, self.clock, self.step = text, order, clock, 0

    def read(self, steps: int) -> float:
        """Return the number of windows per second."""
        began = self.clock()
        for _ in range(steps):
            self.text.take(self.order.batch(self.step))
            self.step += 1
        return steps * BATCH / (self.clock() - began)


@contextmanager
def plain_text(path: Path | None) -> Iterator[Path]:
    """Yield the path of a plain text."""
    known = data_folder()
    if path is None and known is not None and (known / "text" / "wiki_sample.txt.gz").is_file():
        path = known / "text" / "wiki_sample.txt.gz"
    if path is not None and path.suffix != ".gz":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "text.txt"
        with plain.open("wb") as file:
            if path is None:
                made_up(file)
            else:
                with gzip.open(path) as packed:
                    shutil.copyfileobj(packed, file)
        yield plain


def made_up(file: Any) -> None:
    rng = np.random.default_rng(0)
    known = ["".join(map(chr, rng.integers(97, 123, rng.integers(2, 10)))) for _ in range(50_000)]
    for _ in range(100):
        file.write(" ".join(known[place] for place in rng.zipf(1.3, 100_000) % len(known)).encode() + b"\n")


def measured(what: str, unit: str, amount: float, function: Callable[[], Any], repeats: int) -> None:
    """Print the median of ``amount`` per second; a function that returns a float returns the speed itself."""
    speeds = []
    for _ in range(repeats):
        began = time.process_time()
        found = function()
        speeds.append(found if isinstance(found, float) else amount / (time.process_time() - began))
    low, high = min(speeds) / 1e6, max(speeds) / 1e6
    print(f"{what:<58}{statistics.median(speeds) / 1e6:8.2f} M{unit}/s  ({low:.2f} to {high:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with plain_text(options.text) as path:
        compare(path, options.repeats)


def compare(path: Path, repeats: int) -> None:
    text = Text.of(path, vocabulary_size=10_000)
    part, assembler = text.part(0, 1), text.assembler(0, 1, 0)
    size, words = text.source.size, int(text.counts.sum())
    print(f"{path.name}: {size / 1e6:.1f} MB, {words / 1e6:.2f} M known words; load {os.getloadavg()[0]:.1f}")

    def cleaned() -> None:
        reader = Reader(text.source)
        for number in range(part.blocks):
            part.clean(reader, number)

    def indexed() -> None:
        reader = Reader(text.source)
        for number in range(part.blocks):
            assembler.tokens(part.clean(reader, number), number)

    index = {word.encode(): place for place, word in enumerate(text.classes)}

    def with_a_dict() -> None:
        reader = Reader(text.source)
        for number in range(part.blocks):
            found = map(index.get, part.clean(reader, number).split())
            np.array([place for place in found if place is not None], np.int32)

    measured("reading and cleaning", "B", size, cleaned, repeats)
    measured("reading, cleaning, looking up", "B", size, indexed, repeats)
    measured("the same with split() and a dict", "B", size, with_a_dict, repeats)
    measured(
        "building the vocabulary and the survey", "B", size, lambda: Text.of(path, vocabulary_size=10_000), repeats
    )

    steps = 2 * len(text) // BATCH
    for sample in (0.0, 1e-3):
        read = Text.of(path, vocabulary_size=10_000, sample=sample)
        learner = ReadingLearner(read, read.orders(1, BATCH, 0)[0], time.process_time)
        what = f"windows, in the learner's process, sample {sample:g}"
        measured(what, "windows", 0, partial(learner.read, steps), repeats)
    for stages in STAGES:
        with ENGINES.create("local", {"preload": PRELOAD}) as engine:
            pipelines = Pipelines(engine, text, learners=1, stages=stages)
            actor = engine.spawn(ReadingLearner, text, pipelines.orders(1, BATCH)[0])
            engine.get(actor.read(100))
            what = f"windows, one pipeline on local, {stages}"
            measured(what, "windows", 0, lambda actor=actor: engine.get(actor.read(steps)), repeats)  # type: ignore[misc]
            pipelines.end()


if __name__ == "__main__":
    main()
