"""Every test of the kit runs on every engine. Tests that need real processes are collected only for engines that have them.

A fixture of scope "package" ends with the kit only if the folder is a package: hence the ``__init__.py`` beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chimera.core.engine import Engine
from conformance.worlds import WORLDS, World

PROCESSES = [world for world in WORLDS if world.real_processes]
collect_ignore = [] if PROCESSES else ["test_processes.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        worlds = PROCESSES if metafunc.module.__name__.endswith("test_processes") else WORLDS
        if metafunc.function.__name__.startswith("test_nothing_is_left"):
            worlds = [world for world in worlds if world.starts_itself]
        names = {metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__}
        worlds = [world for world in worlds if not names & set(world.lacks)]
        marked = [
            pytest.param(world, id=world.name, marks=[pytest.mark.slow] if world.slow else []) for world in worlds
        ]
        metafunc.parametrize("world", marked, indirect=True, scope="package")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        world = given.get("world")
        if isinstance(world, World) and world.at_leisure & {item.path.stem, getattr(item, "originalname", None)}:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="package")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield one engine after the other, each with its environment; pytest runs all tests of one before the next."""
    with request.param.ground():
        yield request.param


@pytest.fixture
def engine(world: World) -> Iterator[Engine]:
    with world.engine() as engine:
        yield engine
