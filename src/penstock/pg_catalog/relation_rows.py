"""Rows of pg_class and of the catalogs around it.

Rows are made from a snapshot, by column name. A missing column is 0, false, '' or NULL by its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from penstock.attribute import Attribute, TupleDesc
from penstock.catalog import Sequence
from penstock.pg_catalog.privileges import access_list
from penstock.pg_catalog.relations import (
    CATALOG_OIDS,
    PG_CATALOG,
    PUBLIC,
    Index,
    ancestors,
    descendants,
    indexes,
    is_partitioned,
    not_null_columns,
    schema_oids,
)
from penstock.pg_catalog.snapshot import (
    DATABASE_OWNER,
    NODE_OWNER,
    CatalogSnapshot,
    CatalogTable,
)
from penstock.pgtypes.pg_type import Type, types
from penstock.sql.builtin.enum_types import type_rows
from penstock.sql.text.keywords import COLUMN_NAME, KEY_WORDS, RESERVED, TYPE_OR_FUNCTION_NAME

# The node's enum types in the catalogs (pg_type, pg_enum).


def pg_enum(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """Yield a row for each label of each enum type."""
    for enum in snapshot.types:
        for label in enum.labels:
            yield {
                "oid": label.oid,
                "enumtypid": enum.oid,
                "enumsortorder": label.order,
                "enumlabel": label.text,
            }


def all_types(snapshot: CatalogSnapshot) -> Mapping[int, Type]:
    """Return PostgreSQL's own types and the node's, by oid."""
    own = {row.oid: row for enum in snapshot.types for row in type_rows(enum)}
    return {**types(), **own}


Row = dict[str, object]

HEAP: Final = 2
"""The oid of the access method of tables. It has PostgreSQL's name, so that what pg_dump writes
restores into a server."""
BTREE: Final = 403
_NOT_NULL_OIDS: Final = 3 << 30 | 1 << 29
_DEFAULT_OIDS: Final = 3 << 30 | 1 << 28
_ATTRIBUTES: Final = 1600
_PUBLIC_OWNED_SINCE: Final = 15
SCHEMA_COMMENTS: Final = {
    PG_CATALOG: "system catalog schema",
    PUBLIC: "standard public schema",
}


def pg_namespace(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield all schemas. The node's owner owns them, except for public, which is initdb's."""
    for name, oid in schema_oids(snapshot).items():
        row: Row = {"oid": oid, "nspname": name, "nspowner": NODE_OWNER}
        if oid == PUBLIC and version >= _PUBLIC_OWNED_SINCE:
            owner = DATABASE_OWNER.name
            row["nspowner"] = DATABASE_OWNER.oid
            row["nspacl"] = [f"{owner}=UC/{owner}", f"=U/{owner}"]
        yield row


def pg_description(_: CatalogSnapshot) -> Iterator[Row]:
    """Yield the comments that initdb gives to schemas; a node has no others."""
    schemas = CATALOG_OIDS["pg_namespace"]
    for oid, text in SCHEMA_COMMENTS.items():
        yield {"objoid": oid, "classoid": schemas, "objsubid": 0, "description": text}


