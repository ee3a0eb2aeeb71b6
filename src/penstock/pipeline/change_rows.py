"""The rows that a transaction changed in one table, paired, filtered and encoded. Runs in tasks.

In: parts of files whose rows went or came, and how the table is published. Out: pgoutput messages.
DuckDB pairs old and new rows (``change_pairs``) and applies row filters; what an update becomes is
the table of ``publication.row_filter``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from penstock.identifiers import quoted
from penstock.lakehouse.batches import slices
from penstock.lakehouse.storage import Storage
from penstock.pgoutput.columnar_encoder import (
    EncodedColumn,
    delete_messages,
    insert_messages,
    update_messages,
)
from penstock.pgoutput.messages import OldTuple
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.change_columns import row_stream
from penstock.pipeline.change_item import ChangeItem, PublishedTable
from penstock.pipeline.change_load import (
    MATCHES,
    check_identity,
    check_not_null,
    load,
    read_rows,
)
from penstock.pipeline.change_pairs import Pairing
from penstock.pipeline.duck import connection, read_from
from penstock.publication.members import Operation
from penstock.publication.row_filter import published_as
from penstock.relation import ReplicaIdentity
from penstock.wire_rows import data_of

_ROWS_AT_A_TIME: Final = 1 << 14
_MESSAGES_BYTES: Final = 8 << 20
"""Arrow bytes of rows that are encoded at a time; a single row may have more."""
_OLD: Final = "old row: "
"""In front of the names of an old row's columns."""


