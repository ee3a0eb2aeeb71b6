"""arrow: changes as Arrow record batches; a batch has rows of one table and kind.

Each binary write is an Arrow IPC stream of its own. The metadata of its schema describe it:
``kind`` (begin, change, truncate, message, commit), ``xid``, ``lsn`` and, for changes, ``schema``,
``table``, ``oid``, ``action`` and ``key`` (the names of the replica identity's columns, as JSON). A
change has the column ``lsn``; ``new`` and ``old``, structs with a field of the lake's type for each
column that is sent; and ``unchanged``, lists of the names of columns whose TOAST value did not
change and was not sent. Other kinds have no rows. The options are include-types (field metadata
with PostgreSQL's types) and only-local, both off by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.decoding.logical import LogicalDecodingContext as Context
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions, OutputType
from penstock.decoding.plugins.options import boolean, unknown
from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import Change, ReorderBufferTXN, RowBatch, TruncateChange
from penstock.decoding.tuple_columns import TupleColumns
from penstock.lsn import Lsn

_NO_COLUMNS: Final = pa.schema([])


class Arrow(OutputPlugin):
    """The plugin arrow."""

    def __init__(self) -> None:
        self._include_types = False
        self._only_local = False

    def startup(self, ctx: Context, options: OutputPluginOptions, is_init: bool) -> None:
        options.output_type = OutputType.BINARY
        for name, value in ctx.options:
            match name:
                case "include-types":
                    self._include_types = boolean(name, value)
                case "only-local":
                    self._only_local = boolean(name, value)
                case _:
                    raise unknown(name, value)

    def filter_by_origin(self, ctx: Context, origin: str | None) -> bool:
        return self._only_local and origin is not None

    def begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        facts = {"xid": str(txn.xid), "lsn": str(txn.final_lsn)}
        facts |= {"origin": txn.origin} if txn.origin is not None else {}
        _write(ctx, "begin", facts)

    def commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        facts = {"xid": str(txn.xid), "lsn": str(commit_lsn), "end_lsn": str(txn.end_lsn)}
        _write(ctx, "commit", facts | {"commit_time": str(txn.commit_time)})

    def change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        self.change_batch(ctx, txn, change.batch)

    def change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        relation, rows = batch.relation, len(batch)
        lsns = batch.lsn if not isinstance(batch.lsn, Lsn) else np.full(rows, batch.lsn, np.uint64)
        columns: dict[str, pa.Array] = {"lsn": pa.array(lsns, pa.uint64())}
        fields = [pa.field("lsn", pa.uint64())]
        for side, tuples in (("new", batch.new), ("old", batch.old)):
            if tuples is not None:
                columns[side] = self._struct(tuples)
                fields.append(pa.field(side, columns[side].type))
        if batch.new is not None:
            columns["unchanged"] = _unchanged(batch.new)
            fields.append(pa.field("unchanged", columns["unchanged"].type))
        facts = {
            "xid": str(txn.xid),
            "lsn": str(batch.first_lsn),
            "schema": relation.schema,
            "table": relation.name,
            "oid": str(relation.oid),
            "action": str(batch.action),
            "key": json.dumps(relation.relation.key),
        }
        schema = pa.schema(fields)
        _write(ctx, "change", facts, pa.record_batch(list(columns.values()), schema=schema))

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        facts = {
            "xid": str(txn.xid),
            "lsn": str(change.lsn),
            "tables": json.dumps([[relation.schema, relation.name] for relation in relations]),
            "cascade": str(change.cascade).lower(),
            "restart_identity": str(change.restart_identity).lower(),
        }
        _write(ctx, "truncate", facts)

    def message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        facts: dict[str, str | bytes] = {
            "xid": "0" if txn is None else str(txn.xid),
            "lsn": str(lsn),
            "transactional": str(transactional).lower(),
            "prefix": prefix,
            "content": content,
        }
        _write(ctx, "message", facts)

    def _struct(self, tuples: TupleColumns) -> pa.Array:
        arrays, fields = [], []
        pairs = zip(tuples.relation.attributes, tuples.columns, strict=True)
        for attribute, column in pairs:
            if column is None:
                continue
            array = column.text if column.values is None else column.values
            told = {"type": attribute.type_text} if self._include_types else None
            arrays.append(array)
            fields.append(pa.field(attribute.name, array.type, metadata=told))
        if not arrays:
            return pa.Array.from_buffers(pa.struct([]), tuples.rows, [None])
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _unchanged(tuples: TupleColumns) -> pa.Array:
    """Return, for each row, the names of columns whose TOAST value was not sent."""
    masked = [
        (attribute.name, column.unchanged)
        for attribute, column in zip(tuples.relation.attributes, tuples.columns, strict=True)
        if column is not None and column.unchanged is not None
    ]
    if not masked:
        empty = np.zeros(tuples.rows + 1, np.int32)
        return pa.ListArray.from_arrays(pa.array(empty), pa.array([], pa.string()))
    names = [[name for name, mask in masked if mask[row]] for row in range(tuples.rows)]
    return pa.array(names, pa.list_(pa.string()))


def _write(
    ctx: Context, kind: str, facts: Mapping[str, str | bytes], batch: pa.RecordBatch | None = None
) -> None:
    metadata = {"kind": kind, **facts}
    schema = (_NO_COLUMNS if batch is None else batch.schema).with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        if batch is not None:
            stream.write_batch(batch.replace_schema_metadata(metadata))
    ctx.prepare_write()
    ctx.out.append(sink.getvalue().to_pybytes())
    ctx.write()
