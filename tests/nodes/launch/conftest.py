"""Folders that nodes run from."""

import pytest

from nodes.launch.folders import Folder


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two plain workers and a master."""
    made = Folder(tmp_path, ["tree1", "tree2"])
    yield made
    made.close()
