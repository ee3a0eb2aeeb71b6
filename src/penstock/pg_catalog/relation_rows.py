"""Rows of pg_class and of the catalogs around it.

In: a snapshot. Out: rows by column name; a column that is left out is 0, false, '' or NULL by its
type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.attribute import Attribute
from penstock.pg_catalog.enum_rows import all_types
from penstock.pg_catalog.privileges import access_list
from penstock.pg_catalog.relations import (
    Index,
    ancestors,
    descendants,
    indexes,
    is_partitioned,
    not_null_columns,
    schema_oids,
)
from penstock.pg_catalog.sequence_rows import class_rows
from penstock.pg_catalog.snapshot import (
    NODE_OWNER,
    CatalogSnapshot,
    CatalogTable,
)
from penstock.pgtypes.pg_type import Type

Row = dict[str, object]

DELTA: Final = 2
"""The oid of our access method, which heap has in PostgreSQL."""
BTREE: Final = 403
_NOT_NULL_OIDS: Final = 3 << 30 | 1 << 29
_DEFAULT_OIDS: Final = 3 << 30 | 1 << 28
_ATTRIBUTES: Final = 1600


def pg_namespace(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield all schemas; the node's owner owns them."""
    for name, oid in schema_oids(snapshot).items():
        yield {"oid": oid, "nspname": name, "nspowner": NODE_OWNER}


