"""One row about the node as a whole (pg_control, and the counters of varsup.c)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, String, Table, Text, select, update

from penstock.catalog.metadata import METADATA

FIRST_OID: Final = 16384
"""FirstNormalObjectId (transam.h)."""

_TABLE = Table(
    "penstock_control",
    METADATA,
    Column("only_row", Integer, primary_key=True, autoincrement=False),
    Column("schema_version", Integer, nullable=False),
    Column("node_id", String, nullable=False),
    Column("created_by", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("next_oid", BigInteger, nullable=False),
    Column("warehouse", Text),
)
_GENERATION: Final = select(_TABLE.c.generation)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The node's identity. ``node_id`` is unique among all nodes. ``created_at``: seconds since
    1970."""

    node_id: str
    created_by: str
    created_at: int


def initialize(connection: Connection, *, schema_version: int, created_by: str, now: int) -> None:
    """Write the row of a new node. ``created_by``: version of Penstock."""
    connection.execute(
        _TABLE.insert().values(
            only_row=1,
            schema_version=schema_version,
            node_id=str(uuid.uuid4()),
            created_by=created_by,
            created_at=now,
            generation=1,
            next_oid=FIRST_OID,
        )
    )


def schema_version(connection: Connection) -> int:
    return int(connection.execute(select(_TABLE.c.schema_version)).scalar_one())


def set_schema_version(connection: Connection, version: int) -> None:
    connection.execute(update(_TABLE).values(schema_version=version))


def node_info(connection: Connection) -> NodeInfo:
    columns = (_TABLE.c.node_id, _TABLE.c.created_by, _TABLE.c.created_at)
    return NodeInfo(*connection.execute(select(*columns)).one())


def warehouse(connection: Connection) -> str | None:
    """Return the URI of the warehouse that bears the node's id; None before it is written."""
    found: str | None = connection.execute(select(_TABLE.c.warehouse)).scalar_one()
    return found


def set_warehouse(connection: Connection, uri: str) -> None:
    connection.execute(update(_TABLE).values(warehouse=uri))


def generation(connection: Connection) -> int:
    """Return a number that grows with every change of the catalog."""
    return int(connection.execute(_GENERATION).scalar_one())


def advance_generation(connection: Connection) -> None:
    """Count a change. A writing transaction does this first: the row is the writers' lock."""
    connection.execute(update(_TABLE).values(generation=_TABLE.c.generation + 1))


def lock_writers(connection: Connection) -> None:
    """Take the writers' lock for a change that is not counted."""
    connection.execute(update(_TABLE).values(generation=_TABLE.c.generation))


def new_oid(connection: Connection) -> int:
    """Return an oid that was never given out before (GetNewObjectId, without wrapping around)."""
    oid = int(connection.execute(select(_TABLE.c.next_oid)).scalar_one())
    connection.execute(update(_TABLE).values(next_oid=oid + 1))
    return oid
