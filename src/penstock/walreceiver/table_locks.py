"""Lock the tables of a copy in ACCESS SHARE, as pg_dump does, and check that no change came first.

One transaction holds the locks, and each table that cannot be copied now gets an error. A snapshot
protects rows, not files. A command that rewrites a table (CLUSTER, VACUUM FULL, ALTER TABLE) moves
rows to other blocks between two of our reads, or gives them an xmin that the snapshot does not see;
TRUNCATE and DETACH remove rows. All of these need a lock that conflicts with ACCESS SHARE. If a
session has waited for such a lock for some seconds, we release ours and begin the table's copy
again later.

The locks are taken after the snapshot. Creating the slot waits for every writing transaction, even
for a transaction that waits for a lock to change a table. If we locked first, the slot would wait
for that transaction and that transaction for us, and the server could not detect the deadlock. To
find changes between the snapshot and the lock, the catalogs in the snapshot are compared with the
present catalogs. A changed table is left out, and copied at a later snapshot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import (
    ConnectionFailure,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    PublisherError,
    UndefinedObject,
)
from penstock.identifiers import quote_literal, quoted
from penstock.relation import qualified
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.slots import PREPARED
from penstock.walreceiver.snapshot_holder import lost_snapshot
from penstock.walreceiver.table_info import not_found

Name = tuple[str, str]
"""A table's name: schema and table."""

_PATIENCE: Final = "1s"
"""The longest time that a round waits for locks; it waits once, and the next round tries again."""

_POLITENESS_S: Final = 3.0
"""Seconds that another session waits for a table before we give up the table's copy. Readers wait
behind that session, so the time must be short; a careful migration gives up sooner, and retries."""

