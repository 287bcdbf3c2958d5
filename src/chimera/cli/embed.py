"""``chimera embed``: word vectors from text, and what they know."""

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
    help="Learn word vectors from text: 'chimera embed TEXT... [OPTIONS]', see 'chimera embed learn --help'.",
    no_args_is_help=True,
)


@app.command(LEARN)
def learn(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Text files, plain or gzip, or folders.")],
    learners: Annotated[
        str,
        typer.Option(
            "--learners", metavar="N|N,N,...", help="How many learn at once; several numbers are run and compared."
        ),
    ] = "2",
    pipelines: Annotated[
        int | None,
        typer.Option(
            "--pipelines",
            min=0,
            metavar="N",
            help="Readers for them; 0: each reads its own part by itself. 1 for softmax, 0 for faster outputs.",
        ),
    ] = None,
    stages: Annotated[
        str, typer.Option("--stages", metavar="fused|apart", help="A pipeline is one actor, or three with queues.")
    ] = "fused",
    model: Annotated[
        str, typer.Option("--model", metavar="cbow|skip-gram", help="What is predicted from what.")
    ] = "cbow",
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="NAME",
            help="softmax, negative-sampling or hierarchical-softmax; the last two are fast.",
        ),
    ] = "softmax",
    dim: Annotated[int, typer.Option("--dim", min=1, metavar="N", help="Elements of a vector.")] = 32,
    target_loss: Annotated[
        float | None, typer.Option("--target-loss", metavar="NATS", help="Stop at this loss on the test windows.")
    ] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", metavar="N", help="Passes over the text.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", help="Averages.")] = None,
    max_seconds: Annotated[float | None, typer.Option("--max-seconds", metavar="S", help="Time of training.")] = None,
    vocab: Annotated[Path | None, typer.Option("--vocab", metavar="FILE", help="The words to know.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=2, metavar="N", help="Know the most frequent words only.")
    ] = None,
    min_count: Annotated[int, typer.Option("--min-count", min=1, metavar="N", help="Know words this frequent.")] = 1,
    stop_words: Annotated[
        str | None, typer.Option("--stop-words", metavar="english|FILE", help="Words not to know.")
    ] = None,
    number_token: Annotated[
        str | None, typer.Option("--number-token", metavar="WORD", help="Stands for every number, such as <num>.")
    ] = None,
    longest: Annotated[
        int | None, typer.Option("--longest", min=1, metavar="N", help="Leave out words with more letters.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option("--test", metavar="FILE", help="Test windows: a line each, the target in the middle.")
    ] = None,
    test_windows: Annotated[
        int, typer.Option("--test-windows", min=1, metavar="N", help="Without a file, draw so many from the text.")
    ] = 1000,
    width: Annotated[int, typer.Option("--width", min=3, metavar="N", help="Words in a window; odd.")] = 5,
    stride: Annotated[
        str | None,
        typer.Option("--stride", metavar="sliding|disjoint", help="A window for every word, or side by side."),
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--bounds", metavar="lines|sentences", help="What no window reaches across.")
    ] = None,
    sample: Annotated[
        float,
        typer.Option("--sample", min=0, metavar="X", help="Thin out frequent words, as word2vec does; 1e-3, say."),
    ] = 0.0,
    negatives: Annotated[
        int | None, typer.Option("--negatives", min=1, metavar="N", help="For negative-sampling: words drawn for each.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", min=1, metavar="N", help="Batches between two averages.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Windows in a batch.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", metavar="NAME", help="Of each learner.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", metavar="X", help="Its rate; that of word2vec's sgd is per word.")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="How learners work together.")
    ] = "fed-avg",
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="Where they run.")] = "local",
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of all that is drawn.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change the experiment: --set strategy.shards=2. Repeatable."),
    ] = None,
    repeat: Annotated[
        str | None,
        typer.Option("--repeat", metavar="N|SEED,...", help="With several numbers of learners: seeds of each."),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="FAULT", help="Let it happen: 'kill worker 1 at step 500'. Repeatable."),
    ] = None,
    hdf5: Annotated[bool, typer.Option("--hdf5", help="Leave embeddings.h5, too.")] = False,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn word vectors: several learners read a text, and average what they have learnt."""
    from chimera.core.errors import ConfigurationError
    from chimera.embeddings.leaves import Leaves, leave_vectors
    from chimera.embeddings.recipe import Recipe

    counts = [part.strip() for part in learners.split(",")]
    if not all(part.isdecimal() and int(part) for part in counts):
        raise ConfigurationError(f"--learners {learners}: give a number of at least 1, or several between commas")
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
            leave=lambda folder: leave_vectors(folder, also),
        )
        return
    run_experiment(
        experiment,
        out=out,
        resume=resume,
        as_json=as_json,
        quiet=quiet,
        command=_again(),
        leaves=lambda folder: Leaves(folder, also),
    )


app.command("neighbours")(neighbours)
app.command("analogy")(analogy)
app.command("evaluate")(evaluate_files)
app.command("save")(save)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())


def _again() -> list[str]:
    """Return the command of this process, without where its files go: that is said anew."""
    words = iter(["chimera", *sys.argv[1:]])
    kept = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif word != "--resume" and not word.startswith("--out="):
            kept.append(word)
    return kept
