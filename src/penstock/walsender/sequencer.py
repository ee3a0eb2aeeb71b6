"""One total order of the lake's commits, with positions that stay: the node's WAL.

In: the logs of the warehouse's tables, and the cuts of this node's subscriptions. Out: transactions
in the catalog, each durable before anybody hears of it, and a wake-up for those who send them.

A commit of a table is one transaction. Tables that a subscription maintains move from cut to cut:
what lies between two cuts is one transaction over all of them, with the subscription as its origin.
A table is followed from the version at which it is first seen; a snapshot at a position is the
version of each table up to which its commits are in the log.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Member, Subscription
from penstock.errors import PenstockError
from penstock.failpoint import AFTER_SEQUENCE, BEFORE_SEQUENCE, failpoint
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.describe import describe, table_names
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.publication.members import Members
from penstock.walsender.commits import TableCommit, commits_behind, newest_version

log = logging.getLogger(__name__)

_DISCOVERY_INTERVAL_S: Final = 5.0
_UPKEEP_INTERVAL_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Position:
    """A consistent point: every transaction up to ``lsn`` is in ``versions``, and no other.

    ``versions``: by table oid.
    """

    lsn: Lsn
    versions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _Found:
    """A transaction that is not in the log yet."""

    members: tuple[Member, ...]
    time: int
    size: int
    changes: bool = True
    origin: str | None = None
    origin_lsn: Lsn | None = None


class Sequencer:
    """The only writer of the log. ``step`` may be called by any thread."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._grown = threading.Condition()
        self._end = Lsn(0)
        self._discovered = -_DISCOVERY_INTERVAL_S
        self._cuts_version: int | None = None
        self._cuts: dict[int, Cut] = {}

    def step(self, *, discover: bool = False) -> None:
        """Put every commit that there is into the log. ``discover``: look for new tables, too.

        Raises what the catalog and the warehouse raise.
        """
        with self._lock:
            if discover or time.monotonic() - self._discovered >= _DISCOVERY_INTERVAL_S:
                self._discover()
                self._discovered = time.monotonic()
            found = self._find()
            if found:
                failpoint(BEFORE_SEQUENCE)
                self._append(found)
                failpoint(AFTER_SEQUENCE)
        with self._catalog.read() as t:
            end = t.transactions.end()
        with self._grown:
            if end > self._end:
                self._end = end
                self._grown.notify_all()

    def position(self, *, discover: bool = False) -> Position:
        """The end of the log, after a step: now."""
        self.step(discover=discover)
        with self._catalog.read() as t:
            return Position(t.transactions.end(), t.transactions.versions())

    def wait(self, beyond: Lsn, timeout_s: float, stopping: threading.Event | None = None) -> bool:
        """Wait until the log reaches behind ``beyond``; whether it does. ``stopping``: set before
        ``wake``, it ends the wait."""

        def over() -> bool:
            return self._end > beyond or (stopping is not None and stopping.is_set())

        with self._grown:
            self._grown.wait_for(over, timeout_s)
            return self._end > beyond

    def prune(self, needed_from: Lsn | None) -> None:
        """Forget transactions that no slot needs; ``needed_from`` None: there are no slots."""
        with self._catalog.read() as t:
            end, oldest = t.transactions.end(), t.transactions.oldest()
        before = end if needed_from is None else needed_from
        if before > oldest:
            with self._catalog.write() as t:
                t.transactions.prune(before)

    def lost(self) -> list[str]:
        """Published tables whose log no longer has the entry that comes next, or is another log.

        They are followed from now, as others are of which this is true. What was committed in
        between can be sent to nobody: every slot is lost with it.
        """
        with self._lock, self._catalog.read() as t:
            tables, versions = t.tables.all(), t.transactions.versions()
            members = Members(
                t.publications.all(),
                t.publications.relations(),
                t.publications.namespaces(),
                tables,
            )
        found = []
        for table in tables:
            version = versions.get(table.oid)
            if table.uri is None or version is None:
                continue
            newest = newest_version(self._warehouse.storage, table.uri)
            if newest is None or newest == version:
                continue
            if newest > version and any(
                True for _ in commits_behind(self._warehouse.storage, table.uri, version)
            ):
                continue
            log.error(
                'table "%s" was at version %d and its log goes on at %d: changes are missing',
                table.qualified_name,
                version,
                newest,
            )
            with self._lock, self._catalog.write() as t:
                t.transactions.advance(table.oid, newest)
            if any(members.contains(p, table) for p in members.publications):
                found.append(table.qualified_name)
        return found

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._grown:
            self._grown.notify_all()

    def _discover(self) -> None:
        """Follow the tables that are not followed yet, each from now on."""
        with self._catalog.read() as t:
            known = {(table.schema, table.name): table for table in t.tables.all()}
            followed = t.transactions.versions()
        for schema, name in table_names(self._warehouse):
            table = known.get((schema, name))
            if table is not None and (table.uri is None or table.oid in followed):
                continue  # a partitioned table has no rows of its own
            uri = self._warehouse.table_uri(schema, name) if table is None else table.uri
            found = describe(self._warehouse, uri or "")
            if found is None:
                continue
            with self._catalog.write() as t:
                table = t.tables.find(schema, name)
                if table is None:
                    table = t.tables.register(schema, name, uri or "", found.key)
                    log.info('table "%s.%s" found in the warehouse', schema, name)
                t.transactions.advance(table.oid, self._baseline(schema, name, found.version))

    def _baseline(self, schema: str, name: str, newest: int) -> int:
        """Where a table is followed from: the last cut that it is in, or now."""
        self._read_cuts()
        for cut in self._cuts.values():
            member = cut.tables.get((schema, name))
            if member is not None:
                return member.version
        return newest

    def _find(self) -> list[_Found]:
        with self._catalog.read() as t:
            tables = t.tables.all()
            versions = t.transactions.versions()
            subscriptions = t.subscriptions.all()
            names = {s.oid: s.name for s in subscriptions}
            rels = {(rel.schema, rel.table): names.get(rel.subid) for rel in t.relations.all()}
        own = [
            self._commits(table, versions[table.oid])
            for table in tables
            if table.uri and table.oid in versions and (table.schema, table.name) not in rels
        ]
        found = list(heapq.merge(*own, key=lambda commit: commit.time))
        if subscriptions:
            self._read_cuts()
            found += self._between_cuts(subscriptions, tables, versions)
        return found

    def _commits(self, table: LakeTable, version: int) -> Iterator[_Found]:
        assert table.uri is not None
        latest = 0
        for commit in commits_behind(self._warehouse.storage, table.uri, version):
            # A clock may go back; commits of a table do not change places.
            latest = max(latest, commit.time)
            yield _of_commit(table, commit, latest)

    def _between_cuts(
        self,
        subscriptions: Sequence[Subscription],
        tables: Sequence[LakeTable],
        versions: Mapping[int, int],
    ) -> Iterator[_Found]:
        by_name = {(table.schema, table.name): table for table in tables}
        for subscription in subscriptions:
            cut = self._cuts.get(subscription.oid)
            if cut is None:
                continue
            members = tuple(
                Member(table.oid, at.uri, versions[table.oid], at.version)
                for name, at in cut.tables.items()
                if (table := by_name.get(name)) is not None
                and versions.get(table.oid, at.version) < at.version
            )
            if members:
                moment = cut.commit_time or cut.cut_time
                size = sum(commit.size for member in members for commit in self._range(member))
                yield _Found(
                    members,
                    round(moment.timestamp() * 1e6),
                    size,
                    origin=f"pg_{subscription.oid}",
                    origin_lsn=cut.lsn,
                )

    def _range(self, member: Member) -> Iterator[TableCommit]:
        storage = self._warehouse.storage
        for commit in commits_behind(storage, member.uri, member.from_version):
            if commit.version > member.to_version:
                return
            yield commit

    def _read_cuts(self) -> None:
        """The last cut of each subscription, read again when the cuts table has a new version."""
        cuts = self._warehouse.cuts
        version = newest_version(self._warehouse.storage, cuts.uri)
        if version is None or version == self._cuts_version:
            return
        for subscription in self._catalog.subscriptions():
            cut = cuts.last(CutOwner(subscription.name, subscription.app_id))
            if cut is not None:
                self._cuts[subscription.oid] = cut
        self._cuts_version = version

    def _append(self, found: Sequence[_Found]) -> None:
        with self._catalog.write() as t:
            for transaction in found:
                _append(t, transaction)


