"""``chimera embed``: train word vectors from text, query and evaluate them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from chimera.cli.compare import run_grid
from chimera.cli.embed_vectors import analogy, evaluate_files, neighbours, save
from chimera.cli.train import Json, Out, Quiet, Resume, run_experiment

LEARN = "learn"


class _LearnsByDefault(typer.core.TyperGroup):
    """``chimera embed TEXT`` is ``chimera embed learn TEXT``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [LEARN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_LearnsByDefault,
    help="Train word vectors from text: 'chimera embed TEXT... [OPTIONS]', see 'chimera embed learn --help'.",
    no_args_is_help=True,
)


@app.command(LEARN)
def learn(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Text files, plain or gzip, or folders.")],
    learners: Annotated[
        str,
        typer.Option(
            "--learners",
            metavar="N|N,N,...",
            help="Train with N learners at once; with several numbers, run and compare each.",
        ),
    ] = "2",
    pipelines: Annotated[
        int | None,
        typer.Option(
            "--pipelines",
            min=0,
            metavar="N",
            help="Start N pipelines that read text for the learners; 0: each learner reads its own part."
            " Default: 1 for softmax, else 0.",
        ),
    ] = None,
    stages: Annotated[
        str,
        typer.Option("--stages", metavar="fused|apart", help="Run a pipeline as one actor, or as three with queues."),
    ] = "fused",
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="cbow|skip-gram",
            help="Predict a word from its context (cbow), or the context from a word (skip-gram).",
        ),
    ] = "cbow",
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="NAME",
            help="Use softmax, negative-sampling or hierarchical-softmax; the last two are fast.",
        ),
    ] = "softmax",
    dim: Annotated[int, typer.Option("--dim", min=1, metavar="N", help="Train vectors of N elements.")] = 32,
    target_loss: Annotated[
        float | None,
        typer.Option("--target-loss", metavar="NATS", help="Stop at this loss on the test windows; default: not set."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", metavar="N", help="Stop after N passes over the text.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", help="Stop after N rounds.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", help="Stop after S seconds of training.")
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option("--vocab", metavar="FILE", help="Read the vocabulary from this file; default: from the text."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", min=2, metavar="N", help="Keep only the N most frequent words; default: all."),
    ] = None,
    min_count: Annotated[
        int, typer.Option("--min-count", min=1, metavar="N", help="Keep only words that occur at least N times.")
    ] = 1,
    stop_words: Annotated[
        str | None, typer.Option("--stop-words", metavar="english|FILE", help="Leave out these words; default: none.")
    ] = None,
    number_token: Annotated[
        str | None,
        typer.Option(
            "--number-token",
            metavar="WORD",
            help="Replace every number by this word, e.g. <num>; default: keep numbers.",
        ),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(
            "--longest", min=1, metavar="N", help="Leave out words of more than N letters; default: no limit."
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test", metavar="FILE", help="Read test windows from this file: one a line, the target in the middle."
        ),
    ] = None,
    test_windows: Annotated[
        int,
        typer.Option(
            "--test-windows", min=1, metavar="N", help="Draw N test windows from the text if there is no --test."
        ),
    ] = 1000,
    width: Annotated[int, typer.Option("--width", min=3, metavar="N", help="Use windows of N words; odd.")] = 5,
    stride: Annotated[
        str | None,
        typer.Option(
            "--stride", metavar="sliding|disjoint", help="Take a window for every word, or windows that do not overlap."
        ),
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(
            "--bounds", metavar="lines|sentences", help="Let no window cross the end of a line, or of a sentence."
        ),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            "--sample", min=0, metavar="X", help="Subsample frequent words as word2vec does, e.g. 1e-3; 0: keep all."
        ),
    ] = 0.0,
    negatives: Annotated[
        int | None,
        typer.Option(
            "--negatives", min=1, metavar="N", help="Draw N negative words per target, for negative-sampling."
        ),
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", min=1, metavar="N", help="Average every N batches.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Use N windows per batch.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="NAME", help="Use this optimizer in each learner.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", metavar="X", help="Set the learning rate; that of word2vec's sgd is per word."),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="Train with this strategy; see 'chimera list strategies'.")
    ] = "fed-avg",
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="Run on this engine; see 'chimera list engines'.")
    ] = "local",
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed all random numbers.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value of the experiment, e.g. strategy.shards=2. Repeatable."
        ),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option(
            "--repeat",
            metavar="N|SEED,...",
            help="Run each number of learners with N seeds, or with these seeds. Needs several numbers in --learners.",
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help="Inject a fault, e.g. 'kill worker 1 at step 500'. Repeatable."),
    ] = None,
    hdf5: Annotated[bool, typer.Option("--hdf5", help="Write embeddings.h5, too.")] = False,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train word vectors with several learners that average their weights."""
    from chimera.core.errors import ConfigurationError
    from chimera.embeddings.recipe import Recipe
    from chimera.embeddings.run_files import VectorWriter, write_vectors

    counts = [part.strip() for part in learners.split(",")]
    if not all(part.isdecimal() and int(part) for part in counts):
        raise ConfigurationError(f"--learners {learners}: give a number of at least 1, or several separated by commas")
    data = {
        "vocabulary_path": _absolute(vocab),
        "vocabulary_size": vocab_size,
        "min_count": min_count if min_count > 1 else None,
        "stop_words": stop_words if stop_words == "english" else None,
        "stop_words_path": None if stop_words in (None, "english") else _absolute(Path(stop_words)),
        "number_token": number_token,
        "longest": longest,
        "test_path": _absolute(test),
        "test_windows": test_windows if test is None else None,
        "width": width,
        "stride": stride,
        "bounds": bounds,
        "sample": sample or None,
    }
    recipe = Recipe(
        paths=texts,
        learners=int(counts[0]),
        pipelines=pipelines,
        stages=stages,
        model=model,
        output=output,
        dim=dim,
        target_loss=target_loss,
        epochs=epochs,
        rounds=rounds,
        max_seconds=max_seconds,
        batch_size=batch_size,
        local_steps=local_steps,
        optimizer=optimizer,
        learning_rate=learning_rate,
        strategy=strategy,
        engine=engine,
        seed=seed,
        data={key: value for key, value in data.items() if value is not None},
        model_options={} if negatives is None else {"negatives": negatives},
    )
    experiment = recipe.experiment().with_settings(settings or [])
    if faults:
        experiment = experiment.with_faults(faults)
    also = ["embeddings.txt", "embeddings.bin", *(["embeddings.h5"] if hdf5 else [])]
    if len(counts) > 1:
        run_grid(
            experiment,
            [f"train.workers={','.join(counts)}"],
            jobs=None,
            repeat=repeat,
            out=out,
            resume=resume,
            as_json=as_json,
            quiet=quiet,
            command=_again(),
            write_files=lambda folder: write_vectors(folder, also),
        )
        return
    run_experiment(
        experiment,
        out=out,
        resume=resume,
        as_json=as_json,
        quiet=quiet,
        command=_again(),
        file_writer=lambda folder: VectorWriter(folder, also),
    )


app.command("neighbours")(neighbours)
app.command("analogy")(analogy)
app.command("evaluate")(evaluate_files)
app.command("save")(save)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _again() -> list[str]:
    """Return the command line of this process without --out and --resume, which the caller adds."""
    words = iter(["chimera", *sys.argv[1:]])
    kept = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif word != "--resume" and not word.startswith("--out="):
            kept.append(word)
    return kept
