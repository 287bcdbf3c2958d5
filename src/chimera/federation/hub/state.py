"""The file of a hub: its members, invitations, revocations and runs. Calls are not in it."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError, ConflictError
from chimera.core.sqlite import SQLiteConnection, SQLiteFormat
from chimera.engines.federation.wire.frames import NAME, Budget
from chimera.federation.hub.sightings import (
    DAY_S,
    TABLES,
    KnownRun,
    Seen,
    SeenRun,
    budgets,
    last_runs,
    note,
    stays_since,
)
from chimera.federation.identity.authority import DAYS, Issued, Role
from chimera.federation.identity.invitations import LASTS_S

_FORMAT = SQLiteFormat(
    what="state of a hub",
    application=0x43684862,
    format=1,
    schema="""
        CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE members (
            serial TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, fingerprint TEXT NOT NULL, since_s REAL NOT NULL,
            revoked_s REAL
        ) WITHOUT ROWID;
        CREATE TABLE invitations (
            digest TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, until_s REAL NOT NULL, used_s REAL
        ) WITHOUT ROWID;
        CREATE TABLE presence (
            name TEXT PRIMARY KEY, since_s REAL, seen_s REAL NOT NULL, version TEXT NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE runs (
            run TEXT PRIMARY KEY, requester TEXT NOT NULL, since_s REAL NOT NULL, seen_s REAL NOT NULL
        ) WITHOUT ROWID
    """,
)


HERE_S = 15.0
"""Seconds without a report after which a node is not connected. A hub reports the connected nodes every 5 s."""


class Member(NamedTuple):
    """A holder of a certificate.

    Attributes
    ----------
    since_s : time at which it joined, in seconds since 1970.
    revoked : whether its certificate is revoked.
    here_s : time at which its node connected; None if the node is not connected.
    seen_s : time of the last frame of its node; None: there was none.
    version : version of Chimera at its node.
    """

    role: str
    name: str
    since_s: float
    revoked: bool
    here_s: float | None
    seen_s: float | None
    version: str

    def state(self, now_s: float) -> str:
        """Return ``connected``, ``away`` or ``revoked``; of a requester, an empty text or ``revoked``."""
        here = self.here_s is not None and now_s - (self.seen_s or 0) < HERE_S
        return "revoked" if self.revoked else "connected" if here else "away" if self.role == "node" else ""


class State:
    """The state of a hub, in the file ``hub.sqlite`` of its folder. Several processes may use it.

    Parameters
    ----------
    clock : returns the seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._db = SQLiteConnection(folder / "hub.sqlite", _FORMAT)
        self._db.prepare()
        self._db.write(lambda db: [db.execute(statement) for statement in TABLES.split(";")])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def fact(self, key: str) -> str | None:
        """Return a text that `remember` has stored."""
        rows = self._db.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def remember(self, **facts: str) -> None:
        """Store texts by their names."""
        self._db.write(lambda db: db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items()))

    def invite(self, role: Role, name: str, digest: str) -> None:
        """Store an invitation. Former invitations of this name that were not used are withdrawn.

        Raises
        ------
        ConfigurationError : the name has another form.
        ConflictError : a member has this name.
        """
        if not re.fullmatch(NAME, name):
            raise ConfigurationError(
                f"{name!r} is no name of a {role}: use 1 to 63 lower-case letters, digits, '.', '-' and '_'"
            )

        def work(db: sqlite3.Connection) -> None:
            if self._certified(db, role, name):
                raise ConflictError(f"{name} is a {role} already: 'chimera hub revoke {name}' lets it join again")
            db.execute("DELETE FROM invitations WHERE role = ? AND name = ? AND used_s IS NULL", (role, name))
            values = digest, role, name, self._clock() + LASTS_S
            db.execute("INSERT INTO invitations VALUES (?, ?, ?, ?, NULL)", values)

        self._db.write(work)

    def redeem(self, digest: str, sign: Callable[[Role, str], Issued]) -> tuple[Issued, Role, str]:
        """Use an invitation: sign a certificate, and make its holder a member. One transaction: a code can be used once.

        Raises
        ------
        ConflictError : the code is unknown, was used, or has expired.
        """

        def work(db: sqlite3.Connection) -> tuple[Issued, Role, str]:
            now_s = self._clock()
            query = "SELECT role, name, until_s, used_s FROM invitations WHERE digest = ?"
            found = db.execute(query, (digest,)).fetchone()
            if found is None:
                raise ConflictError("it is unknown, or was withdrawn")
            role, name, until_s, used_s = found
            if used_s is not None:
                raise ConflictError("it was used already")
            if now_s >= until_s:
                raise ConflictError("it has expired")
            if self._certified(db, role, name):
                raise ConflictError(f"{name} is a {role} already")
            issued = sign(role, name)
            db.execute("UPDATE invitations SET used_s = ? WHERE digest = ?", (now_s, digest))
            values = issued.serial, role, name, issued.fingerprint, now_s
            db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?, NULL)", values)
            return issued, role, name

        return self._db.write(work)

    def renew(self, serial: str, sign: Callable[[Role, str], Issued]) -> Issued:
        """Sign a further certificate for the member with this one, of whose validity at least half is over.

        A certificate that was renewed stays valid: the answer may be lost. A further renewal replaces it.

        Raises
        ------
        ConflictError : the certificate is revoked, unknown, or too new.
        """

        def work(db: sqlite3.Connection) -> Issued:
            now_s = self._clock()
            query = "SELECT role, name, since_s FROM members WHERE serial = ? AND revoked_s IS NULL"
            found = db.execute(query, (serial,)).fetchone()
            if found is None:
                raise ConflictError("the certificate is revoked, or unknown to this hub")
            role, name, since_s = found
            if now_s - since_s < DAYS * DAY_S / 2:
                raise ConflictError("the certificate is too new")
            issued = sign(role, name)
            lost = "DELETE FROM members WHERE role = ? AND name = ? AND since_s > ? AND revoked_s IS NULL"
            db.execute(lost, (role, name, since_s))
            values = issued.serial, role, name, issued.fingerprint, now_s
            db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?, NULL)", values)
            return issued

        return self._db.write(work)

    def _certified(self, db: sqlite3.Connection, role: str, name: str) -> bool:
        query = "SELECT 1 FROM members WHERE role = ? AND name = ? AND revoked_s IS NULL"
        return db.execute(query, (role, name)).fetchone() is not None

    def revoke(self, name: str) -> tuple[list[tuple[Role, str]], int]:
        """Revoke all certificates and invitations of a name.

        Returns role and fingerprint of the certificates, and the number of the invitations.
        """

        def work(db: sqlite3.Connection) -> tuple[list[tuple[Role, str]], int]:
            withdrawn = db.execute("DELETE FROM invitations WHERE name = ? AND used_s IS NULL", (name,)).rowcount
            query = "SELECT role, fingerprint FROM members WHERE name = ? AND revoked_s IS NULL"
            found: list[tuple[Role, str]] = db.execute(query, (name,)).fetchall()
            statement = "UPDATE members SET revoked_s = ? WHERE name = ? AND revoked_s IS NULL"
            db.execute(statement, (self._clock(), name))
            return found, withdrawn

        return self._db.write(work)

    def valid(self) -> dict[str, tuple[str, str]]:
        """Return role and name of the certificates that are not revoked, by serial number."""
        rows = self._db.rows("SELECT serial, role, name FROM members WHERE revoked_s IS NULL", ())
        return {serial: (role, name) for serial, role, name in rows}

    def revoked(self) -> list[bytes]:
        """Return the SHA-256 of the revoked certificates that have not expired."""
        query = "SELECT fingerprint FROM members WHERE revoked_s IS NOT NULL AND since_s > ? ORDER BY revoked_s"
        return [bytes.fromhex(row[0]) for row in self._db.rows(query, (self._clock() - DAYS * 86_400.0,))]

    def changes(self) -> int:
        """Return a number that changes when another process has written to the file."""
        return int(self._db.rows("PRAGMA data_version", ())[0][0])

    def report(self, seen: Iterable[Seen], runs: Iterable[SeenRun]) -> None:
        """Record which nodes and runs were seen."""
        now_s, nodes, heard = self._clock(), list(seen), list(runs)
        self._db.write(lambda db: note(db, now_s, nodes, heard))

    def stays(self) -> dict[str, list[tuple[float, float]]]:
        """Return when each node was connected in the last 24 hours: pairs of seconds since 1970."""
        return self._db.read(lambda db: stays_since(db, self._clock() - DAY_S))

    def budgets(self) -> dict[str, Budget]:
        """Return the budgets of epsilon that nodes have reported, by name."""
        return self._db.read(budgets)

    def runs(self, most: int) -> list[KnownRun]:
        """Return the runs that were seen last, the last one first."""
        return self._db.read(lambda db: last_runs(db, most))

    def members(self) -> list[Member]:
        """Return all members, by role and name; of a renewed certificate, the newest."""
        rows: list[Any] = self._db.rows(
            "SELECT m.role, m.name, m.since_s, m.revoked_s IS NOT NULL, p.since_s, p.seen_s, coalesce(p.version, '') "
            "FROM members m LEFT JOIN presence p ON p.name = m.name AND m.role = 'node' "
            "WHERE NOT EXISTS (SELECT 1 FROM members n WHERE n.role = m.role AND n.name = m.name AND n.since_s > m.since_s "
            "AND n.revoked_s IS m.revoked_s) ORDER BY m.role, m.name, m.since_s",
            (),
        )
        return [Member(role, name, since, bool(revoked), *rest) for role, name, since, revoked, *rest in rows]

    def forget_presence(self) -> None:
        """Note that no node is connected, at the start of a hub that may have been killed."""
        self._db.write(lambda db: db.execute("UPDATE presence SET since_s = NULL"))
