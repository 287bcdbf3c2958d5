"""Write text.txt: sentences of a small grammar. Replace it by a text of your own, of 100 kB or more."""

import random
from pathlib import Path

WHO = ("the worker", "the server", "a client", "the driver")
DOES = ("sends", "reads", "averages", "waits for")
WHAT = ("the weights", "a gradient", "the next batch", "the result")
HOW = ("slowly", "at once", "in order", "again")


def write(path: Path, sentences: int = 2000) -> None:
    """Write sentences; the same in every call."""
    rng = random.Random(1)
    lines = (" ".join(rng.choice(words) for words in (WHO, DOES, WHAT, HOW)) for _ in range(sentences))
    path.write_text("".join(f"{line}.\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).with_name("text.txt"))
