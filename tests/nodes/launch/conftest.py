"""Fixtures of tests of launchers: a folder of nodes, and a base image."""

import os

import pytest

from nodes.launch.folders import Folder


@pytest.fixture
def folder(tmp_path):
    """Return a folder of two plain workers and a master."""
    made = Folder(tmp_path, ["tree1", "tree2"])
    yield made
    made.close()


@pytest.fixture(scope="session")
def docker_base():
    """Return the name of a base image; skip the test if no daemon answers or the image does not exist."""
    from docker.errors import DockerException

    from chimera.nodes.launchers.docker import connect
    from chimera.nodes.launchers.launcher import LauncherError

    try:
        client = connect()
    except LauncherError as error:
        pytest.skip(f"{error}; .ci/docker starts one")
    base = os.environ.get("CHIMERA_TEST_BASE_IMAGE", "chimera-test-base")
    try:
        client.images.get(base)
    except DockerException as error:
        pytest.skip(
            f"Docker has no image {base!r} ({error}); .ci/docker builds it, CHIMERA_TEST_BASE_IMAGE selects another"
        )
    finally:
        client.close()
    return base