def encoded_changes(
    storage: Storage, item: ChangeItem, share_bytes: int
) -> Iterator[tuple[Operation, int, bytes]]:
    """(operation, changes, messages) in order; with ``as_rows`` streams of ``change_columns``.

    Raises PenstockError (55000), VersionGone, and TooManyChanges before anything else where the
    rows to be paired are more than ``share_bytes``.
    """
    duck = connection()
    table = item.table
    if not item.removed and not item.divided:
        if Operation.INSERT in table.published:
            yield from _appended(storage, item, duck)
        return
    try:
        loaded = load(storage, item, duck, share_bytes)
        step = max(1, min(_ROWS_AT_A_TIME, _MESSAGES_BYTES // max(1, loaded.row_bytes)))
        yield from _changed(_Loaded(item, duck, step, loaded.pairing))
    finally:
        for name in ("went", "came", "all_went", "all_came", "pairs", "moved"):
            duck.execute(f"DROP TABLE IF EXISTS {name}")


@dataclass(frozen=True)
class _Loaded:
    """Tables ``went`` and ``came`` of an item; ``step``: rows that are encoded at a time."""

    item: ChangeItem
    duck: duckdb.DuckDBPyConnection
    step: int
    pairing: Pairing


def _appended(
    storage: Storage, item: ChangeItem, duck: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Operation, int, bytes]]:
    """Only new rows: nothing to pair, a batch at a time."""
    predicate = item.table.filters.get(Operation.INSERT)
    for file in item.added:
        for batch in read_rows(storage, item, file, item.table.columns):
            rows = pa.Table.from_batches([batch])
            if predicate is not None:
                duck.register("came_batch", rows)
                rows = duck.sql(f"SELECT * FROM came_batch WHERE {predicate}").to_arrow_table()
                duck.unregister("came_batch")
            yield from _encode(item, Operation.INSERT, rows)


def _changed(loaded: _Loaded) -> Iterator[tuple[Operation, int, bytes]]:
    item, duck = loaded.item, loaded.duck
    same = loaded.pairing.same
    if same is not None:
        gone = f"SELECT o.* FROM went o ANTI JOIN came n ON {same}"
        new = f"SELECT n.* FROM came n ANTI JOIN went o ON {same}"
        pairs = f"FROM went o JOIN came n ON {same}"
    else:
        gone, new, pairs = "SELECT * FROM went", "SELECT * FROM came", None
    check_identity(item, duck, gone, pairs)
    yield from _deletes(loaded, gone, pairs)
    if pairs is not None:
        yield from _updates(loaded, pairs)
    yield from _inserts(loaded, new, pairs)


def _deletes(
    loaded: _Loaded, gone: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = loaded.item.table
    if Operation.DELETE in table.published:
        yield from _run(loaded, Operation.DELETE, _where(gone, table, Operation.DELETE))
    if pairs is not None and _filtered(table):
        query = f"SELECT o.* {pairs} WHERE {_updates_as(Operation.DELETE)}"
        yield from _run(loaded, Operation.DELETE, query)


def _updates(loaded: _Loaded, pairs: str) -> Iterator[tuple[Operation, int, bytes]]:
    """With the old row where the identity is FULL, else with the old key where it differs."""
    table, moved = loaded.item.table, loaded.pairing.moved
    if Operation.UPDATE not in table.published:
        return
    where = _updates_as(Operation.UPDATE) if _filtered(table) else "true"
    if table.relation.replica_identity is ReplicaIdentity.FULL:
        old = _old_columns(a.name for a in table.relation.attributes)
        yield from _run(loaded, Operation.UPDATE, f"SELECT n.*{old} {pairs} WHERE {where}")
        return
    stays = "true" if moved is None else f"NOT ({moved})"
    yield from _run(loaded, Operation.UPDATE, f"SELECT n.* {pairs} WHERE {where} AND {stays}")
    if moved is not None:
        old = _old_columns(table.identity or ())
        query = f"SELECT n.*{old} {pairs} WHERE {where} AND {moved}"
        yield from _run(loaded, Operation.UPDATE, query)


def _old_columns(names: Iterable[str]) -> str:
    return "".join(f", o.{quoted(name)} AS {quoted(_OLD + name)}" for name in names)


def _inserts(
    loaded: _Loaded, new: str, pairs: str | None
) -> Iterator[tuple[Operation, int, bytes]]:
    table = loaded.item.table
    if pairs is not None and _filtered(table):
        query = f"SELECT n.* {pairs} WHERE {_updates_as(Operation.INSERT)}"
        yield from _run(loaded, Operation.INSERT, query)
    if Operation.INSERT in table.published:
        yield from _run(loaded, Operation.INSERT, _where(new, table, Operation.INSERT))


def _filtered(table: PublishedTable) -> bool:
    has_filter = table.filters.get(Operation.UPDATE) is not None
    return has_filter and Operation.UPDATE in table.published


def _updates_as(operation: Operation) -> str:
    return published_as(operation, f"o.{MATCHES}", f"n.{MATCHES}")


def _where(query: str, table: PublishedTable, operation: Operation) -> str:
    predicate = table.filters.get(operation)
    return query if predicate is None else f"SELECT * FROM ({query}) WHERE {predicate}"


def _run(
    loaded: _Loaded, operation: Operation, query: str
) -> Iterator[tuple[Operation, int, bytes]]:
    for batch in read_from(loaded.duck, query, loaded.step):
        yield from _encode(loaded.item, operation, pa.Table.from_batches([batch]))


def _encode(
    item: ChangeItem, operation: Operation, rows: pa.Table
) -> Iterator[tuple[Operation, int, bytes]]:
    check_not_null(item.table, rows)
    for batch in rows.combine_chunks().to_batches():
        for part in slices(batch, _MESSAGES_BYTES):
            yield _encoded(item, operation, pa.Table.from_batches([part]))


def _encoded(
    item: ChangeItem, operation: Operation, rows: pa.Table
) -> tuple[Operation, int, bytes]:
    relation, table, count = item.table.relation, item.table, rows.num_rows
    full = relation.replica_identity is ReplicaIdentity.FULL
    kind = OldTuple.ROW if full else OldTuple.KEY
    identity = None if full else frozenset(table.identity or ())
    told = any(name.startswith(_OLD) for name in rows.column_names)
    if item.as_rows:
        deleted = operation is Operation.DELETE
        prefix = "" if deleted else _OLD if told else None
        stream = row_stream(relation, rows, new=not deleted, old_prefix=prefix, identity=identity)
        return operation, count, stream
    if operation is Operation.INSERT:
        messages = insert_messages(relation.oid, _tuple(item, rows), count, item.header, item.xid)
    elif operation is Operation.UPDATE:
        old = _tuple(item, rows, _OLD, identity) if told else None
        messages = update_messages(
            relation.oid, _tuple(item, rows), count, item.header, old=old, kind=kind, xid=item.xid
        )
    else:
        old = _tuple(item, rows, only=identity)
        messages = delete_messages(relation.oid, old, kind, count, item.header, item.xid)
    return operation, count, data_of(messages)


def _tuple(
    item: ChangeItem, rows: pa.Table, prefix: str = "", only: frozenset[str] | None = None
) -> Sequence[EncodedColumn]:
    columns = []
    for attribute in item.table.relation.attributes:
        if only is not None and attribute.name not in only:
            columns.append(EncodedColumn(pa.nulls(rows.num_rows, pa.binary())))
            continue
        array = rows.column(prefix + attribute.name).combine_chunks()
        if item.binary and has_binary_output(attribute.type_oid, array.type):
            cells = binary_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells, binary=True))
        else:
            cells = text_output(array, attribute.type_oid, attribute.typmod)
            columns.append(EncodedColumn(cells))
    return columns
