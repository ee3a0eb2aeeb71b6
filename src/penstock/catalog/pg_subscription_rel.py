"""Tables of subscriptions and how far their synchronization is (pg_subscription_rel.h).

In: a connection inside a transaction. Out: frozen rows, and transitions that are checked. A row is
found by the publisher's schema and name, and bound to what these named when the table was taken in:
the publisher's relation (its OID) and the Delta table (its metaData.id).

::

    i  init            d  copying        f  copy committed
    s  in a cut        r  follows the stream
    p  parked: a change could not be applied, and the table follows no more (ours)

    i -> d -> f -> s -> r          d -> i, f -> i: the copy starts again
    f, s, r -> p                   p -> i: it is copied again
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    RowMapping,
    String,
    Table,
    Text,
    and_,
    select,
)

from penstock.catalog.metadata import (
    METADATA,
    LsnColumn,
    RecordedError,
    error_columns,
    error_of,
    error_values,
)
from penstock.errors import NotInPrerequisiteState, UndefinedObject
from penstock.lsn import Lsn
from penstock.relation import TableName, qualified

_TABLE = Table(
    "penstock_subscription_rel",
    METADATA,
    Column("srsubid", BigInteger, primary_key=True, autoincrement=False),
    Column("srrelschema", String(64), primary_key=True),
    Column("srrelname", String(64), primary_key=True),
    Column("srsubstate", String(1), nullable=False),
    Column("srsublsn", LsnColumn),
    Column("srsyncid", String(36), nullable=False),
    *error_columns("sr"),
    Column("srrelid", BigInteger),
    Column("srtableid", String(64)),
    Column("srconflict", Text),
    Column("srreturned", Boolean),
    Column("srdefinition", Text),
    Column("srcopytarget", String(7)),
)

_FORMER = Table(
    "penstock_former_subscription_rel",
    METADATA,
    Column("srsubid", BigInteger, primary_key=True, autoincrement=False),
    Column("srrelschema", String(64), primary_key=True),
    Column("srrelname", String(64), primary_key=True),
    Column("srtableid", String(64), nullable=False),
    Column("srrelid", BigInteger),
)
"""What tables that have left a subscription were bound to: they may come back into it. Another
relation of the name (srrelid) is another table, and so is one of which nobody knows."""


class SubscriptionRelState(Enum):
    """pg_subscription_rel.srsubstate."""

    INIT = "i"
    DATASYNC = "d"
    FINISHEDCOPY = "f"
    SYNCDONE = "s"
    READY = "r"
    PARKED = "p"


_NOT_COPIED: Final = (SubscriptionRelState.INIT, SubscriptionRelState.DATASYNC)

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
    (None in r while it is in no cut and nothing was copied). ``sync_id``: a UUID, new each time
    that the table is added. ``relid``, ``table_id``: what the row is bound to, None until it is
    known; in state i, ``table_id`` is the Delta table of an earlier copy, which this one may
    replace. ``returned``: the table, the same relation, had left the subscription since that copy;
    where nothing is copied, a table of that name. ``conflict``: why the relation may be another one
    now; ``error``: why the table is parked. REFRESH PUBLICATION copies it again. ``definition``:
    what the rows depend on at the publisher (``subscription.definitions``). ``copy_target``: one of
    COPY_TARGETS, of the copy that is to be made; None: as the subscription says.
    """

    subid: int
    schema: str
    table: str
    state: SubscriptionRelState
    lsn: Lsn | None
    sync_id: str
    relid: int | None = None
    table_id: str | None = None
    conflict: str | None = None
    returned: bool = False
    error: RecordedError | None = field(default=None, compare=False)
    definition: str | None = field(default=None, compare=False, repr=False)
    copy_target: str | None = field(default=None, compare=False)

    @property
    def qualified_name(self) -> str:
        """Its name for people (``relation.qualified``)."""
        return qualified(self.schema, self.table)

    @property
    def table_name(self) -> TableName:
        """Its name to look it up by."""
        return self.schema, self.table


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
        self,
        subid: int,
        tables: Mapping[TableName, int] | Iterable[TableName],
        state: SubscriptionRelState,
    ) -> tuple[SubscriptionRel, ...]:
        """Add tables, with their OIDs where they are known, each with a new ``sync_id``
        (AddSubscriptionRelState). What is to be copied may replace its copy from an earlier time in
        the subscription."""
        oids = tables if isinstance(tables, Mapping) else {}
        former = self._former(subid)
        rels = []
        for name in tables:
            rel = SubscriptionRel(subid, *name, state, None, str(uuid.uuid4()), oids.get(name))
            relid, table_id = former.get(name, (None, None))
            if state is not SubscriptionRelState.INIT:
                # Its rows stay, whichever relation has the name now.
                rel = replace(rel, returned=name in former)
            elif relid is not None and relid == rel.relid:
                rel = replace(rel, table_id=table_id, returned=True)
            rels.append(rel)
        if rels:
            self._connection.execute(_TABLE.insert(), [_values(rel) for rel in rels])
        return tuple(rels)

    def _former(self, subid: int) -> dict[TableName, tuple[int | None, str]]:
        """Names of tables that were in the subscription -> their OIDs and Delta tables."""
        query = select(_FORMER).where(_FORMER.c.srsubid == subid)
        rows = self._connection.execute(query).mappings()
        return {
            (row["srrelschema"], row["srrelname"]): (row["srrelid"], row["srtableid"])
            for row in rows
        }

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> SubscriptionRel:
        """The table is another one now: a new membership, whose copy replaces the Delta table.

        Except where the table had returned and was not copied since: the Delta table is still its
        readers', and none of another relation's.
        """
        stored = self._stored(rel) or rel
        returned = stored.returned and stored.state in _NOT_COPIED
        anothers = returned and relid != stored.relid
        again = replace(
            stored,
            state=SubscriptionRelState.INIT,
            lsn=None,
            sync_id=str(uuid.uuid4()),
            relid=relid,
            table_id=None if anothers else stored.table_id,
            conflict=None,
            returned=returned and not anothers,
            error=None,
            definition=None,
            copy_target=None,
        )
        self._connection.execute(_TABLE.update().where(_same(rel)).values(**_values(again)))
        return again

    def adopt(self, rel: SubscriptionRel, relid: int) -> None:
        """The table is another one now, and the user vouches for the rows that are there."""
        self._change(rel, sync_id=str(uuid.uuid4()), relid=relid, conflict=None, definition=None)

    def bind(self, rel: SubscriptionRel, *, relid: int | None, table_id: str | None) -> None:
        """Record what the row stands for; None leaves it. No effect when the row is gone."""
        values = {"relid": relid, "table_id": table_id}
        self._change(rel, **{name: value for name, value in values.items() if value is not None})

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> None:
        """Record that the relation may be another one now. No effect when the row is gone."""
        self._change(rel, conflict=conflict)

    def set_copy_target(self, subid: int, copy_target: str) -> None:
        """Of all tables of a subscription that are not copied yet."""
        for rel in self.all(subid):
            if rel.state in _NOT_COPIED:
                self._change(rel, copy_target=copy_target)

    def record_definition(self, rel: SubscriptionRel, definition: str) -> None:
        """Record what the rows depend on at the publisher. No effect when the row is gone."""
        self._change(rel, definition=definition)

    def _change(self, rel: SubscriptionRel, **changes: Any) -> None:
        stored = self._stored(rel)
        if stored is not None and changes:
            values = _values(replace(stored, **changes))
            self._connection.execute(_TABLE.update().where(_same(rel)).values(**values))

    def _stored(self, rel: SubscriptionRel) -> SubscriptionRel | None:
        """The row of the same membership as it is now."""
        row = self._connection.execute(select(_TABLE).where(_same(rel))).mappings().one_or_none()
        return None if row is None else _rel(row)

    def remove(self, rel: SubscriptionRel) -> None:
        """Remove one table; no effect when it is gone (RemoveSubscriptionRel). What it
        was bound to is kept for the day when it comes back."""
        row = self._connection.execute(select(_TABLE).where(_same(rel))).mappings().one_or_none()
        if row is None:
            return
        self._connection.execute(_TABLE.delete().where(_same(rel)))
        if row["srtableid"] is not None:
            values = {column.name: row[column.name] for column in _FORMER.columns}
            key = (_FORMER.c[column.name] == row[column.name] for column in _FORMER.primary_key)
            self._connection.execute(_FORMER.delete().where(and_(*key)))
            self._connection.execute(_FORMER.insert().values(**values))

    def delete_all(self, subid: int) -> None:
        """Remove all tables of a subscription, and what is kept of former ones."""
        for table in (_TABLE, _FORMER):
            self._connection.execute(table.delete().where(table.c.srsubid == subid))

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a transition (UpdateSubscriptionRelState). ``rel.state`` may be out of date.

        Raises UndefinedObject when the table was removed, or removed and added again, and
        NotInPrerequisiteState for a transition that there is not.
        """
        before = self._stored(rel)
        if before is None:
            raise UndefinedObject(
                f'table "{rel.qualified_name}" is no longer part of the subscription'
            )
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
        **error_values("sr", rel.error),
        "srrelid": rel.relid,
        "srtableid": rel.table_id,
        "srconflict": rel.conflict,
        "srreturned": rel.returned,
        "srdefinition": rel.definition,
        "srcopytarget": rel.copy_target,
    }


def _rel(row: RowMapping) -> SubscriptionRel:
    return SubscriptionRel(
        subid=row["srsubid"],
        schema=row["srrelschema"],
        table=row["srrelname"],
        state=SubscriptionRelState(row["srsubstate"]),
        lsn=row["srsublsn"],
        sync_id=row["srsyncid"],
        error=error_of("sr", row),
        relid=row["srrelid"],
        table_id=row["srtableid"],
        conflict=row["srconflict"],
        returned=bool(row["srreturned"]),
        definition=row["srdefinition"],
        copy_target=row["srcopytarget"],
    )
