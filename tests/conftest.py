"""What holds for all tests."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("shared-machine")

_SHARED = re.compile(r"(?<![a-z])(ray|docker)(?![a-z])")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests on Ray run in one process, so that none finds the Ray of another; those with containers too."""
    for item in items:
        if shared := _SHARED.search(item.nodeid):
            item.add_marker(pytest.mark.xdist_group(shared.group()))
