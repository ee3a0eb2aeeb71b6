"""Tables that a transaction block has made, and that are in no catalog yet.

In: rows of catalogs. Out: frozen values, and what is written down of them until COMMIT has put them
into the catalogs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.catalog.pg_class import LakeTable, lake_table, stored_table
from penstock.catalog.pg_sequence import Sequence


@dataclass(frozen=True, slots=True)
class MadeTable:
    """``entry``: the lines of the first entry of its Delta log, which is not put yet."""

    row: LakeTable
    sequences: tuple[Sequence, ...]
    entry: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the relations that come with it."""
        return (*self.row.own_names, *(sequence.name for sequence in self.sequences))

    @property
    def uri(self) -> str:
        """Where it will lie."""
        return self.row.uri or ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The Delta table's own."""
        found = (json.loads(line).get("metaData") for line in self.entry)
        return next(metadata for metadata in found if metadata)

    @property
    def table_id(self) -> str:
        """The Delta table's own id."""
        return str(self.metadata["id"])


def to_json(table: MadeTable) -> dict[str, Any]:
    """As it is written down."""
    return {
        "row": stored_table(table.row),
        "sequences": [asdict(sequence) for sequence in table.sequences],
        "entry": list(table.entry),
    }


def from_json(found: Mapping[str, Any]) -> MadeTable:
    """The reverse of ``to_json``."""
    return MadeTable(
        lake_table(found["row"]),
        tuple(Sequence(**sequence) for sequence in found["sequences"]),
        tuple(found["entry"]),
    )
