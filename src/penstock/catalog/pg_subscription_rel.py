"""Tables of subscriptions and the state of their synchronization (pg_subscription_rel.h).

A row is found by the table's schema and name at the publisher. It is bound to the objects that had
this name when the table was added: a relation by its OID, and a Delta table by its metaData.id.

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
from typing import Annotated, Any, Final

from sqlalchemy import BigInteger, Boolean, Column, ColumnElement, Float, String, Text, and_

from penstock.catalog.metadata import (
    ERROR,
    LsnColumn,
    RecordedError,
    StoredTable,
    TableAccess,
    enum_form,
    error_columns,
)
from penstock.errors import NotInPrerequisiteState, UndefinedObject
from penstock.lsn import Lsn
from penstock.relation import TableName, qualified


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

    ``lsn``: None in i and d; the copy's consistent point in f; in s and r the LSN where the table
    joined the stream (None in r while it is in no cut and nothing was copied). ``sync_id``: a UUID,
    new each time that the table is added. ``relid``, ``table_id``: the relation and the Delta table
    to which the row is bound, None until known; in state i, ``table_id`` is the Delta table of an
    earlier copy, which this copy may replace. ``returned``: the same relation had left the
    subscription since that copy; if nothing is copied, any relation of that name had left it.
    ``conflict``: why the relation may not be the one that was copied. ``error``: why the table is
    parked. In both cases REFRESH PUBLICATION copies the table again. ``definition``: the
    publisher's definitions on which the rows depend (``definition_watch``). ``copy_target``: one of
    COPY_TARGETS for the copy that is still to be made; None: the subscription's option.
    """

    subid: Annotated[int, Column("srsubid", BigInteger, primary_key=True, autoincrement=False)]
    schema: Annotated[str, Column("srrelschema", String(64), primary_key=True)]
    table: Annotated[str, Column("srrelname", String(64), primary_key=True)]
    state: Annotated[
        SubscriptionRelState,
        Column("srsubstate", String(1), nullable=False),
        enum_form(SubscriptionRelState),
    ]
    lsn: Annotated[Lsn | None, Column("srsublsn", LsnColumn)]
    sync_id: Annotated[str, Column("srsyncid", String(36), nullable=False)]
    error: Annotated[RecordedError | None, error_columns("sr"), ERROR] = field(
        default=None, compare=False, kw_only=True
    )
    relid: Annotated[int | None, Column("srrelid", BigInteger)] = None
    table_id: Annotated[str | None, Column("srtableid", String(64))] = None
    conflict: Annotated[str | None, Column("srconflict", Text)] = None
    returned: Annotated[bool, Column("srreturned", Boolean)] = False
    definition: Annotated[str | None, Column("srdefinition", Text)] = field(
        default=None, compare=False, repr=False
    )
    copy_target: Annotated[str | None, Column("srcopytarget", String(7))] = field(
        default=None, compare=False
    )

    @property
    def qualified_name(self) -> str:
        """The name to show to people (``relation.qualified``)."""
        return qualified(self.schema, self.table)

    @property
    def table_name(self) -> TableName:
        """The name for look-ups."""
        return self.schema, self.table

    @property
    def never_copied(self) -> bool:
        """True before the first copy of a table that was not in the subscription before."""
        return self.state in _NOT_COPIED and self.table_id is None


@dataclass(frozen=True, slots=True)
class _FormerRel:
    """The binding of a table that has left a subscription, kept because the table may come back. A
    relation of the same name with another or unknown OID is another table."""

    subid: Annotated[int, Column("srsubid", BigInteger, primary_key=True, autoincrement=False)]
    schema: Annotated[str, Column("srrelschema", String(64), primary_key=True)]
    table: Annotated[str, Column("srrelname", String(64), primary_key=True)]
    table_id: Annotated[str, Column("srtableid", String(64), nullable=False)]
    relid: Annotated[int | None, Column("srrelid", BigInteger)]


_NONE: Final[Mapping[TableName, str]] = {}
_TABLE: Final = StoredTable("penstock_subscription_rel", SubscriptionRel)
_FORMER: Final = StoredTable("penstock_former_subscription_rel", _FormerRel)


