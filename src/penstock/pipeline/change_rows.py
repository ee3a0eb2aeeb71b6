"""The rows that a transaction changed in one table, paired, filtered and encoded. Runs in tasks.

In: parts of files whose rows went or came, and how the table is published. Out: pgoutput messages.
DuckDB cancels rows that are equal in all columns (they were copied, not changed), pairs the others
by key, and applies row filters: an update whose old row does not match its filter is an insert, one
whose new row does not is a delete (pgoutput.c, pgoutput_row_filter).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage
from penstock.pgoutput.columnar_encoder import (
    EncodedColumn,
    XLogDataHeader,
    delete_messages,
    insert_messages,
    update_messages,
)
from penstock.pgoutput.messages import OldTuple
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.duck import connection
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.relation import Relation, ReplicaIdentity
from penstock.wire_rows import data_of

_ROWS_AT_A_TIME: Final = 1 << 14
_SHOWN_KEYS: Final = 10
_OLD: Final = "old row: "
"""In front of the names of an old row's columns."""
_MATCHES: Final = '"penstock: row matches"'
"""Whether a row matches the row filter for updates."""
_OLD_MATCHES: Final = f"o.{_MATCHES}"
_NEW_MATCHES: Final = f"n.{_MATCHES}"


class Operation(IntEnum):
    """In the order in which a table's changes are sent."""

    DELETE = 0
    UPDATE = 1
    INSERT = 2


@dataclass(frozen=True)
class PublishedTable:
    """How a table is published.

    ``relation``: as the subscriber sees it, columns in the order of the tuples. ``columns``: every
    column of the table. ``key``: what old and new rows are paired by, () for nothing.
    ``identity``: the replica identity's columns; None: there is none. ``filters``: DuckDB's SQL by
    operation, None or missing: all rows. ``published``: operations that are published.
    """

    relation: Relation
    name: str
    columns: tuple[ScanColumn, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...] | None
    filters: Mapping[Operation, str | None]
    published: frozenset[Operation]


@dataclass(frozen=True)
class ChangeItem:
    """A share of one table's changes: of ``shares``, by the hash of the key, this is ``share``.

    ``work``: number of the table in the transaction. ``xid``: of a streamed transaction.
    """

    work: int
    table: PublishedTable
    table_uri: str
    removed: tuple[ScanFile, ...]
    added: tuple[ScanFile, ...]
    header: XLogDataHeader
    binary: bool = False
    xid: int | None = None
    share: int = 0
    shares: int = 1

    @property
    def cost(self) -> float:
        """An estimate, to be compared with that of others."""
        size = sum(file.size for file in (*self.removed, *self.added))
        return 1.0 + size / self.shares


def encoded_changes(storage: Storage, item: ChangeItem) -> Iterator[tuple[Operation, int, bytes]]:
    """(operation, changes, messages) in order. Raises PenstockError (55000), VersionGone."""
    duck = connection()
    table = item.table
    if not item.removed:
        if Operation.INSERT in table.published:
            yield from _appended(storage, item, duck)
        return
    _load(storage, item, duck)
    try:
        yield from _changed(item, duck)
    finally:
        duck.execute("DROP TABLE IF EXISTS went; DROP TABLE IF EXISTS came")


def _appended(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Operation, int, bytes]]:
    """Only new rows: nothing to pair, a batch at a time."""
    predicate = item.table.filters.get(Operation.INSERT)
    for file in item.added:
        for batch in scan(storage, item.table_uri, file, item.table.columns):
            rows = pa.Table.from_batches([batch])
            if predicate is not None:
                duck.register("came_batch", rows)
                rows = duck.sql(f"SELECT * FROM came_batch WHERE {predicate}").to_arrow_table()
                duck.unregister("came_batch")
            yield from _encode(item, Operation.INSERT, rows)


def _load(storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> None:
    """Tables ``went`` and ``came``: this share's rows, without those that are equal."""
    table = item.table
    names = [column.name for column in table.columns]
    mine = ""
    if item.shares > 1:
        by = ", ".join(_quoted(name) for name in table.key or names)
        mine = f" WHERE hash({by}) % {item.shares} = {item.share}"
    for name, files in (("all_went", item.removed), ("all_came", item.added)):
        schema = pa.schema([(column.name, column.type) for column in table.columns])
        batches = (
            batch for file in files for batch in scan(storage, item.table_uri, file, table.columns)
        )
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        duck.register("scanned", reader)
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM scanned{mine}")
        duck.unregister("scanned")
    predicate = table.filters.get(Operation.UPDATE)
    matches = f"coalesce(({predicate}), false)" if predicate is not None else "true"
    for name, of, other in (("went", "all_went", "all_came"), ("came", "all_came", "all_went")):
        duck.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT *, {matches} AS {_MATCHES} "
            f"FROM (FROM {of} EXCEPT ALL FROM {other})"
        )
    duck.execute("DROP TABLE all_went; DROP TABLE all_came")


def _changed(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Operation, int, bytes]]:
    table = item.table
    if table.key:
        _check_unique(item, duck, "went")
        _check_unique(item, duck, "came")
        same = " AND ".join(f"o.{_quoted(k)} = n.{_quoted(k)}" for k in table.key)
        unpaired = f"NOT EXISTS (SELECT 1 FROM {{}} WHERE {same})"
        gone = f"SELECT o.* FROM went o WHERE {unpaired.format('came n')}"
        new = f"SELECT n.* FROM came n WHERE {unpaired.format('went o')}"
        pairs = f"FROM went o JOIN came n ON {same}"
    else:
        gone, new, pairs = "SELECT * FROM went", "SELECT * FROM came", None
    _check_identity(item, duck, gone, pairs)
    yield from _deletes(item, duck, gone, pairs)
    if pairs is not None:
        yield from _updates(item, duck, pairs)
    yield from _inserts(item, duck, new, pairs)