def _of_commit(table: LakeTable, commit: TableCommit, moment: int) -> _Found:
    member = Member(table.oid, table.uri or "", commit.version - 1, commit.version)
    return _Found((member,), moment, commit.size, commit.changes)


def _append(t: CatalogTransaction, found: _Found) -> None:
    if not found.changes:
        for member in found.members:
            t.transactions.advance(member.relation, member.to_version)
        return
    t.transactions.append(
        found.members,
        commit_time=found.time,
        size=found.size,
        origin=found.origin,
        origin_lsn=found.origin_lsn,
    )


class SequencerThread:
    """Steps again and again; an error is logged once and tried again. ``upkeep``: now and then."""

    def __init__(
        self, sequencer: Sequencer, interval_s: float, upkeep: Callable[[], None] = lambda: None
    ) -> None:
        self._sequencer = sequencer
        self._interval_s = interval_s
        self._upkeep = upkeep
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sequencer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._sequencer.wake()
        self._thread.join()

    def _run(self) -> None:
        last, kept_up = "", 0.0
        while not self._stopping.wait(self._interval_s):
            try:
                self._sequencer.step()
                if time.monotonic() - kept_up >= _UPKEEP_INTERVAL_S:
                    self._upkeep()
                    kept_up = time.monotonic()
                last = ""
            except Exception as error:
                text = error.report() if isinstance(error, PenstockError) else repr(error)
                if text != last:
                    log.warning("could not look for commits: %s", text)
                last = text
