"""What the processes of one host share: a folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from chimera.core.errors import ConfigurationError

DEFAULT = Path("runs/inference")


class ClusterFolder:
    """The journal, the members, the token and the logs of a cluster on one host.

    Parameters
    ----------
    path : the folder; `create` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.path / "journal.sqlite"

    @property
    def members(self) -> Path:
        """The folder with a file for each process."""
        return self.path / "members"

    def logs(self, name: str) -> Path:
        """Return the folder of a process's logs, which is there from now on."""
        folder = self.path / "logs" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def create(self) -> None:
        """Make the folder, and a token that only its owner can read; what is there stays.

        Raises
        ------
        ConfigurationError : it cannot be written.
        """
        try:
            self.members.mkdir(parents=True, exist_ok=True)
            mine = self.path / f"token.{os.getpid()}.{secrets.token_hex(4)}"
            mine.touch(0o600)
            mine.write_text(secrets.token_urlsafe(32), "ascii")
            with contextlib.suppress(FileExistsError):
                os.link(mine, self.path / "token")  # whole or not at all, and the first one's where several create it
            mine.unlink()
        except OSError as error:
            raise ConfigurationError(f"the cluster's folder {self.path} cannot be written: {error.strerror}") from error

    def token(self) -> str:
        """Return what every request must bear.

        Raises
        ------
        ConfigurationError : there is no such cluster, or its token is not readable.
        """
        try:
            token = (self.path / "token").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"there is no cluster at {self.path} ('chimera infer up --cluster {self.path}' starts one): {error}"
            ) from error
        if not token:
            raise ConfigurationError(f"the token of the cluster, {self.path / 'token'}, is empty")
        return token