def _deletes(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, gone: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = item.table
    if Operation.DELETE in table.published:
        yield from _run(item, duck, Operation.DELETE, _where(gone, table, Operation.DELETE))
    if pairs is not None and _filtered(table):
        query = f"SELECT o.* {pairs} WHERE {_OLD_MATCHES} AND NOT {_NEW_MATCHES}"
        yield from _run(item, duck, Operation.DELETE, query)


def _updates(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, pairs: str
) -> Iterator[tuple[Operation, int, bytes]]:
    table = item.table
    if Operation.UPDATE not in table.published:
        return
    where = ""
    if _filtered(table):
        where = f" WHERE {_OLD_MATCHES} AND {_NEW_MATCHES}"
    old_columns = ""
    if table.relation.replica_identity is ReplicaIdentity.FULL:
        old_columns = "".join(
            f", o.{_quoted(a.name)} AS {_quoted(_OLD + a.name)}" for a in table.relation.attributes
        )
    yield from _run(item, duck, Operation.UPDATE, f"SELECT n.*{old_columns} {pairs}{where}")


def _inserts(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, new: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = item.table
    if pairs is not None and _filtered(table):
        query = f"SELECT n.* {pairs} WHERE NOT {_OLD_MATCHES} AND {_NEW_MATCHES}"
        yield from _run(item, duck, Operation.INSERT, query)
    if Operation.INSERT in table.published:
        yield from _run(item, duck, Operation.INSERT, _where(new, table, Operation.INSERT))


def _filtered(table: PublishedTable) -> bool:
    has_filter = table.filters.get(Operation.UPDATE) is not None
    return has_filter and Operation.UPDATE in table.published


def _where(query: str, table: PublishedTable, operation: Operation) -> str:
    predicate = table.filters.get(operation)
    return query if predicate is None else f"SELECT * FROM ({query}) WHERE {predicate}"


def _check_unique(item: ChangeItem, duck: duckdb.DuckDBPyConnection, rows: str) -> None:
    key = ", ".join(_quoted(name) for name in item.table.key)
    twice = duck.execute(
        f"SELECT {key} FROM {rows} GROUP BY ALL HAVING count(*) > 1 LIMIT {_SHOWN_KEYS}"
    ).fetchall()
    if twice:
        names = ", ".join(item.table.key)
        keys = ", ".join(str(k[0] if len(k) == 1 else k) for k in twice)
        raise PenstockError(
            f'key of table "{item.table.name}" is not unique',
            detail=f"There are several rows with the same ({names}): {keys}.",
            hint="Remove the duplicates, or choose another key: ALTER TABLE ... REPLICA IDENTITY "
            "USING KEY (...), or FULL; then drop the slot and copy the table again.",
            sqlstate="23505",
        )


def _check_identity(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, gone: str, pairs: str | None
) -> None:
    table = item.table
    if table.identity is not None:
        return
    has = {
        Operation.UPDATE: pairs is not None and f"SELECT 1 {pairs}",
        Operation.DELETE: gone,
    }
    for operation, query in has.items():
        if not query or operation not in table.published:
            continue
        if duck.execute(f"SELECT 1 FROM ({query}) LIMIT 1").fetchall():
            verb, plural = (
                ("update", "updates")
                if operation == Operation.UPDATE
                else ("delete from", "deletes")
            )
            raise PenstockError(
                f'cannot {verb} table "{table.name}" because it does not have a replica identity '
                f"and publishes {plural}",
                hint=f"To enable {verb.replace(' from', '')[:-1]}ing the table, set REPLICA "
                "IDENTITY using ALTER TABLE.",
                sqlstate="55000",
            )


def _run(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, operation: Operation, query: str
) -> Iterator[tuple[Operation, int, bytes]]:
    for batch in duck.sql(query).to_arrow_reader(_ROWS_AT_A_TIME):
        yield from _encode(item, operation, pa.Table.from_batches([batch]))


def _encode(
    item: ChangeItem, operation: Operation, rows: pa.Table
) -> Iterator[tuple[Operation, int, bytes]]:
    count = rows.num_rows
    if not count:
        return
    relation, table = item.table.relation, item.table
    full = relation.replica_identity is ReplicaIdentity.FULL
    kind = OldTuple.ROW if full else OldTuple.KEY
    if operation is Operation.INSERT:
        messages = insert_messages(relation.oid, _tuple(item, rows), count, item.header, item.xid)
    elif operation is Operation.UPDATE:
        old = _tuple(item, rows, _OLD) if full else None
        messages = update_messages(
            relation.oid, _tuple(item, rows), count, item.header, old=old, kind=kind, xid=item.xid
        )
    else:
        identity = None if full else frozenset(table.identity or ())
        old = _tuple(item, rows, only=identity)
        messages = delete_messages(relation.oid, old, kind, count, item.header, item.xid)
    yield operation, count, data_of(messages)


def _tuple(
    item: ChangeItem, rows: pa.Table, prefix: str = "", only: frozenset[str] | None = None
) -> Sequence[EncodedColumn]:
    columns = []
    for attribute in item.table.relation.attributes:
        array = rows.column(prefix + attribute.name).combine_chunks()
        if only is not None and attribute.name not in only:
            columns.append(EncodedColumn(pa.nulls(len(array), pa.binary())))
        elif item.binary and has_binary_output(attribute.type_oid, array.type):
            cells = binary_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells, binary=True))
        else:
            cells = text_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells))
    return columns


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
