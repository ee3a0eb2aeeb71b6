"""Tables of the lake as they were when a transaction was committed (snapbuild.c).

Plugins look up a table's row of pg_class with the columns at a transaction of the log; there is no
row if the table did not exist. Tables are read only when they are looked up, and the last schema of
each is kept.

If the transaction changed the table, the table had the transaction's version. Otherwise it had the
version at which the next transaction that changes it begins, or else the newest version. A table
did not exist if its metadata (createdTime) has a later time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    LakeTable,
    LakeTransaction,
    Member,
    TwoPhaseKind,
)
from penstock.decoding import RelationData
from penstock.errors import FeatureNotSupported, VersionGone
from penstock.lakehouse.identity import EntryMark, entry_mark
from penstock.lakehouse.state import TableState, follow_to, load_at
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.every_table import EveryTable, relation_data
from penstock.walsender.lake_columns import as_then, column_type, columns_of

_PAGE: Final = 500
"""Transactions of the log read at a time."""


@dataclass(frozen=True, slots=True)
class HistoricTable:
    """A table at a version; ``state`` has no files, and is None for a partitioned parent."""

    table: LakeTable
    state: TableState | None


@dataclass(frozen=True, slots=True)
class _Span:
    """A span of the log in which a table has ``version``. It begins after the transaction that ends
    at ``since``, and ends with the transaction that ends at ``until``."""

    since: Lsn
    until: Lsn
    version: int


@dataclass(frozen=True)
class _Schema:
    uri: str
    state: TableState
    mark: EntryMark | None


class HistoricTables:
    """A look-up of tables, for one call of a slot function or one stream."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._spans: dict[int, _Span] = {}
        self._schemas: dict[int, _Schema] = {}

    def relation(self, transaction: LakeTransaction, oid: int) -> RelationData | None:
        """Return a table as it was for the transaction's changes. None if it did not exist, or
        cannot be decoded. Raises VersionGone, StorageError."""
        with self._catalog.read() as t:
            found = t.tables.find_oid(oid)
            if found is None:
                return None
            family = t.tables.family(found) if found.partition_key is not None else (found,)
            types = {type_.oid: (type_.schema, type_.name) for type_ in t.types.all()}
        thens = {then.table.oid: then for then in self.tables(transaction, family)}
        states = (thens[table.oid].state for table in family if table.oid in thens)
        state = next((state for state in states if state is not None), None)
        if state is None or oid not in thens:
            return None
        try:
            columns = columns_of(state)
            for column in columns:
                column_type(column)
        except FeatureNotSupported:
            return None
        table = thens[oid].table
        published = EveryTable().of(table, columns)
        return (
            None if published is None else relation_data(published.relation, table, columns, types)
        )

    def tables(
        self, transaction: LakeTransaction, among: Iterable[LakeTable] | None = None
    ) -> Iterator[HistoricTable]:
        """Yield the tables that existed, in the order given, or by oid. Raises as ``relation``."""
        with self._catalog.read() as t:
            known = t.tables.all() if among is None else tuple(among)
            rooted = [table.oid for table in known if table.partition_key is None]
            versions = self._versions(t, transaction, rooted)
        moved = {member.relation for member in transaction.members}
        for table in known:
            if table.partition_key is not None:
                yield HistoricTable(table, None)
                continue
            version = versions.get(table.oid, -1)
            if version >= 0:
                state = self._state_unless_dropped(table, version)
                if state is None:
                    continue
                changed = table.oid in moved
                if not changed and _made_after(state, transaction):
                    continue
                end = None if changed else transaction.end
                yield HistoricTable(as_then(table, version, state, end), state)

    def _versions(
        self, t: CatalogTransaction, transaction: LakeTransaction, oids: Iterable[int]
    ) -> dict[int, int]:
        """Return versions by table oid; -1 or no item for a table that did not exist."""
        at = transaction.end
        found = {member.relation: member.to_version for member in transaction.members}
        missing = set()
        for oid in oids:
            span = self._spans.get(oid)
            if span is not None and span.since <= at < span.until:
                found.setdefault(oid, span.version)
            elif oid not in found:
                missing.add(oid)
        spans = self._look_ahead(t, at, missing)
        self._spans.update(spans)
        return found | {oid: span.version for oid, span in spans.items()}

    def _look_ahead(self, t: CatalogTransaction, at: Lsn, missing: set[int]) -> dict[int, _Span]:
        spans: dict[int, _Span] = {}
        place = at
        while missing and (page := t.transactions.after(place, _PAGE)):
            for later in page:
                for member in _moved(later):
                    if member.relation in missing:
                        missing.discard(member.relation)
                        spans[member.relation] = _Span(at, later.end, member.from_version)
            place = page[-1].end
        if missing:
            # The next transaction is not in the log yet, and may change any of these tables.
            until, sequenced = Lsn(max(place, at) + 1), t.transactions.sequenced()
            for oid in missing & sequenced.keys():
                spans[oid] = _Span(at, until, sequenced[oid].version)
        return spans

    def _state_unless_dropped(self, table: LakeTable, version: int) -> TableState | None:
        """Return a table's state, None if it was dropped since it was looked up."""
        try:
            return self._state(table, version)
        except VersionGone:
            # DROP TABLE removes files before its commit. A write waits for it, a read does not.
            with self._catalog.write() as t:
                if t.tables.find_oid(table.oid) is None:
                    return None
            raise

    def _state(self, table: LakeTable, version: int) -> TableState:
        uri = table.uri or self._warehouse.table_uri(table.schema, table.name)
        known = self._schemas.get(table.oid)
        if known is not None and self._goes_on(known, uri, version):
            state = known.state.copy()
            follow_to(self._warehouse.storage, uri, state, version)
        else:
            state = load_at(self._warehouse.storage, uri, version)
        state.files.clear()
        self._schemas[table.oid] = _Schema(uri, state, entry_mark(uri, version))
        return state

    @staticmethod
    def _goes_on(known: _Schema, uri: str, version: int) -> bool:
        """Tell whether the log still has the known version, which is not after ``version``."""
        at = known.state.version
        return known.uri == uri and at <= version and known.mark == entry_mark(uri, at)


def _made_after(state: TableState, transaction: LakeTransaction) -> bool:
    """Tell by its metadata whether a table was created after a transaction. The log does not show
    that, since a table is followed only after it was found."""
    return int(state.metadata.get("createdTime") or 0) * 1000 > transaction.commit_time


def _moved(transaction: LakeTransaction) -> tuple[Member, ...]:
    """Return the tables that a transaction takes to another version, none for a PREPARE."""
    record = transaction.two_phase
    commits = record is None or record.kind is TwoPhaseKind.COMMIT_PREPARED
    return transaction.members if commits else ()
