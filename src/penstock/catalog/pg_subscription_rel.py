"""Tables of subscriptions and how far their synchronization is (pg_subscription_rel.h).

In: a connection inside a transaction. Out: frozen rows, and transitions that are checked. The lake
has no oids: a table is known by the publisher's schema and name.

::

    i  init            d  copying        f  copy committed
    s  in a cut        r  follows the stream
    p  parked: a change could not be applied, and the table follows no more (ours)

    i -> d -> f -> s -> r          d -> i, f -> i: the copy starts again
    f, s, r -> p                   p -> i: it is copied again
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    RowMapping,
    String,
    Table,
    Text,
    and_,
    select,
)

from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.catalog.pg_subscription import RecordedError
from penstock.errors import NotInPrerequisiteState, UndefinedObject
from penstock.lsn import Lsn

_TABLE = Table(
    "penstock_subscription_rel",
    METADATA,
    Column("srsubid", BigInteger, primary_key=True, autoincrement=False),
    Column("srrelschema", String(64), primary_key=True),
    Column("srrelname", String(64), primary_key=True),
    Column("srsubstate", String(1), nullable=False),
    Column("srsublsn", LsnColumn),
    Column("srsyncid", String(36), nullable=False),
    Column("srerror", Text),
    Column("srerrordetail", Text),
    Column("srerrorhint", Text),
    Column("srerrorsqlstate", String(5)),
    Column("srerrortime", Float(53)),
)


class SubscriptionRelState(Enum):
    """pg_subscription_rel.srsubstate."""

    INIT = "i"
    DATASYNC = "d"
    FINISHEDCOPY = "f"
    SYNCDONE = "s"
    READY = "r"
    PARKED = "p"


_NEXT: Final = {
    SubscriptionRelState.INIT: {SubscriptionRelState.DATASYNC},
    SubscriptionRelState.DATASYNC: {
        SubscriptionRelState.FINISHEDCOPY,
        SubscriptionRelState.INIT,
    },
    SubscriptionRelState.FINISHEDCOPY: {
        SubscriptionRelState.SYNCDONE,
        SubscriptionRelState.INIT,
        SubscriptionRelState.PARKED,
    },
    SubscriptionRelState.SYNCDONE: {SubscriptionRelState.READY, SubscriptionRelState.PARKED},
    SubscriptionRelState.READY: {SubscriptionRelState.PARKED},
    SubscriptionRelState.PARKED: set(),
}


@dataclass(frozen=True, slots=True)
class SubscriptionRel:
    """One table of one subscription.

    ``lsn``: None in i and d; the copy's consistent point in f; where the table joined in s and r
    (None in r when nothing was copied). ``sync_id``: a UUID, new each time that the table is added.
    ``error``: why it is parked.
    """

    subid: int
    schema: str
    table: str
    state: SubscriptionRelState
    lsn: Lsn | None
    sync_id: str
    error: RecordedError | None = field(default=None, compare=False)

    @property
    def qualified_name(self) -> str:
        """``schema.table``, unquoted, as PostgreSQL's messages print it."""
        return f"{self.schema}.{self.table}"


def may_follow(before: SubscriptionRelState, after: SubscriptionRelState) -> bool:
    """Whether a table may go from one state to the other; to the same one it always may."""
    return after is before or after in _NEXT[before]


class PgSubscriptionRel:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int | None = None) -> tuple[SubscriptionRel, ...]:
        """Rows of one subscription, or of all, sorted by name."""
        query = select(_TABLE).order_by(*_TABLE.primary_key.columns)
        if subid is not None:
            query = query.where(_TABLE.c.srsubid == subid)
        return tuple(_rel(row) for row in self._connection.execute(query).mappings())

    def add(
        self, subid: int, tables: Iterable[tuple[str, str]], state: SubscriptionRelState
    ) -> tuple[SubscriptionRel, ...]:
        """Add (schema, table) pairs, each with a new ``sync_id`` (AddSubscriptionRelState)."""
        rels = tuple(
            SubscriptionRel(subid, schema, table, state, None, str(uuid.uuid4()))
            for schema, table in tables
        )
        if rels:
            self._connection.execute(_TABLE.insert(), [_values(rel) for rel in rels])
        return rels

    def remove(self, rel: SubscriptionRel) -> None:
        """Remove one table; no effect when it is gone (RemoveSubscriptionRel)."""
        self._connection.execute(_TABLE.delete().where(_same(rel)))

    def delete_all(self, subid: int) -> None:
        """Remove all tables of a subscription."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.srsubid == subid))

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a transition (UpdateSubscriptionRelState). ``rel.state`` may be out of date.

        Raises UndefinedObject when the table was removed, or removed and added again, and
        NotInPrerequisiteState for a transition that there is not.
        """
        row = self._connection.execute(select(_TABLE).where(_same(rel))).mappings().one_or_none()
        if row is None:
            raise UndefinedObject(
                f'table "{rel.qualified_name}" is no longer part of the subscription'
            )
        before = _rel(row)
        if not may_follow(before.state, state):
            raise NotInPrerequisiteState(
                f'table "{rel.qualified_name}" cannot go from state '
                f'"{before.state.value}" to "{state.value}"'
            )
        after = replace(before, state=state, lsn=lsn)
        self._connection.execute(_TABLE.update().where(_same(rel)).values(**_values(after)))
        return after

    def park(self, rel: SubscriptionRel, error: RecordedError) -> SubscriptionRel:
        """f, s or r -> p, with the reason. Raises as ``set_state``."""
        after = replace(self.set_state(rel, SubscriptionRelState.PARKED, rel.lsn), error=error)
        self._connection.execute(_TABLE.update().where(_same(rel)).values(**_values(after)))
        return after


def _same(rel: SubscriptionRel) -> Any:
    return and_(
        _TABLE.c.srsubid == rel.subid,
        _TABLE.c.srrelschema == rel.schema,
        _TABLE.c.srrelname == rel.table,
        _TABLE.c.srsyncid == rel.sync_id,
    )


def _values(rel: SubscriptionRel) -> dict[str, Any]:
    return {
        "srsubid": rel.subid,
        "srrelschema": rel.schema,
        "srrelname": rel.table,
        "srsubstate": rel.state.value,
        "srsublsn": rel.lsn,
        "srsyncid": rel.sync_id,
        "srerror": rel.error and rel.error.message,
        "srerrordetail": rel.error and rel.error.detail,
        "srerrorhint": rel.error and rel.error.hint,
        "srerrorsqlstate": rel.error and rel.error.sqlstate,
        "srerrortime": rel.error and rel.error.time,
    }


def _rel(row: RowMapping) -> SubscriptionRel:
    error = None
    if row["srerror"] is not None:
        error = RecordedError(
            message=row["srerror"],
            detail=row["srerrordetail"],
            hint=row["srerrorhint"],
            sqlstate=row["srerrorsqlstate"],
            time=row["srerrortime"],
        )
    return SubscriptionRel(
        subid=row["srsubid"],
        schema=row["srrelschema"],
        table=row["srrelname"],
        state=SubscriptionRelState(row["srsubstate"]),
        lsn=row["srsublsn"],
        sync_id=row["srsyncid"],
        error=error,
    )
