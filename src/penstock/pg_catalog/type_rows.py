"""Rows of objects that every database has: types, access methods, collations.

In: the definitions. Out: rows by column name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.pg_catalog.relation_rows import BTREE, DELTA, Row
from penstock.pg_catalog.relations import PG_CATALOG, schema_oids
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot
from penstock.pgtypes.pg_type import Type, types
from penstock.sql.builtin.enum_types import type_rows
from penstock.sql.text.keywords import COLUMN_NAME, KEY_WORDS, RESERVED, TYPE_OR_FUNCTION_NAME

ARRAY_INPUT: Final = 750
"""The pg_proc.oid of array_in, which tells true arrays from other types."""
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
    """Yield the access methods of tables and of the indexes for their keys."""
    yield {"oid": DELTA, "amname": "delta", "amtype": "t"}
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
