"""Tables of subscriptions and how far their synchronization is (pg_subscription_rel.h).

In: a connection inside a transaction. Out: frozen rows, and transitions that are checked. A row is
found by the publisher's schema and name. It is bound to the objects of that name when the table was
added: the publisher's relation (its OID) and the Delta table (its metaData.id).

::

    i  init            d  copying        f  copy committed
    s  in a cut        r  follows the stream
    p  parked: a change could not be applied, and the table no longer follows (ours)

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
"""The bindings of tables that have left a subscription, since they may come back. A relation of the
same name with another OID (srrelid), or with an unknown one, is another table."""


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

    ``lsn``: None in i and d; the copy's consistent point in f; the position where the table joined
    in s and r (None in r while it is in no cut and nothing was copied). ``sync_id``: a UUID, new
    each time that the table is added. ``relid``, ``table_id``: the relation and the Delta table to
    which the row is bound, None until known; in state i, ``table_id`` is the Delta table of an
    earlier copy, which this copy may replace. ``returned``: the same relation had left the
    subscription since that copy; if nothing is copied, any relation of that name had. ``conflict``:
    the reason why the relation may be another one now. ``error``: the reason why the table is
    parked. In both cases REFRESH PUBLICATION copies it again. ``definition``: what the rows depend
    on at the publisher (``subscription.definitions``). ``copy_target``: one of COPY_TARGETS for the
    copy that is still to be made; None: the subscription's option.
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
        """The name to show to people (``relation.qualified``)."""
        return qualified(self.schema, self.table)

    @property
    def table_name(self) -> TableName:
        """The name to look it up by."""
        return self.schema, self.table


def may_follow(before: SubscriptionRelState, after: SubscriptionRelState) -> bool:
    """Tell whether a table may go from one state to the other. It may always stay in its state."""
    return after is before or after in _NEXT[before]


class PgSubscriptionRel:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int | None = None) -> tuple[SubscriptionRel, ...]:
        """Return the rows of one subscription, or of all, sorted by name."""
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
        """Add tables, with their OIDs where known, each with a new ``sync_id``
        (AddSubscriptionRelState). The copy of a table that has come back may replace the copy that
        it had in the subscription before."""
        oids = tables if isinstance(tables, Mapping) else {}
        former = self._former(subid)
        rels = []
        for name in tables:
            rel = SubscriptionRel(subid, *name, state, None, str(uuid.uuid4()), oids.get(name))
            relid, table_id = former.get(name, (None, None))
            if state is not SubscriptionRelState.INIT:
                # Nothing is copied: the rows here stay, whichever relation has the name now.
                rel = replace(rel, returned=name in former)
            elif relid is not None and relid == rel.relid:
                rel = replace(rel, table_id=table_id, returned=True)
            rels.append(rel)
        if rels:
            self._connection.execute(_TABLE.insert(), [_values(rel) for rel in rels])
        return tuple(rels)

    def _former(self, subid: int) -> dict[TableName, tuple[int | None, str]]:
        """Return the OIDs and Delta tables, by name, of tables that were in the subscription."""
        query = select(_FORMER).where(_FORMER.c.srsubid == subid)
        rows = self._connection.execute(query).mappings()
        return {
            (row["srrelschema"], row["srrelname"]): (row["srrelid"], row["srtableid"])
            for row in rows
        }

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> SubscriptionRel:
        """Begin a new membership, whose copy replaces the Delta table.

        The copy replaces nothing if the table had returned, was not copied since, and ``relid`` is
        another relation: the Delta table still serves the readers of the former one.
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
        """Begin a new membership of another relation without a copy: the user vouches for the rows
        that the table has."""
        self._change(rel, sync_id=str(uuid.uuid4()), relid=relid, conflict=None, definition=None)

    def bind(self, rel: SubscriptionRel, *, relid: int | None, table_id: str | None) -> None:
        """Record the relation and the Delta table of a row; None leaves either as it is. No effect
        when the row is gone."""
        values = {"relid": relid, "table_id": table_id}
        self._change(rel, **{name: value for name, value in values.items() if value is not None})

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> None:
        """Record why the relation may be another one now. No effect when the row is gone."""
        self._change(rel, conflict=conflict)

    def set_copy_target(self, subid: int, copy_target: str) -> None:
        """Set the copy target of all tables of a subscription that are not copied yet."""
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
        """Return the present row of the same membership, None if it has ended."""
        row = self._connection.execute(select(_TABLE).where(_same(rel))).mappings().one_or_none()
        return None if row is None else _rel(row)

    def remove(self, rel: SubscriptionRel) -> None:
        """Remove one table; no effect when it is gone (RemoveSubscriptionRel). Its binding is kept
        in case it comes back."""
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
        """Remove all tables of a subscription, and the bindings of former ones."""
        for table in (_TABLE, _FORMER):
            self._connection.execute(table.delete().where(table.c.srsubid == subid))

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a transition (UpdateSubscriptionRelState). ``rel.state`` may be out of date.

        Raises UndefinedObject when the table was removed, or removed and added again, and
        NotInPrerequisiteState for a transition that does not exist.
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
        """Park a table (f, s or r -> p) and record the reason. Raises as ``set_state``."""
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
