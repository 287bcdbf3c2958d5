"""The pytest plugin of the conformance kit: its options. It is loaded in every run of pytest, and so imports nothing heavy."""

from __future__ import annotations

import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--strategy`` and ``--engines``."""
    group = parser.getgroup("chimera", "conformance kit of Chimera (pytest --pyargs chimera.testing)")
    group.addoption(
        "--strategy",
        action="append",
        metavar="NAME",
        help="test this strategy: a registered name, package.module:Class or file.py:Class; may be repeated (default: all)",
    )
    group.addoption(
        "--engines", metavar="NAMES", help="on these, by commas (default: simulated,local and, if installed, ray)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let modules beside whoever started pytest be found, as they are by ``python -m pytest``."""
    for mark in ("long", "slow"):
        config.addinivalue_line("markers", f"{mark}: of Chimera's conformance kit, may be left out by -m 'not {mark}'")
    folder = str(config.invocation_params.dir)
    if config.getoption("strategy") and folder not in sys.path:
        sys.path.insert(0, folder)