def may_follow(before: SubscriptionRelState, after: SubscriptionRelState) -> bool:
    """Return whether a table may go from one state to the other; it may always stay in a state."""
    return after is before or after in _NEXT[before]


class PgSubscriptionRel(TableAccess):
    """The table, within one transaction."""

    def all(self, subid: int | None = None) -> tuple[SubscriptionRel, ...]:
        """Return the rows of one subscription, or of all, sorted by name."""
        where = () if subid is None else (_TABLE.c.srsubid == subid,)
        return _TABLE.all(self.connection, *where)

    def add(
        self,
        subid: int,
        tables: Mapping[TableName, int] | Iterable[TableName],
        state: SubscriptionRelState,
        filled: Mapping[TableName, str] = _NONE,
    ) -> tuple[SubscriptionRel, ...]:
        """Add tables, with their OIDs where known, each with a new ``sync_id``
        (AddSubscriptionRelState). The copy of a table that has come back may replace the copy that
        it had in the subscription before. ``filled``: ids of Delta tables that the subscription
        has filled, although the rows do not say so: they are of an older state."""
        oids = tables if isinstance(tables, Mapping) else {}
        former = self._former(subid)
        rels = []
        for name in tables:
            rel = SubscriptionRel(subid, *name, state, None, str(uuid.uuid4()), oids.get(name))
            relid, table_id = former.get(name, (None, None))
            if state is not SubscriptionRelState.INIT:
                # Nothing is copied: the rows here stay, even if another relation has the name now.
                rel = replace(rel, returned=name in former)
            elif relid is not None and relid == rel.relid:
                rel = replace(rel, table_id=table_id, returned=True)
            elif name not in former and name in filled:
                rel = replace(rel, table_id=filled[name], returned=True)
            rels.append(rel)
        _TABLE.insert(self.connection, *rels)
        return tuple(rels)

    def take_up(
        self,
        subid: int,
        name: TableName,
        lsn: Lsn,
        *,
        relid: int | None,
        table_id: str | None,
        conflict: str | None,
    ) -> bool:
        """Add a table that the last cut, at ``lsn``, has, in place of a row that waits for its
        first copy. Return False if another row is there, or the table has left the subscription."""
        now = {rel.table_name: rel for rel in self.all(subid)}.get(name)
        _, left = self._former(subid).get(name, (None, None))
        if left == table_id or (now is not None and not now.never_copied):
            return False
        if now is not None:
            _TABLE.delete(self.connection, _same(now))
        state, sync_id = SubscriptionRelState.READY, str(uuid.uuid4())
        rel = SubscriptionRel(subid, *name, state, lsn, sync_id, relid, table_id, conflict)
        _TABLE.insert(self.connection, rel)
        return True

    def _former(self, subid: int) -> dict[TableName, tuple[int | None, str]]:
        """Return the OIDs and Delta tables, by name, of tables that were in the subscription."""
        former = _FORMER.all(self.connection, _FORMER.c.srsubid == subid)
        return {(rel.schema, rel.table): (rel.relid, rel.table_id) for rel in former}

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> SubscriptionRel:
        """Begin a new membership, whose copy replaces the Delta table.

        The copy does not replace it if the table had returned, was not copied since, and ``relid``
        is another relation: readers of the former relation still use the Delta table.
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
        _TABLE.update(self.connection, again, _same(rel))
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
        """Record why the relation may not be the one that was copied. No effect when the row is
        gone."""
        self._change(rel, conflict=conflict)

    def set_copy_target(self, subid: int, copy_target: str) -> None:
        """Set the copy target of all tables of a subscription that are not copied yet."""
        for rel in self.all(subid):
            if rel.state in _NOT_COPIED:
                self._change(rel, copy_target=copy_target)

    def record_definition(self, rel: SubscriptionRel, definition: str) -> None:
        """Record the definitions on which the rows depend. No effect when the row is gone."""
        self._change(rel, definition=definition)

    def _change(self, rel: SubscriptionRel, **changes: Any) -> None:
        stored = self._stored(rel)
        if stored is not None and changes:
            _TABLE.update(self.connection, replace(stored, **changes))

    def _stored(self, rel: SubscriptionRel) -> SubscriptionRel | None:
        """Return the present row of the same membership, None if it has ended."""
        return _TABLE.find(self.connection, _same(rel))

    def remove(self, rel: SubscriptionRel) -> None:
        """Remove one table; no effect when it is gone (RemoveSubscriptionRel). Its binding is kept
        in case it comes back."""
        stored = self._stored(rel)
        if stored is None:
            return
        _TABLE.delete(self.connection, _same(rel))
        if stored.table_id is not None:
            former = _FormerRel(
                stored.subid, stored.schema, stored.table, stored.table_id, stored.relid
            )
            if not _FORMER.update(self.connection, former):
                _FORMER.insert(self.connection, former)

    def delete_all(self, subid: int) -> None:
        """Remove all tables of a subscription, and the bindings of former ones."""
        _TABLE.delete(self.connection, _TABLE.c.srsubid == subid)
        _FORMER.delete(self.connection, _FORMER.c.srsubid == subid)

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> SubscriptionRel:
        """Record a transition (UpdateSubscriptionRelState). ``rel.state`` may be out of date.

        Raises UndefinedObject if the table was removed, even if it was added again since;
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
        _TABLE.update(self.connection, after)
        return after

    def park(self, rel: SubscriptionRel, error: RecordedError) -> SubscriptionRel:
        """Park a table (f, s or r -> p) and record the reason. Raises as ``set_state``."""
        after = replace(self.set_state(rel, SubscriptionRelState.PARKED, rel.lsn), error=error)
        _TABLE.update(self.connection, after)
        return after


