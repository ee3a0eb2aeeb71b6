"""Tables that a transaction block has made, and that are in no catalog yet.

In: rows of catalogs. Out: frozen values, and the JSON that records them until COMMIT has put them
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
    """A table that a block has made. ``entry``: the lines of the first entry of its Delta log,
    which is not written yet."""

    row: LakeTable
    sequences: tuple[Sequence, ...]
    entry: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the table's relations: its own and those of its sequences."""
        return (*self.row.own_names, *(sequence.name for sequence in self.sequences))

    @property
    def uri(self) -> str:
        """The URI where the table will lie."""
        return self.row.uri or ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The Delta table's ``metaData`` action."""
        found = (json.loads(line).get("metaData") for line in self.entry)
        return next(metadata for metadata in found if metadata)

    @property
    def table_id(self) -> str:
        """The Delta table's id."""
        return str(self.metadata["id"])


def to_json(table: MadeTable) -> dict[str, Any]:
    """Return the table as JSON."""
    return {
        "row": stored_table(table.row),
        "sequences": [asdict(sequence) for sequence in table.sequences],
        "entry": list(table.entry),
    }


def from_json(found: Mapping[str, Any]) -> MadeTable:
    """Return the table that ``to_json`` has written."""
    return MadeTable(
        lake_table(found["row"]),
        tuple(Sequence(**sequence) for sequence in found["sequences"]),
        tuple(found["entry"]),
    )
