"""The place that each table's commits have reached in the node's WAL (``pg_transactions``).

In: a connection inside a transaction. Out: frozen ``Sequenced`` rows by the table's oid. Finding
later commits is left to the sequencer (walsender).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Table, Text, select

from penstock.catalog.metadata import METADATA

_TABLE: Final = Table(
    "penstock_sequenced",
    METADATA,
    Column("relid", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("table_id", Text),
)
_ALL: Final = select(_TABLE)
_PARAMETERS: Final = 500
"""The most parameters of a statement; a caller that asks for more tables gets all rows."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """The last version of a table that is in the log. ``table_id``: the id of the Delta table
    (``metaData.id``), None if an older node did not record it."""

    version: int
    table_id: str | None = None


def sequenced(connection: Connection, relations: Collection[int] | None) -> Mapping[int, Sequenced]:
    """Return rows by table oid: of all tables if ``relations`` is None, else at least of these."""
    few = relations is not None and len(relations) <= _PARAMETERS
    query = _ALL.where(_TABLE.c.relid.in_(relations or ())) if few else _ALL
    rows = connection.execute(query).mappings()
    return {int(row["relid"]): Sequenced(row["version"], row["table_id"]) for row in rows}


def advance(connection: Connection, relid: int, version: int, table_id: str | None) -> None:
    """Record how far a table is, also for the first time. ``table_id`` None keeps the recorded
    one."""
    same = _TABLE.c.relid == relid
    values: dict[str, Any] = {"version": version}
    if table_id is not None:
        values["table_id"] = table_id
    moved = connection.execute(_TABLE.update().where(same).values(**values))
    if moved.rowcount == 0:
        connection.execute(_TABLE.insert().values(relid=relid, **values))


def forget(connection: Connection, relid: int) -> None:
    """Forget a table that is gone; no effect when it is not known."""
    connection.execute(_TABLE.delete().where(_TABLE.c.relid == relid))