def _same(rel: SubscriptionRel) -> ColumnElement[bool]:
    return and_(
        _TABLE.c.srsubid == rel.subid,
        _TABLE.c.srrelschema == rel.schema,
        _TABLE.c.srrelname == rel.table,
        _TABLE.c.srsyncid == rel.sync_id,
    )


# The progress of comparing subscriptions' tables with their publishers in the background. A table
# is compared range by range; a *pass* covers all its ranges. A row belongs to one membership of the
# table (``sync_id``): a table that is copied again, or comes back, begins anew. Details of each
# range are in the lake's table ``verifications``.


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The progress of one table. Times are seconds since 1970. ``began``: the start of the pass
    under way, None between passes. ``next_key``: the value of ``key_column`` at which the pass's
    next range begins. ``partial``: 1 if the pass has left columns out so far. ``result``: of the
    last comparison, which was at ``lsn``: ``equal``, ``partial`` or ``different``. ``checked``,
    ``verified``: the start of the last finished pass, and of the last that found all rows equal."""

    sync_id: Annotated[str, Column("sync_id", String(36), primary_key=True)]
    subid: Annotated[int, Column("subid", BigInteger, nullable=False)]
    began: Annotated[float | None, Column("began", Float(53))] = None
    next_key: Annotated[int | None, Column("next_key", BigInteger)] = None
    key_column: Annotated[str | None, Column("key_column", String(63))] = None
    partial: Annotated[int, Column("partial", BigInteger)] = 0
    result: Annotated[str | None, Column("result", String(9))] = None
    checked: Annotated[float | None, Column("checked", Float(53))] = None
    verified: Annotated[float | None, Column("verified", Float(53))] = None
    lsn: Annotated[Lsn | None, Column("lsn", LsnColumn)] = None


_VERIFICATIONS: Final = StoredTable("penstock_verification", TableVerification)


class Verifications(TableAccess):
    """The table, within one transaction."""

    def all(self) -> dict[str, TableVerification]:
        """Return the rows of all subscriptions, by the sync ids of their tables."""
        return {row.sync_id: row for row in _VERIFICATIONS.all(self.connection)}

    def save(self, row: TableVerification) -> None:
        """Write a row; it replaces the earlier row of its membership."""
        _VERIFICATIONS.delete(self.connection, _VERIFICATIONS.c.sync_id == row.sync_id)
        _VERIFICATIONS.insert(self.connection, row)

    def forget(self, subid: int) -> None:
        """Treat all tables of a subscription as never compared."""
        _VERIFICATIONS.delete(self.connection, _VERIFICATIONS.c.subid == subid)

    def forget_others(self, sync_ids: frozenset[str]) -> None:
        """Remove rows of memberships that have ended."""
        for sync_id in set(self.all()) - sync_ids:
            _VERIFICATIONS.delete(self.connection, _VERIFICATIONS.c.sync_id == sync_id)
