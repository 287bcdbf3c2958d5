"""The default run takes a sample of tests with many combinations of parameters; the long run takes all of them.

``@pytest.mark.sampled`` on a test, or in ``pytestmark``, keeps a sample of its combinations in the default run and marks the
others ``long``. Each value of each parameter is in the sample; with ``sampled(4)``, as many as four combinations hold.
``always=["d-psgd"]`` adds the combinations in which a parameter has this value, e.g. because a planted bug needs them. The day
selects the combinations, so that others are tried every day; ``CHIMERA_TESTS_DAY=2026-11-23`` repeats the sample of a day.

A run with a time limit (``CHIMERA_TESTS_UNTIL``) takes the files in another order every day, so that it does not leave out the
same tests every time.

In the folders of `VIRTUAL`, a test with variants for the engine ``simulated`` and for other engines runs in virtual time in the
default run; the other variants are ``long``. The conformance tests hold all engines to the same behaviour.
"""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

DAY = "CHIMERA_TESTS_DAY"
OUTSIDE = {"sampled", "long", "slow"}
VIRTUAL = {"codecs", "embeddings", "ensembles", "strategies", "training"}
_ENGINE = re.compile(r"(?<![a-z])(simulated|local|http|ray)(?![a-z]|-sgd)")


def covering(combinations: list[dict[str, int]], seed: str, limit: int | None = None) -> set[int]:
    """Return the places of few combinations, at most ``limit``, in which each value of each parameter occurs."""
    order = list(range(len(combinations)))
    random.Random(seed).shuffle(order)
    missing = {pair for combination in combinations for pair in combination.items()}
    chosen: set[int] = set()
    while missing and len(chosen) != limit:
        best = max(order, key=lambda place: len(missing & combinations[place].items()))
        chosen.add(best)
        missing -= combinations[best].items()
    return chosen


def leave_real_engines(items: Iterable[pytest.Item]) -> None:
    """Mark variants of tests in `VIRTUAL` for other engines ``long`` if there is a variant for the engine ``simulated``."""
    variants: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        name, _, parameters = item.nodeid.partition("[")
        engine = _ENGINE.search(parameters)
        if engine and VIRTUAL & set(name.split("/")):
            variants[name][engine.group()].append(item)
    for found in variants.values():
        if "simulated" in found:
            for item in (item for engine, some in found.items() if engine != "simulated" for item in some):
                item.add_marker(pytest.mark.long)


def today() -> str:
    """Return the day of the samples. The processes of xdist inherit it."""
    return os.environ.setdefault(DAY, datetime.now(tz=UTC).date().isoformat())


def order_of_files(items: Iterable[pytest.Item], day: str) -> list[pytest.Item]:
    """Return the tests with their files in the order of a day; the order within a file is kept."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    names = sorted(files)
    random.Random(day).shuffle(names)
    return [item for name in names for item in files[name]]


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests ``long`` that the default run leaves out today."""
    leave_real_engines(items)
    day = today()
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {marker.name for marker in item.iter_markers()}
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and marks & OUTSIDE == {"sampled"}:
            functions[item.nodeid.partition("[")[0]].append(item)
    for name, found in functions.items():
        marker = found[0].get_closest_marker("sampled")
        assert marker is not None
        limit, always = marker.args[0] if marker.args else None, marker.kwargs.get("always", ())
        sample = covering([dict(item.callspec.indices) for item in found], f"{day} {name}", limit)
        for place, item in enumerate(found):
            if place not in sample and not set(always) & set(map(str, item.callspec.params.values())):
                item.add_marker(pytest.mark.long)
