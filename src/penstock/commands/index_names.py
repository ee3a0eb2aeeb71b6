"""Names of indexes (indexcmds.c, ChooseIndexName and its neighbours).

In: a table, columns, what is in the catalog. Out: the name that PostgreSQL would give an index, or
42P07 for one that a relation has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.errors import DuplicateObject
from penstock.identifiers import truncated

DUPLICATE_TABLE: Final = "42P07"
_NAME_BYTES: Final = 63
"""NAMEDATALEN - 1"""


def is_taken(transaction: CatalogTransaction, schema: str, name: str) -> bool:
    """Whether a table or an index of the schema has the name."""
    return any(name in relation_names(t) for t in transaction.tables.all() if t.schema == schema)


def relation_names(table: LakeTable) -> list[str]:
    """Of a table and its indexes."""
    keys = [table.primary_key_name] if table.primary_key else []
    return [table.name, *keys, *(index.name for index in table.indexes)]


def check_free(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """Raises DuplicateObject (42P07)."""
    if is_taken(transaction, schema, name):
        raise DuplicateObject(f'relation "{name}" already exists', sqlstate=DUPLICATE_TABLE)


def choose_name(
    transaction: CatalogTransaction,
    table: LakeTable,
    columns: Sequence[str],
    *,
    constraint: bool,
) -> str:
    """ChooseRelationName: ``table_column_idx``, or ``_key`` of a constraint; with a number where
    that is taken."""
    label = "key" if constraint else "idx"
    number = 0
    while True:
        name = make_object_name(table.name, "_".join(columns), f"{label}{number or ''}")
        if not is_taken(transaction, table.schema, name):
            return name
        number += 1


def make_object_name(first: str, second: str, label: str) -> str:
    """makeObjectName: the longer of two names loses what is too much."""
    one, two = len(first.encode()), min(len(second.encode()), _NAME_BYTES)
    room = _NAME_BYTES - len(label) - len("__")
    if one + two > room:
        half = room // 2
        if min(one, two) > half:
            one, two = room - half, half
        elif one < two:
            two = room - one
        else:
            one = room - two
    return f"{truncated(first, one)}_{truncated(second, two)}_{label}"