_WAITED_FOR: Final = (
    "SELECT DISTINCT n.nspname, c.relname FROM pg_catalog.pg_locks w"
    " CROSS JOIN LATERAL (SELECT w.relation AS oid UNION"
    " SELECT a.relid FROM pg_catalog.pg_partition_ancestors(w.relation) a) m"
    " JOIN pg_catalog.pg_class c ON c.oid = m.oid"
    " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE w.locktype = 'relation' AND NOT w.granted AND w.mode = 'AccessExclusiveLock'"
    " AND {pid} = ANY (pg_catalog.pg_blocking_pids(w.pid))"
)
"""A query for the tables that other sessions wait for because of our locks, and the partitioned
tables above them."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_NO_RIGHT: Final = "42501"
_LAKE: Final = "(Penstock)"

_PUBLICATIONS: Final = (
    "(SELECT pg_catalog.string_agg(p.oid::text || p.xmin::text, ',' ORDER BY p.oid)"
    " FROM pg_catalog.pg_publication p),"
    " (SELECT pg_catalog.string_agg(p.oid::text || p.xmin::text, ',' ORDER BY p.oid)"
    " FROM pg_catalog.pg_publication_rel p)"
)

_STATE: Final = (
    "WITH RECURSIVE tree (root, oid, pending, link) AS ("
    " SELECT c.oid, c.oid, false, '0'::pg_catalog.xid FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE (n.nspname, c.relname) IN ({names})"
    " UNION ALL"
    " SELECT t.root, i.inhrelid, i.inhdetachpending, i.xmin FROM tree t"
    " JOIN pg_catalog.pg_class p ON p.oid = t.oid AND p.relkind = 'p'"
    " JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid)"
    " SELECT n.nspname, r.relname, r.relkind, pg_catalog.md5(pg_catalog.concat_ws(';',"
    " pg_catalog.string_agg(pg_catalog.concat_ws(' ', c.oid, c.relfilenode, c.relkind, t.pending,"
    " t.link,"
    " (SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.attname, a.atttypid,"
    " a.atttypmod, a.attisdropped), ',' ORDER BY a.attnum)"
    " FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)),"
    " ',' ORDER BY c.oid), " + _PUBLICATIONS + "))"
    " FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid"
    " JOIN pg_catalog.pg_class r ON r.oid = t.root"
    " JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace GROUP BY 1, 2, 3"
)
"""A query for each table's kind, and a digest of the parts that must not change: the table and its
partitions with the transactions that attached them, their files and columns, and the rows of the
publications. It does not read the tables."""


@dataclass(frozen=True, slots=True)
class LockMessages:
    """Messages for a table that cannot be locked, was changed, or that another session waits for.
    The hints say when the table is read again: ``later`` in the first case, else ``again``."""

    locked: str
    changed: str
    waited_for: str
    later: str
    again: str


_COPY: Final = LockMessages(
    locked='could not lock table "{table}" for its initial copy',
    changed='table "{table}" was changed while its initial copy began',
    waited_for='the initial copy of table "{table}" makes way',
    later="The copy is tried again by itself.",
    again="The copy begins again by itself at a new snapshot.",
)


class TableLocks:
    """The locks, held in a session of their own; a context manager that releases them."""

    def __init__(
        self,
        conninfo: ConnInfo,
        application_name: str,
        interrupt: Callable[[], None],
        messages: LockMessages = _COPY,
    ) -> None:
        """Open the session. Raises the errors of ``Connection.connect``. ``interrupt``: see
        ``Connection``."""
        self._messages = messages
        self._conninfo = conninfo
        self._application_name = application_name
        self._interrupt = interrupt
        self._connection = self._connect()
        try:
            ((version,),) = self._connection.query("SELECT pg_catalog.version()")
        except BaseException:
            self._connection.close()
            raise
        self._needless = _LAKE in str(version)
        """True if the publisher is a node: it publishes versions of Delta tables, so that a copy
        needs a snapshot and no locks."""
        self._before: dict[Name, tuple[str, str]] = {}
        self._held: list[Name] = []
        self._since: dict[Name, float] = {}
        """The time since which another session waits for a table (monotonic)."""

    def look(self, tables: Sequence[Name]) -> dict[Name, PenstockError]:
        """Note the present state of the tables, and return errors for tables that cannot be locked.

        Nothing stays locked. So a copy that would fail costs no slot, and definitions read between
        now and ``hold`` are still valid when ``hold`` returns.
        """
        if self._needless:
            return {}
        self._before = _state(self._connection, tables)
        there = [name for name in tables if name in self._before]
        missing = {name: not_found(*name) for name in tables if name not in self._before}
        self._connection.query("BEGIN TRANSACTION READ ONLY")
        try:
            return missing | self._lock(there)
        finally:
            if self._connection.is_open:
                self._connection.query("ROLLBACK")

    def hold(
        self, snapshot_name: str, tables: Sequence[Name], now: Connection
    ) -> dict[Name, PenstockError]:
        """Lock the tables until ``close``. Return errors for tables that somebody else has locked
        or that differ from the snapshot. ``now``: a session without a snapshot, which sees
        committed changes."""
        if self._needless or not tables:
            return {}
        self._connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            self._connection.query(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot_name)}")
        except PenstockError as error:
            raise lost_snapshot(error.message) from None
        failed = self._lock(tables)
        locked = [name for name in tables if name not in failed]
        if not locked:
            return failed
        seen, current = _state(self._connection, locked), _state(now, locked)
        for name in locked:
            if not (self._before[name] == seen.get(name) == current.get(name)):
                failed[name] = _change_error(name, self._messages)
        self._held = [name for name in tables if name not in failed]
        return failed

    def let_pass(self, other: Connection) -> dict[Name, PenstockError]:
        """Release tables for which another session has waited for some seconds, and return errors
        for them. Their copies must end.

        ``other``: a session without locks, for one query, which is cheap if nobody waits. A new
        session locks the remaining tables before the old session releases its locks.
        """
        if not self._held:
            return {}
        pid = self._connection.backend_pid
        rows = other.query(_WAITED_FOR.format(pid=pid))
        now = time.monotonic()
        waited = {(str(schema), str(table)) for schema, table in rows}.intersection(self._held)
        self._since = {name: self._since.get(name, now) for name in waited}
        passing = {name for name, since in self._since.items() if now - since >= _POLITENESS_S}
        if not passing:
            return {}
        staying = [name for name in self._held if name not in passing]
        before, self._connection = self._connection, self._connect()
        with before:
            self._connection.query("BEGIN TRANSACTION READ ONLY")
            passing.update(self._lock(staying))
        self._held = [name for name in staying if name not in passing]
        return {name: _queue_error(name, self._messages) for name in passing}

    def check(self) -> None:
        """Raise ConnectionFailure if the session is gone, and the locks with it."""
        self._connection.check()

    def confirm(self) -> None:
        """Check by a query that the session is still there, which proves that the locks have been
        held up to now. Raises ConnectionFailure."""
        if not self._needless:
            self._connection.query("SELECT 1", prefix="the locks of the copy are gone: ")

    def close(self) -> None:
        """Release the locks."""
        self._connection.close()

    def __enter__(self) -> TableLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> Connection:
        return Connection.connect(
            self._conninfo, self._application_name, replication=False, interrupt=self._interrupt
        )

    def _lock(self, tables: Sequence[Name]) -> dict[Name, PenstockError]:
        """Lock all tables in one command, which waits a little. If that fails, lock them one by one
        without waiting, so that one table does not delay the others. Return errors."""
        if not tables:
            return {}
        self._connection.query(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
        if self._try(f"LOCK TABLE {', '.join(map(self._target, tables))} IN ACCESS SHARE MODE"):
            return {}
        failed: dict[Name, PenstockError] = {}
        for name in tables:
            try:
                self._lock_one(name)
            except ConnectionFailure:
                raise
            except PenstockError as error:
                failed[name] = _lock_error(name, error, self._messages)
        return failed

    def _try(self, command: str) -> bool:
        with contextlib.suppress(PublisherError, UndefinedObject):
            self._in_savepoint(command)
            return True
        return False

    def _lock_one(self, name: Name) -> None:
        try:
            self._in_savepoint(f"LOCK TABLE {self._target(name)} IN ACCESS SHARE MODE NOWAIT")
        except PublisherError as error:
            if error.sqlstate != _NO_RIGHT:
                raise
            # LOCK TABLE needs the right on the whole table. A role that may read only some columns
            # locks the table by reading them; if it may read none, the copy will raise the error.
            self._lock_by_reading(name)

    def _lock_by_reading(self, name: Name) -> None:
        rows = self._connection.query(
            "SELECT a.attname FROM pg_catalog.pg_attribute a"
            f" WHERE a.attrelid = {quote_literal(_quote_name(name))}::pg_catalog.regclass"
            " AND a.attnum > 0 AND NOT a.attisdropped"
            " AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT') LIMIT 1"
        )
        columns = ", ".join(quoted(str(column)) for (column,) in rows) or "*"
        self._in_savepoint(f"SELECT {columns} FROM {self._target(name)} LIMIT 0")

    def _in_savepoint(self, command: str) -> None:
        self._connection.query("SAVEPOINT l")
        try:
            self._connection.query(command)
        except ConnectionFailure:
            raise
        except PenstockError:
            self._connection.query("ROLLBACK TO SAVEPOINT l")
            raise
        self._connection.query("RELEASE SAVEPOINT l")

    def _target(self, name: Name) -> str:
        """Name a table for LOCK: a partitioned table with its partitions, any other without the
        tables that inherit from it."""
        kind, _ = self._before[name]
        return ("" if kind == "p" else "ONLY ") + _quote_name(name)


def _state(connection: Connection, tables: Iterable[Name]) -> dict[Name, tuple[str, str]]:
    names = ", ".join(f"({quote_literal(s)}, {quote_literal(t)})" for s, t in tables)
    rows = connection.query(_STATE.format(names=names))
    return {(str(s), str(t)): (str(kind), str(digest)) for s, t, kind, digest in rows}


def _quote_name(name: Name) -> str:
    return f"{quoted(name[0])}.{quoted(name[1])}"


def _lock_error(name: Name, error: PenstockError, messages: LockMessages) -> PenstockError:
    message = f"{messages.locked.format(table=qualified(*name))}: {error.message}"
    if error.sqlstate != _LOCK_NOT_AVAILABLE:
        return error.changed(message=message)
    return ObjectInUse(
        message,
        detail="Another session on the publisher holds an ACCESS EXCLUSIVE lock on it, or waits "
        "for one (ALTER TABLE, TRUNCATE, CLUSTER, VACUUM FULL, LOCK TABLE).",
        hint=f"{messages.later} To see who it is, on the publisher: "
        "SELECT pid, mode, granted FROM pg_locks"
        f" WHERE relation = {quote_literal(_quote_name(name))}::regclass; {PREPARED}",
        sqlstate=_LOCK_NOT_AVAILABLE,
    )


def _queue_error(name: Name, messages: LockMessages) -> PenstockError:
    return ObjectInUse(
        messages.waited_for.format(table=qualified(*name)),
        detail="A session on the publisher waits to change the table (ALTER TABLE, TRUNCATE, "
        "CLUSTER, VACUUM FULL, DROP TABLE), and who wants to read it waits behind that session.",
        hint=messages.again,
        sqlstate=_LOCK_NOT_AVAILABLE,
    )


def _change_error(name: Name, messages: LockMessages) -> PenstockError:
    return NotInPrerequisiteState(
        messages.changed.format(table=qualified(*name)),
        detail="It was rewritten, truncated, or given other columns, partitions or publications, "
        "after the snapshot had been taken.",
        hint=messages.again,
    )
