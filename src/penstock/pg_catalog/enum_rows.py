"""The node's enum types in the catalogs (pg_type, pg_enum).

In: a snapshot. Out: rows by column name, and rows of pg_type for whoever looks types up by oid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.enum_type import EnumType
from penstock.pg_catalog.definitions import TypeRow, types
from penstock.pg_catalog.snapshot import CatalogSnapshot

_ENUM_RECV = 3532
_ARRAY_RECV = 2400


def pg_enum(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """The labels of every type."""
    for enum in snapshot.types:
        for label in enum.labels:
            yield {
                "oid": label.oid,
                "enumtypid": enum.oid,
                "enumsortorder": label.order,
                "enumlabel": label.text,
            }


def all_types(snapshot: CatalogSnapshot) -> Mapping[int, TypeRow]:
    """PostgreSQL's own types and the node's, by oid."""
    own = {row.oid: row for enum in snapshot.types for row in type_rows(enum)}
    return {**types(), **own}


def type_rows(enum: EnumType) -> tuple[TypeRow, TypeRow]:
    """The type and the type of its arrays."""
    return (
        TypeRow(
            typname=enum.name,
            oid=enum.oid,
            typlen=4,
            typbyval=True,
            typtype="e",
            typcategory="E",
            typispreferred=False,
            typdelim=",",
            typelem=0,
            typarray=enum.array_oid,
            typalign="i",
            typstorage="p",
            typcollation=0,
            typinput="enum_in",
            typoutput="enum_out",
            typreceive="enum_recv",
            typreceive_oid=_ENUM_RECV,
        ),
        TypeRow(
            typname=enum.array_name,
            oid=enum.array_oid,
            typlen=-1,
            typbyval=False,
            typtype="b",
            typcategory="A",
            typispreferred=False,
            typdelim=",",
            typelem=enum.oid,
            typarray=0,
            typalign="i",
            typstorage="x",
            typcollation=0,
            typinput="array_in",
            typoutput="array_out",
            typreceive="array_recv",
            typreceive_oid=_ARRAY_RECV,
        ),
    )
