"""The grid of a comparison: all combinations of the varied values, checked before the first run."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry, checked_options
from chimera.data.split import DATASETS
from chimera.engines.mpi_launch import COMMAND, is_mpi
from chimera.models.conversion import ADAPTER_OPTIONS
from chimera.models.model import MODELS
from chimera.training.comparison.variation import Choice, Variation
from chimera.training.experiment.experiment import Experiment
from chimera.training.plugin import label, named

VIRTUAL = "simulated"  # the engine whose seconds do not depend on the load of the machine
_MAX_NAME_CHARACTERS = 120  # characters in the name of a folder
_TRAINER_KEYS = {"input_shape": None, "outputs": None, "count_outputs": None, "task": None, "seed": None}


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison.

    Attributes
    ----------
    name : name of its folder.
    label : its values, as shown to users.
    settings : the values that vary, as texts by key.
    seed : seed of the training, if several seeds are compared. It is not part of the label.
    experiment : the experiment to run.
    """

    name: str
    label: str
    settings: dict[str, str]
    seed: int | None
    experiment: Experiment

    @property
    def engine(self) -> str:
        """The name of the cell's engine."""
        return label(self.experiment.tables.get("engine", "local"))

    @property
    def is_virtual(self) -> bool:
        """Whether its seconds are virtual."""
        return self.engine == VIRTUAL


def grid_of(experiment: Experiment, variations: Sequence[Variation], seeds: Sequence[int] = ()) -> list[Cell]:
    """Return the cells of the cartesian product; the first variation changes slowest.

    Parameters
    ----------
    seeds : seeds of each combination, for ``train.seed`` and, on the engine ``simulated``, ``engine.seed``.

    Raises
    ------
    ConfigurationError : a key does not exist, a table refuses a value, or two cells are the same.
    """
    if seeds and any(variation.path == ("train", "seed") for variation in variations):
        raise ConfigurationError("--repeat sets train.seed, so --vary cannot vary it: use --repeat SEED,SEED,... alone")
    cells: list[Cell] = []
    seen: dict[Any, str] = {}
    taken: set[str] = set()
    for chosen in itertools.product(*(variation.choices for variation in variations)):
        settings = {variation.key: choice.text for variation, choice in zip(variations, chosen, strict=True)}
        parts = [_named(variation, choice, variations) for variation, choice in zip(variations, chosen, strict=True)]
        name = " · ".join(parts)
        varied = _placed(experiment, variations, chosen)
        for seed in seeds or (None,):
            one = varied if seed is None else _seeded(varied, seed)
            what = name + ("" if seed is None else f", seed {seed}")
            same = (one.to_toml(), *(id(choice.value) for choice in chosen if _is_object(choice.value)))
            if same in seen:
                raise ConfigurationError(
                    f"--vary: {what!r} and {seen[same]!r} are the same cell; leave out one of them"
                )
            seen[same] = what
            folder = _folder_name(parts, seed, taken)
            cells.append(Cell(folder, name or experiment.source, settings, seed, one))
    return cells


def check(cells: Iterable[Cell]) -> None:
    """Validate every cell as far as possible without data, processes or files.

    Raises
    ------
    ConfigurationError : a name, an option or a value cannot be used; the error names the cell.
    """
    optimizers: set[str] = set()
    for cell in cells:
        try:
            tables = cell.experiment.tables
            trainer = cell.experiment.trainer(out=cell.name, resume=True)
            _check_engine(tables.get("engine", "local"))
            _check_plugin(DATASETS, tables["data"])
            _check_model(tables["model"])
            if trainer.optimizers not in optimizers:
                trainer.check_optimizers()
                optimizers.add(trainer.optimizers)
        except ConfigurationError as error:
            raise ConfigurationError(f"{cell.label}: {error}" if cell.settings else str(error)) from error


def _placed(experiment: Experiment, variations: Sequence[Variation], chosen: Sequence[Choice]) -> Experiment:
    pairs = sorted(zip(variations, chosen, strict=True), key=lambda pair: len(pair[0].path))
    for variation, choice in pairs:  # whole tables first, because they replace options
        experiment = choice.place(experiment, variation.path, f"--vary {variation.key!r}")
    return experiment


def _seeded(experiment: Experiment, seed: int) -> Experiment:
    experiment = experiment.with_value(("train", "seed"), seed)
    engine = experiment.tables.get("engine", "local")
    if isinstance(engine, str | Mapping) and named(engine)[0] == VIRTUAL:
        experiment = experiment.with_value(("engine", "seed"), seed)
    return experiment


def _named(variation: Variation, choice: Choice, variations: Sequence[Variation]) -> str:
    """Return a value with as many parts of its key, from the end, as other keys do not end with; a table without key."""
    path = variation.path
    if len(path) == 1:
        return choice.text
    ends = (path[-count:] for count in range(1, len(path)))
    own = next((end for end in ends if sum(other.path[-len(end) :] == end for other in variations) == 1), path)
    return f"{'.'.join(own)}={choice.text}"


def _folder_name(parts: Sequence[str], seed: int | None, taken: set[str]) -> str:
    """Return a portable and unique name for the cell's folder."""
    named = [*parts, *([] if seed is None else [f"seed={seed}"])]
    slugs = [re.sub(r"[^\w.=+,-]+", "-", part.replace(":", ",")).strip("-.,") or "value" for part in named]
    whole = "--".join(slugs) or "run"
    if len(whole.encode()) > _MAX_NAME_CHARACTERS or not whole.isascii():
        digest = hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()
        whole = f"{whole.encode('ascii', 'ignore').decode()[: _MAX_NAME_CHARACTERS - 9]}-{digest}"
    name, number = whole, 1
    while name.lower() in taken:
        number += 1
        name = f"{whole}-{number}"
    taken.add(name.lower())
    return name


def _check_engine(engine: Any) -> None:
    if not isinstance(engine, str | Mapping):
        return
    name, options = named(engine)
    if is_mpi(engine):
        raise ConfigurationError(
            "a comparison runs each cell in a process of its own, which cannot be rank 0 of an MPI job: "
            f"run the cells one by one with '{COMMAND}'"
        )
    if name == VIRTUAL:  # creating it starts no process, and validates its tables too
        ENGINES.create(name, options).close()
    else:
        checked_options(f"engine {name!r}", ENGINES.find(name).factory, options, {})


def _check_plugin(registry: Registry[Any], plugin: Any) -> None:
    if isinstance(plugin, str) or (isinstance(plugin, Mapping) and "name" in plugin):
        name, options = named(plugin)
        checked_options(f"{registry.kind} {name!r}", registry.find(name).factory, options, {})


def _check_model(model: Any) -> None:
    if not isinstance(model, str | Mapping):
        return
    name, options = named(model)
    factory = MODELS.find(name).factory
    if inspect.isclass(factory) or inspect.isfunction(factory):
        taken = inspect.signature(factory).parameters
        own = {key: value for key, value in options.items() if key in taken or key not in ADAPTER_OPTIONS}
        given = {key: value for key, value in _TRAINER_KEYS.items() if key not in own}
        checked_options(f"model {name!r}", factory, own, given)


def _is_object(value: Any) -> bool:
    return not isinstance(value, str | bool | int | float | list | tuple | Mapping)
