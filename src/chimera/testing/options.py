"""The options of the conformance kit, which ``pytest -p chimera.testing`` adds. No heavy library is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--strategy``, ``--codec`` and ``--engines``."""
    group = parser.getgroup(
        "chimera", "conformance kit of Chimera (pytest -p chimera.testing --pyargs chimera.testing)"
    )
    group.addoption(
        "--strategy",
        action="append",
        metavar="NAME",
        help="test this strategy: a registered name, package.module:Class or file.py:Class; may be repeated (default: all)",
    )
    group.addoption(
        "--codec",
        action="append",
        metavar="NAME",
        help="test this codec with its default options: a name as of --strategy; may be repeated (default: none)",
    )
    group.addoption(
        "--engines",
        metavar="NAMES",
        help="test on these engines, separated by commas (default: simulated,local and, if installed, ray)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put the current folder on the import path, as ``python -m pytest`` does; reject unknown names."""
    for mark in ("long", "slow"):
        config.addinivalue_line("markers", f"{mark}: tests of Chimera's conformance kit; deselect with -m 'not {mark}'")
    folder = str(config.invocation_params.dir)
    strategies, codecs = config.getoption("strategy") or (), config.getoption("codec") or ()
    if (strategies or codecs) and folder not in sys.path:
        sys.path.insert(0, folder)
    if strategies or codecs or config.getoption("engines"):
        check(strategies, (config.getoption("engines") or "simulated").split(","), codecs)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of codecs without ``--codec``, and those of strategies with ``--codec`` alone."""
    codecs, strategies = config.getoption("codec"), config.getoption("strategy")
    unused = {"test_codecs.py": not codecs, "test_strategies.py": bool(codecs) and not strategies}
    if collection_path.parent == Path(__file__).parent and unused.get(collection_path.name):
        return True
    return None


def check(strategies: Sequence[str], engines: Sequence[str], codecs: Sequence[str] = ()) -> None:
    """Raise UsageError if a name is unknown or its library is not installed."""
    from chimera.codecs.codec import CODECS
    from chimera.core.engine import ENGINES
    from chimera.core.errors import ConfigurationError
    from chimera.strategies.strategy import STRATEGIES

    try:
        for name in strategies:
            STRATEGIES.find(name)
        for name in codecs:
            CODECS.find(name)
        for name in engines:
            ENGINES.find(name)
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from None
