"""The tables that the node follows: find new tables, remove dropped and replaced ones.

``Following`` compares the warehouse's folders with the catalog, and knows the last version of each
table in the log. If another Delta log has replaced a table's, the table is dropped as by DROP
TABLE, and the new log is another relation. Lost commits, which cannot be sent, get a position in
the log of transactions: a stream that needs them fails there, and no stream skips them unnoticed. A
table that cannot be read stays followed, since a missing table is not a DROP TABLE.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    LakeTable,
    Member,
    Sequenced,
    Subscription,
)
from penstock.errors import StorageError
from penstock.lakehouse.describe import describe, table_names
from penstock.lakehouse.identity import entry_mark
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commit_order import CommitTimes, now
from penstock.walsender.cut_commits import CutCommits, owners
from penstock.walsender.own_commits import Owners
from penstock.walsender.table_logs import TableLogs
from penstock.walsender.troubles import Troubles

log = logging.getLogger(__name__)

CUTS_NAME = "the cuts of subscriptions"


@dataclass(frozen=True, slots=True)
class FollowedTables:
    """The followed tables, and the version up to which each is followed. ``tables`` are those with
    rows of their own. ``made`` are oids of tables that uncommitted blocks create."""

    tables: tuple[LakeTable, ...]
    at: Mapping[int, Sequenced]
    subscriptions: tuple[Subscription, ...]
    owners: Owners
    made: frozenset[int] = frozenset()

    def own(self) -> Iterable[LakeTable]:
        """Return the tables of which every commit is a transaction."""
        return (t for t in self.tables if (t.schema, t.name) not in self.owners)


class Following:
    """The follower of tables, which drops replaced ones. For one thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        cuts: CutCommits,
        times: CommitTimes,
        troubles: Troubles,
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._cuts = cuts
        self._times = times
        self._troubles = troubles
        self.logs = TableLogs(warehouse.storage)
        self.has_changed = False
        """True if a table was dropped, so that its successor must be looked for."""
        self._known: _Known | None = None

    def check_logs(self) -> None:
        """Look for Delta logs that no longer have their next entry, or were replaced by other logs.

        Their tables are followed from now on. Commits in between cannot be sent any more; the log
        of transactions records that, and streams that need them fail there.
        """
        self.read_again()
        followed = self.followed()
        for table in followed.tables:
            with self._troubles.kept("log", table.qualified_name):
                self._check_log(table, followed.at[table.oid])

    def _check_log(self, table: LakeTable, at: Sequenced) -> None:
        newest = self.logs.newest(table)
        if not self.logs.same(table, at):
            self._replace(table, at)
        elif newest > at.version and not self.logs.has_entry(table, at.version + 1):
            self.gap(table, at, newest)
        elif at.table_id is None:
            found = self.logs.id_at(table, at.version)
            with self._catalog.write() as t:
                if _still(t, table, at):
                    t.transactions.advance(table.oid, at.version, found)

    def _replace(self, table: LakeTable, at: Sequenced) -> None:
        """Drop a table whose log was replaced by another, or record that its log went back."""
        newest = self.logs.newest(table)
        if newest < at.version and self.logs.id_at(table, newest) == at.table_id:
            self.gap(table, at, newest)
            return
        # The followed table is gone; if another has replaced it, ``discover`` finds that.
        log.error(
            'the Delta table of "%s" was removed and another one made at "%s": the table is '
            "dropped, and the new one is another relation",
            table.qualified_name,
            table.uri,
        )
        with self._catalog.write() as t:
            if t.tables.find_oid(table.oid) is not None:
                # Mark the place before deleting the table: afterwards no publication has it.
                self._append_lost(t, table, at, at)
                t.delete_table(table)
        self.logs.forget(table.oid)
        self.has_changed = True

    def gap(self, table: LakeTable, at: Sequenced, newest: int) -> None:
        """Record that the commits between two versions are lost. Their Delta log entries are gone,
        and the log of transactions does not have them yet."""
        log.error(
            'table "%s" was at version %d and its log goes on at %d: changes are missing',
            table.qualified_name,
            at.version,
            newest,
        )
        found = self.logs.id_at(table, newest)
        with self._catalog.write() as t:
            if _still(t, table, at):
                self._append_lost(t, table, at, Sequenced(newest, found))
                t.transactions.advance(table.oid, newest, found)
        self.logs.forget(table.oid)

    def _append_lost(
        self, t: CatalogTransaction, table: LakeTable, at: Sequenced, then: Sequenced
    ) -> None:
        """Give lost commits a position in the node's log, so no stream skips them unnoticed."""
        members = t.members()
        held = tuple(p.oid for p in members.publications if members.contains(p, table))
        # Even if no publication has the table, slots of output plugins see it.
        member = Member(
            table.oid, table.uri or "", at.version, then.version, then.table_id, lost_to=held
        )
        t.transactions.append([member], commit_time=self._times.next(t, now()), size=0)

    def discover(self) -> None:
        """Find tables that are not followed yet, and follow each from now on."""
        with self._catalog.read() as t:
            known = {(table.schema, table.name): table for table in t.tables.all()}
            moved = {table.folder_of for table in known.values()}
        self._cuts.look_again()
        self.read_again()
        followed = self.followed()
        for table in followed.tables:
            if self.logs.seen(table):
                with self._troubles.kept("log", table.qualified_name):
                    if not self.logs.same(table, followed.at[table.oid]):
                        self._replace(table, followed.at[table.oid])
                        known.pop((table.schema, table.name), None)
        there = {CUTS_NAME, *(table.qualified_name for table in known.values())}
        for schema, name in table_names(self._warehouse):
            there.add(f"{schema}.{name}")
            known_as = known.get((schema, name))
            if known_as is not None and (known_as.uri is None or known_as.oid in followed.at):
                continue  # a partitioned table has no rows of its own
            if known_as is None and (schema, name) in moved:
                continue  # the table has another name now
            with self._troubles.kept("discovery", f"{schema}.{name}"):
                uri = self._warehouse.table_uri(schema, name) if known_as is None else known_as.uri
                self._follow(schema, name, uri or "", followed)
        self._troubles.forget(there)

    def _follow(self, schema: str, name: str, uri: str, followed: FollowedTables) -> None:
        found = describe(self._warehouse, uri)
        if found is None:
            return
        mark = entry_mark(uri, found.version)
        if mark is not None and mark.size == 0:
            raise StorageError(f'log entry {found.version} of table "{uri}" is empty, yet')
        version = found.version
        owner = followed.owners.get((schema, name))
        if owner is not None:  # follow the table from the last cut that has it
            self._cuts.refresh(followed.subscriptions)
            version = min(version, self._cuts.version(owner, uri, version))
        with self._catalog.write() as t:
            table = t.tables.find(schema, name)
            if table is None and (
                t.tables.in_folder_of(schema, name) is not None
                or t.block_commits.makes(schema, name)  # COMMIT decides from when on it exists
            ):
                return
            if table is None:
                table = t.tables.register(schema, name, uri, found.key)
                log.info('table "%s.%s" found in the warehouse', schema, name)
            if table.uri == uri and table.oid not in t.transactions.versions():
                t.transactions.advance(table.oid, version, found.id)

    def followed(self) -> FollowedTables:
        """Return the tables that are followed now."""
        with self._catalog.read() as t:
            generation, end = t.generation(), t.transactions.end()
            known = self._known
            if known is None or (known.generation, known.end) != (generation, end):
                known = self._known = _Known(generation, end, _followed(t))
        return known.followed

    @property
    def end(self) -> Lsn:
        """The end of the log, as far as it is known without asking the catalog."""
        return Lsn(0) if self._known is None else self._known.end

    @property
    def last(self) -> FollowedTables | None:
        """The last result of ``followed``, updated by ``moved``; None if it is out of date."""
        return None if self._known is None else self._known.followed

    def last_at(self, generation: int, end: Lsn) -> FollowedTables | None:
        """Return the result of ``followed`` at a state of the catalog, None if not known. Any
        thread may call this."""
        known = self._known
        if known is None or (known.generation, known.end) != (generation, end):
            return None
        return known.followed

    def moved(self, at: Mapping[int, Sequenced], before: Lsn, end: Lsn) -> None:
        """Note that the log went from ``before`` to ``end``, which brought these tables to ``at``.
        They are read again only if others have written to the log, too."""
        known = self._known
        if known is None or known.end != before:
            self._known = None
        else:
            followed = replace(known.followed, at={**known.followed.at, **at})
            self._known = _Known(known.generation, end, followed)

    def read_again(self) -> None:
        """Forget what is known, since tables have moved on without ``moved``."""
        self._known = None

    def goes_on(self, table: LakeTable, at: Sequenced, upto: int) -> bool:
        """Tell whether the entries read belong to the followed table; if not, replace the table."""
        with self._troubles.kept("log", table.qualified_name):
            if self.logs.goes_on(table, at, upto):
                return True
            self._replace(table, at)
        return False


@dataclass(frozen=True, slots=True)
class _Known:
    """The followed tables at a state of the catalog."""

    generation: int
    end: Lsn
    followed: FollowedTables


def _followed(t: CatalogTransaction) -> FollowedTables:
    at = t.transactions.sequenced()
    known = t.tables.all()
    tables = tuple(table for table in known if table.uri and table.oid in at)
    subscriptions = t.subscriptions.all()
    maintained = owners(subscriptions, t.relations.all(), known)
    made = frozenset(table.row.oid for table in t.block_commits.made())
    return FollowedTables(tables, at, subscriptions, maintained, made)


def _still(t: CatalogTransaction, table: LakeTable, at: Sequenced) -> bool:
    """Tell whether the table exists and no other process has moved it on from ``at``."""
    there = t.tables.find_oid(table.oid) is not None
    return there and t.transactions.sequenced().get(table.oid) == at