def pg_class(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield tables, indexes for their keys, and sequences."""
    schemas = schema_oids(snapshot)
    for table in snapshot.tables:
        lake, parted = table.lake, is_partitioned(table)
        yield {
            "oid": table.oid,
            "relname": lake.name,
            "relnamespace": schemas[lake.schema],
            "relowner": NODE_OWNER if lake.owner is None else lake.owner,
            "relam": 0 if parted else DELTA,
            "relfilenode": 0 if parted else table.oid,
            "reltuples": -1.0,
            "relhasindex": bool(indexes(table)),
            "relpersistence": "p",
            "relkind": "p" if parted else "r",
            "relnatts": len(table.columns),
            "relhassubclass": parted,
            "relispopulated": True,
            "relreplident": lake.replica_identity.value,
            "relispartition": lake.parent is not None,
            "relpartbound": lake.bound,
            "relacl": access_list(snapshot, table, version),
        }
        for index in indexes(table):
            yield _index_class(index, schemas[lake.schema])
    yield from class_rows(snapshot)


def _index_class(index: Index, schema: int) -> Row:
    table = index.table
    return {
        "oid": index.oid,
        "relname": index.name,
        "relnamespace": schema,
        "relowner": NODE_OWNER if table.lake.owner is None else table.lake.owner,
        "relam": BTREE,
        "reltuples": 0.0,
        "relpersistence": "p",
        "relkind": "I" if is_partitioned(table) else "i",
        "relnatts": len(index.columns),
        "relispopulated": True,
        "relreplident": "n",
        "relispartition": index.partition,
    }


def pg_attribute(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield the columns of tables and of the indexes for their keys."""
    kinds = all_types(snapshot)
    for table in snapshot.tables:
        missing = not_null_columns(table)
        for number, column in enumerate(table.columns, 1):
            row = _attribute(table.oid, number, column, kinds.get(column.type_oid))
            yield row | {
                "attnotnull": column.name in missing,
                "attgenerated": column.generated.value,
                "atthasdef": _expression(column) is not None,
                "attidentity": column.identity,
            }
        for index in indexes(table):
            for position, number in enumerate(index.numbers, 1):
                column = table.columns[number - 1]
                yield _attribute(index.oid, position, column, kinds.get(column.type_oid))


def pg_attrdef(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield defaults, and the expressions of generated columns."""
    for table in snapshot.tables:
        for number, column in enumerate(table.columns, 1):
            expression = _expression(column)
            if expression is not None:
                oid = (_DEFAULT_OIDS + table.oid * _ATTRIBUTES + number) % (1 << 32)
                yield {"oid": oid, "adrelid": table.oid, "adnum": number, "adbin": expression}


def _expression(column: Attribute) -> str | None:
    """Return pg_attrdef.adbin."""
    return column.default if column.generation is None else column.generation


def _attribute(relation: int, number: int, column: Attribute, kind: Type | None) -> Row:
    return {
        "attrelid": relation,
        "attname": column.name,
        "atttypid": column.type_oid,
        "attlen": kind.length if kind else -1,
        "attnum": number,
        "attcacheoff": -1,
        "atttypmod": column.typmod,
        "attndims": 1 if kind and kind.category == "A" else 0,
        "attbyval": bool(kind and kind.by_value),
        "attalign": kind.align if kind else "i",
        "attstorage": kind.storage if kind else "x",
        "attislocal": True,
        "attcollation": kind.collation if kind else 0,
        "attstattarget": None,
    }


def pg_index(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield a row for each key of a table."""
    for table in snapshot.tables:
        for index in indexes(table):
            count = len(index.columns)
            yield {
                "indexrelid": index.oid,
                "indrelid": table.oid,
                "indnatts": count,
                "indnkeyatts": count,
                "indisunique": True,
                "indisprimary": index.primary,
                "indimmediate": True,
                "indisvalid": True,
                "indisready": True,
                "indislive": True,
                "indisreplident": index.replica_identity,
                "indkey": index.numbers,
                "indcollation": [0] * count,
                "indclass": [0] * count,
                "indoption": [0] * count,
            }


def pg_constraint(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield primary keys and UNIQUE; since version 18 NOT NULL, too."""
    schemas = schema_oids(snapshot)
    for table in snapshot.tables:
        schema = schemas[table.lake.schema]
        for index in indexes(table):
            if index.constraint:
                kind = "p" if index.primary else "u"
                yield _constraint(
                    table, schema, index.constraint_oid, index.name, kind, index.numbers
                ) | {"conindid": index.oid}
        if version < 18:
            continue
        missing = not_null_columns(table)
        for number, column in enumerate(table.columns, 1):
            if column.name in missing:
                oid = _NOT_NULL_OIDS + table.oid * _ATTRIBUTES + number
                above = ancestors(snapshot, table.oid)
                first = snapshot.table_by_oid[above[-1]] if above else table
                name = f"{first.lake.name}_{column.name}_not_null"
                row = _constraint(table, schema, oid % (1 << 32), name, "n", [number])
                yield row | {"conislocal": not above, "coninhcount": int(bool(above))}


def _constraint(
    table: CatalogTable, schema: int, oid: int, name: str, kind: str, numbers: list[int]
) -> Row:
    return {
        "oid": oid,
        "conname": name,
        "connamespace": schema,
        "contype": kind,
        "conenforced": True,
        "convalidated": True,
        "conrelid": table.oid,
        "conislocal": True,
        "connoinherit": kind in ("p", "u"),
        "conkey": numbers,
    }


def pg_inherits(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield partitions with their parents."""
    for table in snapshot.tables:
        if table.lake.parent is not None:
            yield {"inhrelid": table.oid, "inhparent": table.lake.parent, "inhseqno": 1}


def pg_partitioned_table(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield partitioned parents; pg_get_partkeydef prints their keys."""
    for table in snapshot.tables:
        key = table.lake.partition_key
        if key is not None:
            yield {"partrelid": table.oid, "partstrat": key.strip()[:1].lower(), "partnatts": 1}


def partition_ancestors(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield pg_partition_ancestors of every table."""
    for table in snapshot.tables:
        if table.lake.parent is None and not is_partitioned(table):
            continue
        for position, oid in enumerate((table.oid, *ancestors(snapshot, table.oid))):
            yield {"child": table.oid, "relid": oid, "position": position}


def partition_tree(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield pg_partition_tree of every table."""
    for table in snapshot.tables:
        if table.lake.parent is None and not is_partitioned(table):
            continue
        for oid, level in descendants(snapshot, table.oid):
            member = snapshot.table_by_oid[oid]
            yield {
                "root": table.oid,
                "relid": oid,
                "parentrelid": member.lake.parent,
                "isleaf": not is_partitioned(member),
                "level": level,
            }
