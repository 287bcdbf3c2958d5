"""The revoked certificates that a node knows. The hub can add certificates, and cannot remove one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import opener

FILE_NAME = "revoked.txt"
_MAX_REVOKED = 100_000  # a hub must not fill memory and disk
_DIGITS = 64


class Revocations:
    """The certificates that the hub has named as revoked since the node joined.

    Parameters
    ----------
    folder : folder of the node; the file ``revoked.txt`` there has a fingerprint on each line.

    Raises
    ------
    ConfigurationError : the file cannot be read, or has another line.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        try:
            lines = self._file.read_text("ascii").split() if self._file.exists() else []
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the list of revoked certificates {self._file} cannot be read: {error}"
            ) from error
        if any(len(line) != _DIGITS for line in lines):
            raise ConfigurationError(f"the list of revoked certificates {self._file} has a line that is no fingerprint")
        self._known = frozenset(lines)

    def __call__(self) -> frozenset[str]:
        """Return the SHA-256 of the revoked certificates, hexadecimal."""
        return self._known

    def learn(self, certificates: Iterable[bytes]) -> None:
        """Add revoked certificates, and return once they are on the disk.

        Parameters
        ----------
        certificates : SHA-256 of each.

        Raises
        ------
        DataError : these are more than 100,000.
        ConfigurationError : the file cannot be written. The certificates count as revoked in this process.
        """
        known = self._known | {each.hex() for each in certificates}
        if len(known) > _MAX_REVOKED:
            raise DataError(f"the hub names more than {_MAX_REVOKED} revoked certificates")
        if known == self._known:
            return
        self._known = known
        new = self._file.with_suffix(".new")
        try:
            with open(new, "w", encoding="ascii", opener=opener) as file:
                file.write("".join(f"{each}\n" for each in sorted(known)))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
        except OSError as error:
            raise ConfigurationError(
                f"the list of revoked certificates {self._file} cannot be written: {error.strerror}"
            ) from error
