"""Folders that another user of the machine has created before: no token or key in them is used, and none is written there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError
from chimera.core.private import check_is_own
from chimera.federation.hub.page.serving import PageServer
from chimera.federation.identity.authority import Authority
from chimera.federation.identity.invitations import Invitation
from chimera.federation.identity.join import join
from chimera.web.folder import Folder

OTHER = 4711
TOKEN = "known-to-the-other-user"


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that gives a path to another user; without the rights of root, this process appears as another one."""

    def give(path: Path) -> None:
        if os.getuid() == 0:
            os.chown(path, OTHER, OTHER)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    return give


def cluster(folder: Path) -> Any:
    place = Folder(folder, up="up", down="down")
    place.create()
    return place.token()


def joined(folder: Path) -> Any:
    return join("https://127.0.0.1:1", Invitation.new(bytes(32), own_certificate=True).code, folder)


USES = {
    "a cluster": cluster,
    "its client": lambda folder: Folder(folder, up="up", down="down").token(),
    "the authority of a hub": Authority,
    "the page of a hub": lambda folder: PageServer(folder, "127.0.0.1", 0).close(),
    "an identity": joined,
}


@pytest.mark.parametrize("use", USES)
def test_a_folder_of_another_user_is_refused(use: str, tmp_path: Path, given_away: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    for name in ("token", "page.token"):
        (folder / name).write_text(TOKEN)
    given_away(folder)
    with pytest.raises(ConfigurationError, match="belongs to another user") as caught:
        USES[use](folder)
    assert "\n" not in str(caught.value)
    assert {path.name for path in folder.iterdir()} == {"token", "page.token"}


@pytest.mark.parametrize("use", USES)
def test_a_folder_that_all_users_can_write_is_refused(use: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="all users of this machine can write"):
        USES[use](folder)
    assert not list(folder.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, who can give a file to another user: run the tests as root")
def test_a_token_of_another_user_in_an_own_folder_is_refused(
    tmp_path: Path, given_away: Callable[[Path], None]
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    given_away(tmp_path / "token")  # the folder stays that of root
    with pytest.raises(ConfigurationError, match="token belongs to another user"):
        cluster(tmp_path)


def test_root_uses_the_folders_of_all_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, root often works in a folder of the user who started it."""
    if os.getuid() == 0:
        os.chown(tmp_path, OTHER, OTHER)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    check_is_own(tmp_path)