def pg_class(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield tables, the indexes of their keys, and sequences."""
    schemas = schema_oids(snapshot)
    for table in snapshot.tables:
        lake, parted = table.lake, is_partitioned(table)
        yield {
            "oid": table.oid,
            "relname": lake.name,
            "relnamespace": schemas[lake.schema],
            "relowner": NODE_OWNER if lake.owner is None else lake.owner,
            "relam": 0 if parted else HEAP,
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
    """Yield the columns of tables and of the indexes of their keys."""
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
                oid = default_oid(table, number)
                yield {"oid": oid, "adrelid": table.oid, "adnum": number, "adbin": expression}


def default_oid(table: CatalogTable, number: int) -> int:
    """Return the oid of a column's row in pg_attrdef."""
    return (_DEFAULT_OIDS + table.oid * _ATTRIBUTES + number) % (1 << 32)


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


# Rows of objects that every database has: types, access methods, collations.

ARRAY_INPUT: Final = 750
"""The pg_proc.oid of array_in, which marks true arrays."""
_DEFAULT_COLLATION: Final = 100
_C_COLLATION: Final = 950
_KEY_WORDS: Final = {"R": RESERVED, "T": TYPE_OR_FUNCTION_NAME, "C": COLUMN_NAME}
_CATEGORIES: Final = {
    "R": "reserved",
    "T": "reserved (can be function or type name)",
    "C": "unreserved (cannot be function or type name)",
    "U": "unreserved",
}


def pg_type(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield PostgreSQL's own types, and the node's enums with the types of their arrays."""
    for row in types().values():
        yield _type(row, PG_CATALOG, NODE_OWNER)
    schemas = schema_oids(snapshot)
    for enum in snapshot.types:
        owner = NODE_OWNER if enum.owner is None else enum.owner
        for row in type_rows(enum):
            yield _type(row, schemas[enum.schema], owner)


def _type(row: Type, namespace: int, owner: int) -> Row:
    return {
        "oid": row.oid,
        "typname": row.name,
        "typnamespace": namespace,
        "typowner": owner,
        "typlen": row.length,
        "typbyval": row.by_value,
        "typtype": row.kind,
        "typcategory": row.category,
        "typispreferred": row.preferred,
        "typisdefined": True,
        "typdelim": row.delimiter,
        "typelem": row.typelem,
        "typarray": row.array,
        "typinput": ARRAY_INPUT if row.element and not row.is_vector else 0,
        "typreceive": row.receive_oid,
        "typalign": row.align,
        "typstorage": row.storage,
        "typtypmod": -1,
        "typcollation": row.collation,
    }


def keywords(_: CatalogSnapshot) -> Iterator[Row]:
    """Yield the rows of pg_get_keywords."""
    for word in sorted(KEY_WORDS):
        code = next((code for code, words in _KEY_WORDS.items() if word in words), "U")
        yield {"word": word, "catcode": code, "catdesc": _CATEGORIES[code]}


def pg_am(_: CatalogSnapshot) -> Iterator[Row]:
    """Yield the access methods of tables and of the indexes of their keys."""
    yield {"oid": HEAP, "amname": "heap", "amtype": "t"}
    yield {"oid": BTREE, "amname": "btree", "amtype": "i"}


def pg_collation(_: CatalogSnapshot) -> Iterator[Row]:
    """Yield the default collation, and C."""
    common = {"collnamespace": PG_CATALOG, "collowner": NODE_OWNER, "collisdeterministic": True}
    yield {"oid": _DEFAULT_COLLATION, "collname": "default", "collprovider": "d", **common} | {
        "collencoding": -1
    }
    yield {
        "oid": _C_COLLATION,
        "collname": "C",
        "collprovider": "c",
        "collencoding": -1,
        "collcollate": "C",
        "collctype": "C",
        **common,
    }


# Rows of pg_class, pg_sequence and pg_depend for sequences, and the columns that use sequences.

_COLUMNS: Final = 3
"""The number of a sequence's columns: last_value, log_cnt, is_called."""
_NORMAL, _AUTO, _INTERNAL = "n", "a", "i"
"""DependencyType of what is merely used, of what is dropped with the other, such as a serial
column's sequence, and of what is a part of it, such as an identity column's."""


def with_sequences(snapshot: CatalogSnapshot) -> CatalogSnapshot:
    """Give serial columns their default and identity columns their mark; make both NOT NULL."""
    if not snapshot.sequences:
        return snapshot
    owned = {(s.table, s.column): s for s in snapshot.sequences}
    tables = tuple(
        replace(
            table,
            columns=TupleDesc(
                column
                if (sequence := owned.get((table.oid, column.name))) is None
                else replace(
                    column,
                    not_null=True,
                    identity=sequence.identity,
                    default=None if sequence.identity else f"nextval({sequence.oid})",
                )
                for column in table.columns
            ),
        )
        for table in snapshot.tables
    )
    return replace(snapshot, tables=tables)


def owners(snapshot: CatalogSnapshot) -> Iterator[tuple[Sequence, CatalogTable]]:
    """Yield sequences with the tables to which they belong."""
    for sequence in snapshot.sequences:
        table = snapshot.table_by_oid.get(sequence.table)
        if table is not None:
            yield sequence, table


def class_rows(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """Yield the rows of pg_class."""
    schemas = schema_oids(snapshot)
    for sequence, table in owners(snapshot):
        yield {
            "oid": sequence.oid,
            "relname": sequence.name,
            "relnamespace": schemas[table.lake.schema],
            "relowner": NODE_OWNER if table.lake.owner is None else table.lake.owner,
            "relfilenode": sequence.oid,
            "relpages": 1,
            "reltuples": 1.0,
            "relpersistence": "p",
            "relkind": "S",
            "relnatts": _COLUMNS,
            "relispopulated": True,
            "relreplident": "n",
        }


def pg_sequence(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """Yield every sequence."""
    for sequence, _ in owners(snapshot):
        yield {
            "seqrelid": sequence.oid,
            "seqtypid": sequence.type,
            "seqstart": sequence.start,
            "seqincrement": sequence.increment,
            "seqmax": sequence.maximum,
            "seqmin": sequence.minimum,
            "seqcache": sequence.cache,
            "seqcycle": sequence.cycle,
        }


def pg_depend(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """Yield the dependencies of sequences on their columns, of defaults on their columns and
    sequences, and of partitions on their parents; no others are shown."""
    relations, defaults = CATALOG_OIDS["pg_class"], CATALOG_OIDS["pg_attrdef"]
    for sequence, table in owners(snapshot):
        number = table.columns.number(sequence.column) or 0
        kind = _INTERNAL if sequence.identity else _AUTO
        yield _dependency((relations, sequence.oid), (relations, table.oid, number), kind)
        if not sequence.identity:
            default = defaults, default_oid(table, number)
            yield _dependency(default, (relations, sequence.oid, 0), _NORMAL)
    for row in pg_attrdef(snapshot):
        column = relations, row["adrelid"], row["adnum"]
        yield _dependency((defaults, row["oid"]), column, _AUTO)
    for table in snapshot.tables:
        if table.lake.parent is not None:
            parent = relations, table.lake.parent, 0
            yield _dependency((relations, table.oid), parent, _AUTO)


def _dependency(
    of: tuple[object, object], on: tuple[object, object, object], kind: str
) -> dict[str, object]:
    names = ("classid", "objid", "refclassid", "refobjid", "refobjsubid")
    return dict(zip(names, (*of, *on), strict=True)) | {"objsubid": 0, "deptype": kind}
