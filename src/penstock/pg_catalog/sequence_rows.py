"""Rows of pg_class, pg_sequence and pg_depend for sequences, and the columns that have them.

In: a snapshot. Out: rows by column name, as in ``relation_rows``; tables whose columns show that
they take values from sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog import Sequence
from penstock.pg_catalog.relations import CATALOG_OIDS, schema_oids
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot, CatalogTable

_COLUMNS: Final = 3
"""The number of a sequence's columns: last_value, log_cnt, is_called."""
_AUTO, _INTERNAL = "a", "i"
"""The DependencyType of a sequence that is dropped with its column, and of one that is a part of
it."""


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
    """Yield sequences with the tables that they belong to."""
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
    """Yield the dependency of each sequence on its column; no other dependencies are shown."""
    relations = CATALOG_OIDS["pg_class"]
    for sequence, table in owners(snapshot):
        yield {
            "classid": relations,
            "objid": sequence.oid,
            "objsubid": 0,
            "refclassid": relations,
            "refobjid": table.oid,
            "refobjsubid": table.columns.number(sequence.column) or 0,
            "deptype": _INTERNAL if sequence.identity else _AUTO,
        }
