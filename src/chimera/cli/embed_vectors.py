"""Commands of ``chimera embed`` on trained word vectors: neighbours, analogies, evaluation, conversion to other files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chimera.cli.rows import Shown, printed, table
from chimera.cli.train import Json

if TYPE_CHECKING:
    from chimera.embeddings.word_vectors import WordVectors

Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder or URL of a run, or a file of vectors.")]
Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="Show N words.")]


def neighbours(
    run: Run,
    word: Annotated[str, typer.Argument(help="A word of the vocabulary.")],
    count: Count = 10,
    as_json: Json = False,
) -> None:
    """Show the words most similar to a word."""
    _show(_vectors(run).neighbours(word, count), as_json)


def analogy(
    run: Run,
    a: Annotated[str, typer.Argument(metavar="MAN", help="A word of the vocabulary.")],
    b: Annotated[str, typer.Argument(metavar="KING", help="The word to which MAN relates.")],
    c: Annotated[str, typer.Argument(metavar="WOMAN", help="The word whose relative is wanted.")],
    count: Count = 5,
    as_json: Json = False,
) -> None:
    """Complete an analogy: MAN relates to KING as WOMAN to the words shown."""
    _show(_vectors(run).analogy(a, b, c, count), as_json)


def evaluate_files(
    run: Run,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Pairs of words with scores (MEN, WordSim-353), or analogies."),
    ],
    as_json: Json = False,
) -> None:
    """Evaluate the vectors on human similarity scores of word pairs, and on analogies."""
    from chimera.embeddings.evaluation import Similarities, evaluate

    vectors = _vectors(run)
    found = [evaluate(vectors, file) for file in files]
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode({each.name: each for each in found}).decode())
        return
    rows = []
    for each in found:
        if isinstance(each, Similarities):
            score, count, what = f"Spearman {each.spearman:.3f}", each.pairs, "pairs"
        else:
            score, count, what = f"accuracy {each.accuracy:.1%}", each.questions, "questions"
        known = f"{count - each.unknown:,} of {count:,} {what} have known words only"
        rows.append({"file": each.name, "score": score, "known": known})
    printed(table(rows, (Shown("file", 0), Shown("score", 1), Shown("known", 2, least=24)), headings=False))


def save(
    run: Run, file: Annotated[Path, typer.Argument(metavar="FILE", help="Its ending selects the format.")]
) -> None:
    """Write the vectors as .csv, .txt (word2vec's text), .bin (its binary), .h5 or .safetensors."""
    _vectors(run).save(file)


def _vectors(run: str) -> WordVectors:
    from chimera.embeddings.run_files import VECTORS, vectors_of
    from chimera.embeddings.word_vectors import WordVectors
    from chimera.training.artifacts.download import local_copy
    from chimera.training.artifacts.signature import FILE

    with local_copy(run, (VECTORS, FILE)) as folder:
        return WordVectors.load(folder) if folder.is_file() else vectors_of(folder)


def _show(words: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode([{"word": word, "similarity": value} for word, value in words]).decode())
        return
    rows = [{"word": word, "similarity": f"{value:.3f}"} for word, value in words]
    printed(table(rows, (Shown("word", 0), Shown("similarity", 1, is_number=True)), headings=False))
