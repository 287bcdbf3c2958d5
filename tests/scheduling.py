"""The division of the tests among the processes of pytest-xdist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
SHARED = re.compile(r"(?<![a-z])(ray|docker)(?![a-z])")
_PACKAGE = re.compile(r"tests/(conformance|calibration)/")
_MODULE_FIXTURE = re.compile(r"""scope=["']module["']""")


@cache
def _has_module_fixtures(file: str) -> bool:
    """Return whether a file of tests, relative to the root, declares a fixture of scope "module"."""
    path = ROOT / file
    return path.is_file() and bool(_MODULE_FIXTURE.search(path.read_text(encoding="utf-8")))


def scope_of(nodeid: str) -> str:
    """Return the name of the tests that run in one process with this test.

    All tests on Ray share one process, so that none finds the Ray of another; so do tests with containers. The conformance
    kit, the tests of calibrations, and files with fixtures of scope "module" run in one process each, which makes these
    fixtures once.
    """
    if shared := SHARED.search(nodeid) or _PACKAGE.match(nodeid):
        return shared.group()
    file = nodeid.partition("::")[0]
    return file if _has_module_fixtures(file) else nodeid


class Turns(LoadScopeScheduling):
    """Scheduling that keeps the tests of one scope, see `scope_of`, in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget a test that has run: the base class counts all tests of a process again after each of them."""
        nodeid = self.registered_collections[node][item_index]
        scope = scope_of(nodeid)
        unit = self.assigned_work[node][scope]
        del unit[nodeid]
        if not unit:
            del self.assigned_work[node][scope]
        self._reschedule(node)
