"""Watch the publisher's definitions on which stored values depend (relcache.c, inval.c).

A Relation message contains names and types. It does not report that a column was dropped and
another one added under its name, that ALTER TABLE computed new values, that a label of an enum was
renamed, that the table was out of the publication for an hour, or that a partition was emptied.
Then the publisher's rows differ from the copied rows, which do not change. So each followed table
has a ``Known``: the catalog numbers (OIDs, file nodes, xids) on which its rows here depend, and the
LSN at which they were read. A *look* reads them again

- when a session begins, to find changes made while the node was away,
- before the first row under each Relation message: the server sends a Relation message after every
  change of a table or of its publications,
- before each commit to a table with enums or composite types, which no message describes,
- when a change does not find its row,
- every few seconds.

A new type or name is sent with the table's next change, so such a difference waits for that change.
If the stream passes the difference without a change, the table gets an error.

Numbers are never reused, so no change is lost between two looks. pg_upgrade assigns some numbers
anew; ``carried_over`` first translates a table's ``Known`` to the new numbers. A difference took
effect between the last look and this one, and ends in one of three ways. It changes no row here and
is only noted; or the same change is made here, in place (a label, a constant in an added column);
or the table gets an error, which ``schema_change`` and ``on_table_error`` treat like others.

``walreceiver.table_definition`` makes the looks. This module compares them for the open targets and
returns errors of tables. ``in_place`` makes the changes in place.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from penstock.attribute import AttGenerated, Attribute
from penstock.catalog.pg_subscription import FOLLOWING, KEEP, WIDEN, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import PublisherUpgrade, alter
from penstock.errors import ConnectionFailure, ObjectInUse, PenstockError, SchemaChanged
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes import arrow_type
from penstock.pgtypes.pg_type import CIDR, INET, INT4, OID, REG_TYPES
from penstock.pipeline.columns import Integers
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.table_definition import (
    AttributeDefinition,
    CameWith,
    Definitions,
    LeafDefinition,
    Membership,
    PartitionLink,
    Raw,
    SeenTransactions,
    TableDefinition,
    TypeDefinition,
    WrittenSince,
    Xids,
    parse_definition,
    published_namesakes,
    read_definitions,
    rows_are_older,
    rows_came_between,
    rows_came_with,
    written_since,
)

log = logging.getLogger(__name__)

LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks at all tables."""

SAVE_INTERVAL: Final = 60.0
"""Seconds after which an unchanged ``Known`` is saved again, with the LSN of a newer look."""

_SHARE: Final = 50
"""The pause after a look as a multiple of its duration: looks take at most 1/50 of the time."""


_XIDS: Final = 2**32

_TRUNCATES: Final = 16
"""The number of a table's TRUNCATEs to remember. The next look comes before there are more."""


class FillKind(Enum):
    """The kind of value that an added column has in older rows at the publisher."""

    NULL = "null"
    CONSTANT = "constant"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fill:
    """The value of an added column in older rows. ``value``: a constant, as its type's text."""

    kind: FillKind
    value: str | None = None


NO_VALUE: Final = Fill(FillKind.NULL)
UNKNOWN: Final = Fill(FillKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Labels:
    """Renamed labels of enums, by column at the publisher. Rows here have the new names; changes up
    to ``until`` may have the old names. ``until`` moves on while a transaction older than ``xid``
    is open at the publisher."""

    until: Lsn
    xid: int
    renamed: Mapping[str, Mapping[str, str]]

    def ambiguous(self, column: str) -> Collection[str]:
        """Return the names that changes up to ``until`` may have for either of two labels. If
        several labels of an enum were renamed between two looks, one of them may have had another's
        former or later name in between."""
        renamed = self.renamed.get(column, {})
        return {*renamed, *renamed.values()} if len(renamed) > 1 else ()


@dataclass(frozen=True, slots=True)
class SentTruncate:
    """A TRUNCATE of a table that was sent, with the number of its transaction. ``filled``: this
    transaction has changed rows after it; ``next``: the lowest number from which on another one may
    have done so. A TRUNCATE of leaves removes these rows again, and is not sent."""

    xid: int
    filled: bool = False
    next: int | None = None

    def before(self, xids: Integers) -> SentTruncate:
        """Return it after these transactions have changed rows following it. One that had its
        number before the TRUNCATE may have done so at any time since."""
        known = [] if self.next is None else [self.next]
        away = (np.append(xids, known).astype(np.int64) - self.xid) % _XIDS
        others = np.where(away < _XIDS // 2, away, 1)[away != 0]
        following = None if not others.size else (self.xid + int(others.min())) % _XIDS
        return SentTruncate(self.xid, self.filled or bool((xids == self.xid).any()), following)

    def may_include(self, xid: int) -> bool:
        """Return whether ``xid`` may be a subtransaction of ``self.xid``: those are greater."""
        return _is_later(xid, self.xid)

    def is_newest_before(self, xid: int) -> bool:
        """Return whether no other transaction has changed rows before ``xid`` got its number."""
        return self.next is None or _is_later(self.next, xid)


def _is_later(xid: int, other: int) -> bool:
    return 0 < (xid - other) % _XIDS < _XIDS // 2


@dataclass(frozen=True, slots=True)
class PendingFile:
    """The new file node of a leaf, which the stream may still explain. ``seen``: the LSN of the
    first look that saw the file; ``survived``: a look has found rows in it that a TRUNCATE's own
    transaction wrote. Other transactions may have updated those rows since."""

    file: int
    seen: Lsn
    survived: bool


@dataclass(frozen=True, slots=True)
class Doubt:
    """A partition that was attached, perhaps with rows, as the stream has to tell. ``links``: the
    transactions that attached it; ``seen``: the look that found it so; ``xids``: the transactions
    of rows that may have come with it, without those that were sent since; None if nobody could
    read them. ``first``: the finish LSN of the first transaction that was sent with rows of it;
    ``since``: that of the first one from there on with a higher number than the links.

    ATTACH waits for all who have written to the partition. So a transaction from ``since`` on that
    was sent with rows of the root has written to the partition by the root."""

    name: str
    links: tuple[int, ...]
    seen: Lsn
    xids: frozenset[int] | None
    first: int | None = None
    since: int | None = None

    def after(self, first: int | None, sent: Collection[tuple[int, int]]) -> Doubt:
        """Return it after some transactions were sent with rows of the root. ``sent``: their finish
        LSNs and numbers; ``first``: the LSN of the first one that names the partition, or None."""
        if self.xids is None:
            return self
        first, since = first if self.first is None else self.first, self.since
        if since is None and first is not None:
            later = (lsn for lsn, xid in sent if all(_is_later(xid, link) for link in self.links))
            since = min((lsn for lsn in later if lsn >= first), default=None)
        known = frozenset(xid for lsn, xid in sent if since is not None and lsn >= since)
        return replace(self, xids=self.xids - known, first=first, since=since)


@dataclass(frozen=True)
class Known:
    """Definitions that the rows of a table here depend on. ``lsn``: the position of the look that
    found them; ``xid``: the oldest transaction that had not ended then. ``origins``: the
    publisher's column from which the values of each column here came; ``fills``: the fills of
    columns that were added since the copy, by number. ``left``: the table was found in no
    publication. ``labels``: labels that were renamed in rows here. ``truncated``: TRUNCATEs
    of the table that were sent since. ``attached``: partitions that were attached, perhaps
    with rows that have all been updated since, and the position up to which the stream has to be
    read to know. ``publications``: those of the subscription then. ``untold``: differences that the
    next change of the table tells, with the looks between which they took effect; they are reasons
    for an error if the stream gets past the second look without a change. ``pending``: new
    files of leaves that the stream may still account for. ``doubts``: new leaves whose rows the
    stream may still bring.
    """

    lsn: Lsn
    xid: int
    raw: Raw
    origins: Mapping[str, AttributeDefinition]
    fills: Mapping[int, Fill]
    left: bool = False
    labels: tuple[Labels, ...] = ()
    truncated: tuple[SentTruncate, ...] = ()
    attached: Mapping[str, Lsn] = field(default_factory=dict)
    publications: tuple[str, ...] = ()
    untold: Mapping[str, tuple[Lsn, Lsn]] = field(default_factory=dict)
    pending: Mapping[int, PendingFile] = field(default_factory=dict)
    doubts: Mapping[int, Doubt] = field(default_factory=dict)

    @cached_property
    def definition(self) -> TableDefinition:
        """The table's definition as of the last look."""
        return parse_definition(self.raw)

    def fill(self, name: str) -> Fill:
        """Return the fill of older rows in a newly published column. If the column existed before,
        its values are unknown."""
        column = self.definition.by_name.get(name)
        return UNKNOWN if column is None else self.fills.get(column.number, UNKNOWN)

    def text(self) -> str:
        """Return the JSON text for the state store."""
        kept = {name: origin.row() for name, origin in self.origins.items()}
        fills = {str(n): [fill.kind.value, fill.value] for n, fill in self.fills.items()}
        stored = {
            "lsn": str(self.lsn),
            "xid": self.xid,
            "raw": self.raw,
            "left": self.left,
            "origins": kept,
            "fills": fills,
            "labels": [[str(each.until), each.xid, each.renamed] for each in self.labels],
            "truncated": [[each.xid, each.filled, each.next] for each in self.truncated],
            "attached": {name: str(until) for name, until in self.attached.items()},
            "publications": self.publications,
            "untold": {reason: list(map(str, at)) for reason, at in self.untold.items()},
            "pending": [
                [oid, each.file, str(each.seen), each.survived]
                for oid, each in self.pending.items()
            ],
            "doubts": [
                [oid, of.name, of.links, str(of.seen), None if of.xids is None else sorted(of.xids)]
                for oid, of in self.doubts.items()
            ],
        }
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Known:
        """Parse the result of ``text``."""
        stored: dict[str, Any] = json.loads(text)
        return cls(
            Lsn.parse(stored["lsn"]),
            stored["xid"],
            stored["raw"],
            {name: AttributeDefinition.of_row(each) for name, each in stored["origins"].items()},
            {int(n): Fill(FillKind(kind), value) for n, (kind, value) in stored["fills"].items()},
            stored["left"],
            tuple(Labels(Lsn.parse(until), xid, each) for until, xid, each in stored["labels"]),
            tuple(SentTruncate(*each) for each in stored["truncated"]),
            {name: Lsn.parse(until) for name, until in stored["attached"].items()},
            tuple(stored["publications"]),
            {each: (Lsn.parse(a), Lsn.parse(b)) for each, (a, b) in stored["untold"].items()},
            {
                oid: PendingFile(file, Lsn.parse(seen), survived)
                for oid, file, seen, survived in stored.get("pending", ())
            },
            {
                oid: Doubt(
                    name, tuple(links), Lsn.parse(seen), None if xids is None else frozenset(xids)
                )
                for oid, name, links, seen, xids in stored.get("doubts", ())
            },
        )


def _fields(value: Membership | PartitionLink) -> list[object]:
    return [getattr(value, name) for name in value.__dataclass_fields__]


def first_known(found: Definitions, oid: int, held: Collection[str]) -> Known:
    """Return a ``Known`` from a table's definition. ``held``: the publisher's columns whose values
    rows here have."""
    raw = found.tables[oid]
    origins = {n: a for n, a in parse_definition(raw).by_name.items() if n in held}
    return Known(found.lsn, found.xid, raw, origins, {}, publications=found.publications)


@dataclass(frozen=True, slots=True)
class HeldColumns:
    """The columns of a table here that have the publisher's values. ``names``: their names at the
    publisher; ``local``: the names of columns that may have another type here; ``any_rows``:
    whether the table has rows, which would lack values of an added column."""

    names: frozenset[str]
    local: frozenset[str] = frozenset()
    any_rows: bool = True


@dataclass(frozen=True)
class LeafQuestions:
    """Questions that only rows can answer: see ``rows_came_with``, ``rows_are_older`` and
    ``rows_came_between``. None means that nobody can say before a lock is released.
    ``may_be_told``: tells whether the stream may still bring the TRUNCATE of the whole table that
    has given a leaf its file node. ``reached``: the position up to which it has brought everything;
    None if there is no stream to wait for."""

    came_with_rows: Callable[[int, Sequence[PartitionLink], int], CameWith | None]
    has_older_rows: Callable[[int, int], bool | None]
    has_rows_between: Callable[[int, int, int], bool | None] = lambda leaf, first, last: False
    may_be_told: Callable[[int, int], bool] = lambda leaf, filenode: False
    reached: Lsn | None = None


def questions(connection: Connection) -> LeafQuestions:
    """Return the questions, asked over a connection to the publisher."""
    return LeafQuestions(
        lambda leaf, links, ended: rows_came_with(connection, leaf, links, ended),
        lambda leaf, xid: rows_are_older(connection, leaf, xid),
        lambda leaf, first, last: rows_came_between(connection, leaf, first, last),
    )


@dataclass(frozen=True)
class Difference:
    """A difference that a look has found. ``known``: the definitions from now on; ``reasons``: why
    rows here differ from the publisher's; ``labels``: renamed labels of enums, by column;
    ``notices``: changes that concern later rows only, such as altered publications; ``pending``: by
    leaf, a reason that the stream may still remove, or None; ``survived``: pending leaves with rows
    from after they got their file. The difference took effect between the looks at ``since`` (None:
    the last one) and ``until``. ``renamed``: at the publisher, the table's name no longer belongs
    to the copied relation."""

    known: Known
    reasons: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    pending: Mapping[int, str | None] = field(default_factory=dict)
    survived: frozenset[int] = frozenset()
    since: Lsn | None = None
    until: Lsn | None = None
    renamed: bool = False


def compare(
    known: Known,
    found: Definitions,
    oid: int,
    held: HeldColumns,
    publications: Collection[str],
    leaves: LeafQuestions,
    *,
    widens: bool = False,
) -> Difference:
    """Compare a table with its ``Known``. ``publications``: the subscription's; ``widens``: assume
    that an ALTER TYPE to another type had no USING clause."""
    raw = found.tables[oid]
    before, now = known.definition, parse_definition(raw)
    known = replace(known, origins={**_added_since(before, held), **known.origins})
    rewrite = _Rewrite.between(known, now, oid, leaves)
    reasons = list(_changed_columns(known, now, held, rewrite, widens=widens))
    of_types = _changed_types(before, now, held)
    reasons += of_types.reasons
    reasons += _labels_again(known, now)
    fills = _fills(known, now, rewrite)
    reasons += _unsent_columns(now, fills, held)
    reasons += _not_logged(before, now)
    changed = _changed_leaves(known, now, found.until, leaves)
    reasons += changed.reasons
    left, gaps, notices = _changed_memberships(known, before, now, publications)
    notices = (*notices, *changed.notices)
    raw, between = changed.without_pending(raw, known.raw), (known.lsn, found.until)
    after = Known(
        found.lsn,
        known.xid if changed.pending else found.xid,  # pending changes are older than this look
        # a table that returns is compared with the memberships that it had until it left
        {**raw, "memberships": known.raw.get("memberships", [])} if left else raw,
        _origins(known, now, held),
        fills,
        left,
        _labels(known, found, of_types.coming),
        # kept until a look can see the TRUNCATE's transaction
        tuple(t for t in known.truncated if changed.pending or not found.seen.has([t.xid])),
        {**known.attached, **dict.fromkeys(changed.attached, found.until)},
        found.publications,
        {
            **dict.fromkeys(_retyped(known, now, held, rewrite, widens=widens), between),
            **known.untold,
        },
        doubts=changed.doubts,
    )
    reasons += gaps
    return Difference(
        after,
        tuple(reasons),
        of_types.here,
        notices,
        changed.pending,
        changed.survived,
        until=found.until,
    )


def _emptied(leaf: LeafDefinition) -> str:
    return f'Partition "{leaf.name}" was emptied'


def _labels(
    known: Known, found: Definitions, renamed: Mapping[str, Mapping[str, str]]
) -> tuple[Labels, ...]:
    """Return the renamed labels whose old names changes may still have. A transaction that was open
    at the last look may send old names until it ends."""
    earlier = (
        replace(each, until=found.until) if each.xid >= known.xid else each for each in known.labels
    )
    return (*earlier, *([Labels(found.until, found.seen.next_xid, renamed)] if renamed else []))


def _added_since(before: TableDefinition, held: HeldColumns) -> dict[str, AttributeDefinition]:
    """Return the publisher's columns, as the last look saw them, for columns added here since: that
    look found the fill of their rows."""
    return {name: column for name, column in before.by_name.items() if name in held.names}


def _origins(
    known: Known, now: TableDefinition, held: HeldColumns
) -> dict[str, AttributeDefinition]:
    """Return the publisher's columns of the columns here, by name. A dropped column is kept:
    another column may get its name before a change shows the drop."""
    columns = now.by_name
    origins = {}
    for name in held.names:
        origin, column = known.origins.get(name), columns.get(name)
        if column is not None and (origin is None or origin.number == column.number):
            origins[name] = column
        elif origin is not None:
            origins[name] = origin
    return origins


@dataclass(frozen=True)
class _Rewrite:
    """Answer whether ALTER TABLE has rewritten the rows to other files. ALTER TABLE makes another
    TOAST table; VACUUM FULL and CLUSTER keep it. Without a TOAST table the rows tell: ALTER TABLE
    writes all of them in its own transaction, VACUUM FULL keeps their transactions.

    ``certain``: some relation has another TOAST table; ``moved``: the relations without one that
    have another file; ``is_older``: asks whether one of these has rows from before the last
    look."""

    certain: bool
    moved: tuple[int, ...]
    is_older: Callable[[int], bool | None]

    @classmethod
    def between(
        cls, known: Known, now: TableDefinition, oid: int, leaves: LeafQuestions
    ) -> _Rewrite:
        """Compare the files of a table and of its leaves."""
        before = known.definition
        earlier = {leaf.oid: (leaf.filenode, leaf.toast) for leaf in before.leaves}
        earlier[oid] = before.filenode, before.toast
        files = {leaf.oid: (leaf.filenode, leaf.toast) for leaf in now.leaves}
        files[oid] = now.filenode, now.toast
        certain, moved = False, []
        for each, (file, toast) in files.items():
            file_before, toast_before = earlier.get(each, (file, toast))
            if file == file_before or (toast and toast == toast_before):
                continue
            certain = certain or bool(toast or toast_before)
            moved.append(each)
        return cls(certain, tuple(moved), lambda each: leaves.has_older_rows(each, known.xid))

    @cached_property
    def happened(self) -> bool:
        """Whether it has. Asks the publisher, if need be."""
        return self.certain or any(self.is_older(each) is not True for each in self.moved)


def _not_logged(before: TableDefinition, now: TableDefinition) -> Iterator[str]:
    """Yield a reason if the table was unlogged for a time. ALTER TABLE then makes another TOAST
    table without a change of a column. A table that is published by name cannot become unlogged."""
    rewritten = _has_other_toast(before, now) and _has_same_columns(before, now)
    named = any(m.kind == "t" and not m.relation for m in now.memberships)
    if rewritten and not named and before.memberships and now.memberships:
        yield "ALTER TABLE has rewritten it, as SET UNLOGGED and SET LOGGED do"


_Relation = TypeVar("_Relation", TableDefinition, LeafDefinition)


def _has_other_toast(before: _Relation, now: _Relation) -> bool:
    """Return whether a TOAST table was replaced, as no TRUNCATE does."""
    return bool(before.toast and now.toast and before.toast != now.toast)


def _has_same_columns(before: TableDefinition, now: TableDefinition) -> bool:
    return (before.columns, before.attributes) == (now.columns, now.attributes)


def _changed_columns(
    known: Known, now: TableDefinition, held: HeldColumns, rewrite: _Rewrite, *, widens: bool
) -> Iterator[str]:
    before, columns = known.definition, now.by_name
    for name in sorted(held.names):
        origin, column = known.origins.get(name), columns.get(name)
        if origin is None or column is None:
            continue  # the next Relation message shows that the column is gone
        if origin.number != column.number:
            yield f'Column "{name}" is another one: the former was dropped or renamed'
        elif column.attribute.generated and origin.expression != column.expression:
            yield f'Column "{name}" has another generation expression'
        elif _prints_otherwise(_base_of(origin, before), _base_of(column, now)):
            yield f'ALTER TABLE has given column "{name}" a type that prints values otherwise'
        elif (
            origin.changed != column.changed
            and not (widens and not origin.attribute.has_type_of(column.attribute))
            and (name in held.local or _keeps_type(origin.attribute, column.attribute))
            and rewrite.happened
        ):
            yield f'ALTER TABLE has computed new values for column "{name}"'


def _retyped(
    known: Known, now: TableDefinition, held: HeldColumns, rewrite: _Rewrite, *, widens: bool
) -> Iterator[str]:
    """Yield a reason for each column whose Delta type changes, too. The next change of the table
    has the new type."""
    columns = now.by_name
    for name in sorted(held.names - held.local):
        origin, column = known.origins.get(name), columns.get(name)
        if origin is None or column is None or origin.number != column.number:
            continue
        if (
            origin.changed != column.changed
            and not widens
            and not _keeps_type(origin.attribute, column.attribute)
            and rewrite.happened
        ):
            yield f'ALTER TABLE has given column "{name}" another type'


def _base_of(column: AttributeDefinition, table: TableDefinition) -> int:
    """Return a column's type without domains; a domain does not change the text of values."""
    return _under_domains(column.attribute.type_oid, {each.oid: each for each in table.types})


def _under_domains(oid: int, types: Mapping[int, TypeDefinition]) -> int:
    while oid in types and types[oid].kind == "d":
        oid = next(iter(types[oid].parts), 0)
    return oid


def _prints_otherwise(before: int, now: int) -> bool:
    """Return whether rows print other texts without a rewrite: a cidr prints the mask of every
    address, an inet does not; a number prints as a name under some new types."""
    if (before, now) == (CIDR, INET):
        return True
    numbers = {before, now} <= {*REG_TYPES, OID, INT4}
    return before != now and numbers and {before, now} != {OID, INT4}


def _keeps_type(origin: Attribute, column: Attribute) -> bool:
    """Return whether the Delta type is the same. If not, the Relation message shows the change."""
    before = arrow_type(origin.type_oid, origin.typmod)
    return bool(before.equals(arrow_type(column.type_oid, column.typmod)))


def _fills(known: Known, now: TableDefinition, rewrite: _Rewrite) -> dict[int, Fill]:
    before = known.definition
    files = {before.filenode, *(leaf.filenode for leaf in before.leaves)}
    # a new table's file has its OID as its number
    others = (leaf.filenode != leaf.oid and leaf.filenode not in files for leaf in now.leaves)
    rewritten = before.filenode != now.filenode or any(others)
    numbers = {a.number: a for a in before.attributes}
    whole = any(m.columns is None for m in before.memberships) and any(
        m.columns is None for m in now.memberships
    )
    fills = {}
    for column in now.attributes:
        earlier = numbers.get(column.number)
        if earlier is None:
            # rows may hold values of a column that was added, sent and dropped in between
            between = set(range(before.columns + 1, column.number))
            known_all = whole and between <= {each.number for each in now.attributes}
            unknown = rewritten or not known_all or column.attribute.generated
            fills[column.number] = UNKNOWN if unknown else _fill_of_new(column, before, now)
        elif (fill := known.fills.get(column.number)) is not None:
            computed = earlier.changed != column.changed and rewrite.happened
            fills[column.number] = UNKNOWN if computed else _as_of_now(fill, column, before, now)
    return fills


def _as_of_now(
    fill: Fill, column: AttributeDefinition, before: TableDefinition, now: TableDefinition
) -> Fill:
    """Return the present fill: a constant's text may change with its type."""
    types = {each.oid: each for each in now.types}
    changed = _TypeChanges.between(before, now).oids & _reached(column.attribute.type_oid, types)
    if fill.kind is not FillKind.CONSTANT or not changed:
        return fill
    return UNKNOWN if column.missing is None else Fill(FillKind.CONSTANT, column.missing)


def _unsent_columns(
    now: TableDefinition, fills: Mapping[int, Fill], held: HeldColumns
) -> Iterator[str]:
    """Yield a reason for each added column that no change has named yet and that may have values
    now."""
    lists = [m for m in now.memberships if m.columns is None]
    stored = any(m.generated == "s" for m in lists)
    for column in now.attributes:
        generated = column.attribute.generated
        published = lists and (not generated or (stored and generated is AttGenerated.STORED))
        new = published and column.attribute.name not in held.names and held.any_rows
        if new and fills.get(column.number) == UNKNOWN:
            yield f'Added column "{column.attribute.name}" has values that were not sent'


def _fill_of_new(
    column: AttributeDefinition, before: TableDefinition, now: TableDefinition
) -> Fill:
    """Return the fill of a column that got no values before this look. Partitions have the values
    of a partitioned table: one that was there has it, too, if its rows have."""
    values = {column.missing} if column.has_missing else set()
    for leaf in now.leaves:
        if column.attribute.name in leaf.missing:
            values.add(leaf.missing[column.attribute.name])
    if not values:
        return NO_VALUE
    lacking = any(
        column.attribute.name not in leaf.missing
        for leaf in now.leaves
        if leaf.oid in before.leaf_oids
    )
    value = values.pop()
    return UNKNOWN if values or lacking or value is None else Fill(FillKind.CONSTANT, value)


@dataclass(frozen=True)
class _TypeChanges:
    """Changes of types, by the types' OIDs. ``renamed``: the new names of labels, by old name;
    ``for_a_time``: a label that was renamed and has its old name again; ``shaped``: composite types
    with other attributes."""

    renamed: Mapping[int, dict[str, str]]
    for_a_time: Mapping[int, str]
    shaped: Collection[int]

    @property
    def oids(self) -> set[int]:
        """All types that have changed."""
        return {*self.renamed, *self.for_a_time, *self.shaped}

    @classmethod
    def between(cls, before: TableDefinition, now: TableDefinition) -> _TypeChanges:
        """Return the changes of types that the table had at both looks."""
        earlier = {each.oid: each for each in before.types}
        renamed: dict[int, dict[str, str]] = {}
        for_a_time: dict[int, str] = {}
        shaped = []
        for each in now.types:
            if (known := earlier.get(each.oid)) is None:
                continue
            if known.attributes != each.attributes:
                shaped.append(each.oid)
            marks = each.marks
            for oid, (label, place, xid) in known.marks.items():
                new, place_now, xid_now = marks.get(oid, (label, place, xid))
                if new != label:
                    renamed.setdefault(each.oid, {})[label] = new
                # A new place explains the new transaction: the labels were renumbered.
                elif xid_now != xid and place_now == place:
                    for_a_time[each.oid] = label
        return cls(renamed, for_a_time, shaped)


@dataclass(frozen=True)
class _LabelsAndReasons:
    """Changes of the types of a table's columns. ``here``: renamed labels, by columns of the table
    here; ``coming``: renamed labels, by all columns whose changes may have them; ``reasons``:
    changes that cannot be made in place."""

    here: dict[str, dict[str, str]]
    coming: dict[str, dict[str, str]]
    reasons: list[str]


def _changed_types(
    before: TableDefinition, now: TableDefinition, held: HeldColumns
) -> _LabelsAndReasons:
    changes = _TypeChanges.between(before, now)
    types = {each.oid: each for each in now.types}
    found = _LabelsAndReasons({}, {}, [])
    known = {column.number for column in before.attributes}
    whole = any(m.columns is None for m in now.memberships)
    for column in now.attributes:
        name, here = column.attribute.name, column.attribute.name in held.names
        uses = _reached(column.attribute.type_oid, types)
        if not here and not whole:
            continue
        if column.number not in known:
            if _later(column, [types[oid] for oid in uses], types):
                found.reasons.append(f'The type of added column "{name}" was altered since')
            continue
        if uses & set(changes.shaped):
            found.reasons.append(f'The composite type of column "{name}" has other attributes')
        for oid in sorted(uses & changes.for_a_time.keys()):
            label = changes.for_a_time[oid]
            found.reasons.append(
                f'Label "{label}" of the enum type of column "{name}" had another name for a time'
            )
        for oid in sorted(uses & changes.renamed.keys()):
            renamed = changes.renamed[oid]
            plain = _enum_of(column.attribute.type_oid, types) == oid
            again = {label for _, label in types[oid].labels}.intersection(renamed)
            if plain and not again and name not in held.local:
                found.coming[name] = renamed
                if here:
                    found.here[name] = renamed
            else:
                old, new = next(iter(renamed.items()))
                found.reasons.append(
                    f'Label "{old}" of the enum type of column "{name}" is "{new}" now'
                )
    return found


def _later(
    column: AttributeDefinition,
    uses: Collection[TypeDefinition],
    types: Mapping[int, TypeDefinition],
) -> bool:
    """Return whether a column's types were altered after the column was added, before any look saw
    it. If the column's own type is an enum, ``other_labels`` compares the enum's labels with those
    in changes."""
    return any(
        0 < (xid - column.changed) % _XIDS < _XIDS // 2
        for each in uses
        for xid in each.written
        if not (each.labels and _enum_of(column.attribute.type_oid, types) == each.oid)
    )


def _labels_again(known: Known, now: TableDefinition) -> Iterator[str]:
    """Yield a reason for each renamed label whose old name now belongs to another label: coming
    changes may mean either."""
    names = {label for each in now.types for _, label in each.labels}
    for labels in known.labels:
        for column, renamed in labels.renamed.items():
            yield from (
                f'Label "{old}" of the enum type of column "{column}" was renamed and made again'
                for old in renamed
                if old in names
            )


def _reached(oid: int, types: Mapping[int, TypeDefinition]) -> set[int]:
    found, due = set(), [oid]
    while due:
        each = due.pop()
        if each in types and each not in found:
            found.add(each)
            due += types[each].parts
            due += [kind for _, kind in types[each].attributes]
    return found


def _enum_of(oid: int, types: Mapping[int, TypeDefinition]) -> int | None:
    """Return the column's type if it is an enum or a domain over one, else None. Arrays of enums
    are kept as text here, and do not count."""
    oid = _under_domains(oid, types)
    return oid if oid in types and types[oid].labels else None


@dataclass(frozen=True)
class _LeafChanges:
    """Changes of partitions. ``notices``: changes that concern only later rows; ``attached``: names
    of partitions that have no row from before they were attached; ``pending``: possible reasons by
    leaf, where a TRUNCATE that is still to come may have given the leaf another file node, or
    nobody can read it now; None if one that was sent accounts for it; ``places``: tables whose new
    links belong to pending leaves; ``survived``: as of ``Difference``; ``doubts``: as of
    ``Known``."""

    reasons: tuple[str, ...]
    notices: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()
    pending: Mapping[int, str | None] = field(default_factory=dict)
    places: frozenset[int] = frozenset()
    survived: frozenset[int] = frozenset()
    doubts: Mapping[int, Doubt] = field(default_factory=dict)

    def without_pending(self, now: Raw, before: Raw) -> Raw:
        """Return ``now`` with the earlier state of pending leaves, so that the next look finds
        their changes again."""
        if not self.pending:
            return now
        kept = {
            kind: [each for each in now.get(kind, []) if each[0] not in which]
            + [each for each in before.get(kind, []) if each[0] in which]
            for kind, which in (
                ("leaves", {*self.pending}),
                ("links", {*self.pending, *self.places}),
            )
        }
        return {**now, **kept}


def _changed_leaves(
    known: Known, now: TableDefinition, until: Lsn, ask: LeafQuestions
) -> _LeafChanges:
    before = known.definition
    earlier = {leaf.oid: leaf for leaf in before.leaves}
    leaves = {leaf.oid: leaf for leaf in now.leaves}
    names = {oid: doubt.name for oid, doubt in known.doubts.items()}
    names |= {oid: leaf.name for oid, leaf in earlier.items()}
    gone = [name for oid, name in names.items() if oid not in leaves]
    reasons = [f'Partition "{name}" was dropped or detached' for name in gone]
    places = {(link.child, link.attached) for link in before.links}
    notices: list[str] = []
    attached: list[str] = []
    pending: dict[int, str | None] = {}
    doubts: dict[int, Doubt] = {}
    unsaid: set[int] = set()
    survived: set[int] = set()
    for oid, leaf in leaves.items():
        old = earlier.get(oid)
        new = [link for link in now.path(oid) if (link.child, link.attached) not in places]
        brought = [link for link in new if not link.born]
        if not leaf.logged and (old is None or old.logged):
            notices.append(f'changes of partition "{leaf.name}" are not sent, as it is not logged')
        if brought and old is not None:
            reasons.append(f'Partition "{leaf.name}" was detached and attached again')
        elif brought and (came := _came_with_rows(known, leaf, brought, until, ask)):
            if isinstance(came, str):
                reasons.append(came)
            else:
                doubts[oid] = came
                pending[oid] = f'Partition "{leaf.name}" was attached'
                unsaid.update(link.child for link in new)
        elif old is not None and leaf.logged and not old.logged:
            reasons.append(f'Partition "{leaf.name}" was not logged for a time')
        elif (
            old is not None
            and leaf.logged
            and _has_other_toast(old, leaf)
            and _has_same_columns(before, now)
            and ask.has_older_rows(oid, known.xid) is False
        ):
            rewritten = f'ALTER TABLE has rewritten partition "{leaf.name}"'
            reasons.append(f"{rewritten}, as SET UNLOGGED and SET LOGGED do")
        elif leaf.logged and _has_other_file(leaf, old, brought):
            emptied = _was_emptied(known, now, leaf, ask, seen=old is not None)
            if emptied is None:
                if rows := _have_rows_survived(known, now, leaf, ask):
                    survived.add(oid)
                sent = rows is None or _is_of_a_sent_truncate(known, leaf, survived=rows)
                pending[oid] = None if sent else _emptied(leaf)
                unsaid.update(link.child for link in new if brought)
            elif emptied:
                reasons.append(_emptied(leaf))
        if brought and old is None and oid not in pending:
            attached.append(leaf.name)
    told = tuple(reasons), tuple(notices), tuple(attached)
    return _LeafChanges(*told, pending, frozenset(unsaid), frozenset(survived), doubts)


def _came_with_rows(
    known: Known,
    leaf: LeafDefinition,
    links: Sequence[PartitionLink],
    until: Lsn,
    ask: LeafQuestions,
) -> str | Doubt | None:
    """Return the reason for an error if a new leaf has rows from before its links, or the doubt
    about that. ``until``: the position where the look ended."""
    with_rows = f'Partition "{leaf.name}" was attached with rows'
    places, doubt = tuple(link.attached for link in links), known.doubts.get(leaf.oid)
    if doubt is not None and doubt.links != places:
        return with_rows  # attached once more
    if doubt is None or doubt.xids is None:
        came = ask.came_with_rows(leaf.oid, links, known.xid)
        if came is not None and came.unread:
            return f'Partition "{leaf.name}" was attached, and its rows cannot be read'
        if came is not None and came.certain:
            return with_rows
        doubt = Doubt(leaf.name, places, until, None if came is None else came.xids)
    if doubt.xids is None:
        return doubt
    if not doubt.xids:
        return None
    return doubt if ask.reached is not None and doubt.seen > ask.reached else with_rows


def _has_other_file(
    leaf: LeafDefinition, old: LeafDefinition | None, brought: Sequence[PartitionLink]
) -> bool:
    """Return whether a leaf may have got a new file since the last look, or since it was attached.
    A new table's file has the table's OID as its number. An attached table may have got its file
    earlier: ATTACH writes its row in pg_class, and only a later write can mean a later file."""
    if old is not None:
        return leaf.filenode != old.filenode
    written = all(_is_later(leaf.changed, link.attached) for link in brought)
    return leaf.filenode != leaf.oid and written


def _was_emptied(
    known: Known, now: TableDefinition, leaf: LeafDefinition, ask: LeafQuestions, *, seen: bool
) -> bool | None:
    """Return whether a TRUNCATE that was not sent has emptied a leaf with another file. None if
    that cannot be known yet. ``seen``: a look has seen the leaf before.

    The leaf's row in pg_class was last written by the transaction of a TRUNCATE of the whole table,
    by a subtransaction of it, or by another change of the leaf. A TRUNCATE leaves no older rows.
    """
    if any(leaf.changed == sent.xid for sent in known.truncated):
        return False
    if (older := ask.has_older_rows(leaf.oid, known.xid) if seen else False) is True:
        return False
    candidates = [sent for sent in known.truncated if sent.may_include(leaf.changed)]
    kept = [ask.has_rows_between(leaf.oid, sent.xid, leaf.changed) for sent in candidates]
    if any(kept):
        return False
    if older is None or None in kept or ask.may_be_told(leaf.oid, leaf.filenode):
        return None
    rows = _have_rows_survived(known, now, leaf, ask)
    if rows is None:
        return None
    emptied = not _is_of_a_sent_truncate(known, leaf, survived=rows)
    if emptied:
        log.info(
            'partition "%s" has file %d since transaction %d, which none of %s explains (%s, %s)',
            *(leaf.name, leaf.filenode, leaf.changed, known.truncated),
            *(known.pending.get(leaf.oid), "some rows are left" if rows else "no rows are left"),
        )
    return emptied


def _is_of_a_sent_truncate(known: Known, leaf: LeafDefinition, *, survived: bool) -> bool:
    """Return whether a TRUNCATE of the whole table that was already sent explains a leaf's file.
    ``survived``: the result of ``_have_rows_survived``."""
    return any(
        sent.may_include(leaf.changed)
        and sent.is_newest_before(leaf.changed)
        and (survived or not sent.filled)
        for sent in known.truncated
    )


def _have_rows_survived(
    known: Known, now: TableDefinition, leaf: LeafDefinition, ask: LeafQuestions
) -> bool | None:
    """Return whether a look has found rows that a sent TRUNCATE's own transaction wrote to the leaf
    or to leaves changed together with it: nobody has emptied these leaves since. None if that
    cannot be known before a lock is released."""
    pending = known.pending.get(leaf.oid)
    if pending is not None and pending.file == leaf.filenode and pending.survived:
        return True
    after = (leaf.changed + 1) % _XIDS
    together = [each.oid for each in now.leaves if each.changed == leaf.changed]
    answers = [
        ask.has_rows_between(oid, sent.xid, after)
        for sent in known.truncated
        if sent.filled and sent.may_include(leaf.changed)
        for oid in together
    ]
    return None if None in answers and not any(answers) else any(answers)


def _changed_memberships(
    known: Known, before: TableDefinition, now: TableDefinition, publications: Collection[str]
) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Return whether the table is in no publication, why changes may be missing, and notices of
    publications that select other changes. The user decides which publications a subscription has,
    so publications added to or removed from it do not count."""
    if not now.memberships:
        gone = "it is in none of the subscription's publications any more"
        return True, (), () if known.left or not before.memberships else (gone,)
    if known.left:
        return False, ("For a time the table was in none of the publications",), ()
    gaps: list[str] = []
    notices: list[str] = []
    for entry in before.memberships:
        if entry in now.memberships or entry.name not in publications:
            continue
        if _covered(entry, before.memberships, now.memberships):
            continue
        gap, told = _changed_membership(entry, now.memberships)
        gaps += [] if gap is None else [gap]
        notices += [] if told is None else [told]
    for entry in now.memberships:
        named = (m.selects for m in before.memberships if m.name == entry.name)
        new = entry.selects not in named
        followed = entry.name in known.publications and entry.name in publications
        if new and followed and not _covered(entry, before.memberships, now.memberships):
            notices.append(_other_changes(entry))
    return False, tuple(gaps), tuple(dict.fromkeys(notices))


def _covered(
    entry: Membership, before: Collection[Membership], now: Collection[Membership]
) -> bool:
    """Return whether another publication published all changes of an entry at both looks."""
    return any(
        other in now
        and (other.columns, other.row_filter) == (None, None)
        and set(other.operations) >= set(entry.operations)
        for other in before
    )


def _other_changes(entry: Membership) -> str:
    return f'publication "{entry.name}" publishes other changes of it'


def _changed_membership(
    entry: Membership, now: Collection[Membership]
) -> tuple[str | None, str | None]:
    """Return why published changes of an entry may be missing, or else a notice. A change of the
    publication's owner does not matter, nor does a table's move under FOR ALL TABLES."""
    named = [other for other in now if other.name == entry.name]
    if any(other.publication != entry.publication for other in named):
        return f'Publication "{entry.name}" was dropped and created again', None
    for other in named:
        if (other.entry, other.kind) != (entry.entry, entry.kind):
            continue
        if other.relation != entry.relation and entry.kind != "a":
            continue
        if other.selects != entry.selects:
            return None, _other_changes(entry)
        if other.path != entry.path:
            return "The table was detached from its partitioned table and attached again", None
        if _was_moved(entry.placed, other.placed):
            what = "A partitioned table above it" if entry.relation else "The table"
            return f"{what} was in another schema, or had another name, for a time", None
        same = (other.owner, other.via_root) == (entry.owner, entry.via_root)
        if same and other.changed != entry.changed:
            return f'Publication "{entry.name}" was altered for a time', None
        return None, None
    if any(other.selects == entry.selects for other in named):
        return f'The table was dropped from publication "{entry.name}" and added again', None
    return None, _other_changes(entry)


def _was_moved(before: str, now: str) -> bool:
    """Return whether a table was moved or renamed between two looks. A change of its owner, which
    also writes the catalog row, does not count."""
    (moved, _, owner), (moved_now, _, owner_now) = before.partition(" "), now.partition(" ")
    return moved != moved_now and owner == owner_now


def carried_over(
    known: Known, oid: int, raw: Raw, upgrade: PublisherUpgrade, since: WrittenSince
) -> Known:
    """Return a table's ``Known`` in pg_upgrade's new numbers.

    pg_upgrade keeps OIDs of relations and types, file nodes, column numbers and xids. It gives
    publications other OIDs and restores every catalog row in transactions of its own, and the new
    version may store expressions differently. ``raw``: the present definition; ``since``: catalog
    rows written after the upgrade. All other rows are unchanged and take the new numbers; the rows
    written since stay unequal, so that ``compare`` finds them.
    """
    before, now = known.definition, parse_definition(raw)
    files = {oid: before.filenode, **{leaf.oid: leaf.filenode for leaf in before.leaves}}
    files_now = {oid: now.filenode, **{leaf.oid: leaf.filenode for leaf in now.leaves}}
    # A rewrite between the last look and pg_upgrade has replaced a file.
    rewritten = any(
        files[each] != files_now.get(each, files[each]) and each not in since.relations
        for each in files
    )
    columns = {column.number: column for column in now.attributes}

    def attribute(column: AttributeDefinition) -> AttributeDefinition:
        new = columns.get(column.number)
        if new is None or rewritten or since.has_written(new.changed):
            return column
        expression = new.expression if column.expression else ""
        return replace(column, changed=new.changed, expression=expression)

    links = {(link.child, link.parent): link for link in now.links}

    def place(link: PartitionLink) -> PartitionLink:
        new = links.get((link.child, link.parent))
        if new is None or since.has_written(new.attached):
            return link
        return replace(link, attached=new.attached, command=new.command)

    raw_now = {
        **known.raw,
        "attributes": [attribute(each).row() for each in before.attributes],
        "links": [_fields(place(each)) for each in before.links],
        "types": _carried_types(known.raw.get("types", ()), now, since),
        "memberships": [
            _fields(_membership(each, now.memberships, since)) for each in before.memberships
        ],
    }
    origins = {name: attribute(origin) for name, origin in known.origins.items()}
    # The old cluster sends no more changes, so none with old labels can come.
    return replace(
        known,
        lsn=upgrade.lsn,
        raw=raw_now,
        origins=origins,
        labels=(),
        truncated=(),
        attached={},
        doubts={},
    )


def _carried_types(
    types: Collection[Sequence[Any]], now: TableDefinition, since: WrittenSince
) -> list[list[Any]]:
    """Return the earlier types with the present xid and place of each label that was not written
    since."""
    kinds = {each.oid: each.marks for each in now.types}
    carried = []
    for oid, kind, parts, labels, attributes in types:
        marks = {
            n: each for n, each in kinds.get(oid, {}).items() if not since.has_written(each[2])
        }
        kept = [[n, label, *marks.get(n, (label, *at))[1:]] for n, label, *at in labels or ()]
        carried.append([oid, kind, parts, kept or None, attributes])
    return carried


def _membership(
    entry: Membership, memberships: Collection[Membership], since: WrittenSince
) -> Membership:
    """Return a membership in new numbers, unless its entry was created since."""
    for new in memberships:
        kept = new.publication not in since.publications
        if (new.name, new.kind, new.relation) != (entry.name, entry.kind, entry.relation):
            continue
        if new.entry in since.entries:
            return replace(entry, publication=new.publication) if kept else entry
        placed = _xids(new.placed)[:1]
        return replace(
            entry,
            publication=new.publication,
            entry=new.entry,
            changed=new.changed if kept else entry.changed,
            row_filter=new.row_filter if entry.row_filter else None,
            path=entry.path if any(map(since.has_written, _xids(new.path))) else new.path,
            placed=entry.placed if any(map(since.has_written, placed)) else new.placed,
        )
    return entry


def _xids(text: str) -> list[int]:
    return [int(xid) for xid in text.split()]


class WatchedTarget(Protocol):
    """The part of a target that the watch needs."""

    @property
    def rel(self) -> SubscriptionRel:
        """The target's row, bound to the publisher's relation."""

    @property
    def held(self) -> HeldColumns:
        """The columns with the publisher's values."""

    @property
    def marker(self) -> Lsn | None:
        """The LSN up to which the target has the publisher's changes."""


_Target = TypeVar("_Target", bound=WatchedTarget)

Save = Callable[[SubscriptionRel, str], object]


class DefinitionWatch:
    """The looks of one session. The applying thread uses them; ``applyparallelworker``'s thread
    calls only ``labels`` and ``has_partitions``."""

    def __init__(
        self, subscription: Subscription, save: Save, connect: Callable[[], Connection]
    ) -> None:
        """``save``: records a table's ``Known``. ``connect``: opens another connection to the
        publisher, while the stream uses the session's."""
        self._subscription = subscription
        self._save, self._connect = save, connect
        self._connection: Connection | None = None
        self._known: dict[str, Known] = {}
        self._seen: dict[str, SeenTransactions] = {}
        """The transactions visible to the last look at each table."""
        self._renamed: dict[tuple[str, tuple[str, str] | None], tuple[Lsn, Lsn]] = {}
        """The LSNs of the looks between which a table was renamed or dropped, by its sync id and
        new name: the difference counts once the stream has reached the second LSN."""
        self._leaf_seen: dict[tuple[str, int, int], Lsn] = {}
        """The LSN of the first look that saw a leaf's file, by table, leaf and file: a TRUNCATE of
        the whole table that gave the leaf this file is in the stream before this LSN."""
        self._pending: dict[str, Mapping[int, str | None]] = {}
        """Reasons for an error of a table, by leaf, which count if the stream sends no TRUNCATE
        that explains the leaf's file."""
        self._saved: dict[str, tuple[float, int]] = {}
        self._due = time.monotonic() + LOOK_INTERVAL
        self._told: set[tuple[str, str]] = set()
        """Notices, by table, that were logged and are not repeated."""
        self._since: WrittenSince | None = None
        self._blind = False
        """True if the publisher is a node, whose catalogs lack these numbers."""

    def close(self) -> None:
        """Close the connection for looks."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def begin(
        self, connection: Connection, targets: Sequence[_Target], applied: Lsn
    ) -> list[tuple[_Target, Difference]]:
        """Load each table's ``Known``, and look once by the session's own connection. A table
        without a ``Known`` is accepted as it is."""
        for target in targets:
            if target.rel.definition is not None:
                self._known[target.rel.sync_id] = Known.parse(target.rel.definition)
        found = self._look(connection, targets, applied)
        for target in targets:
            self._tell_of_unlogged(target)
        return found

    def _tell_of_unlogged(self, target: WatchedTarget) -> None:
        """Log the partitions whose changes are not in the publisher's WAL. A copy has their rows as
        of the copy."""
        known = self._known.get(target.rel.sync_id)
        names = [] if known is None else [e.name for e in known.definition.leaves if not e.logged]
        if names:
            log.warning(
                'table "%s" of subscription "%s": changes of unlogged partitions are not sent: %s. '
                "Run ALTER TABLE ... SET LOGGED on the publisher, then %s REFRESH TABLE",
                *(target.rel.qualified_name, self._subscription.name, ", ".join(names)),
                alter(self._subscription.name),
            )

    def covers(self, target: WatchedTarget, lsn: Lsn, xids: Xids) -> bool:
        """Return whether the last look at a table came after the publisher had reached ``lsn``, and
        could see the transactions ``xids``."""
        if self._blind or target.rel.relid is None:
            return True
        known, seen = self._known.get(target.rel.sync_id), self._seen.get(target.rel.sync_id)
        return known is not None and known.lsn >= lsn and seen is not None and seen.has(xids)

    def unseen(self, target: WatchedTarget, error: PenstockError, xids: Xids) -> ObjectInUse | None:
        """Return the error to raise instead of ``error`` if the last look at a table could not see
        sent transactions, whose definitions are therefore unknown."""
        seen = self._seen.get(target.rel.sync_id)
        if self._blind or seen is None or seen.has(xids):
            return None
        late = f" ({error.detail})" if error.detail else ""
        return ObjectInUse(
            f'the definition of relation "{target.rel.qualified_name}" cannot be read at the '
            "publisher yet",
            detail="A transaction that was sent is not visible there, as its COMMIT waits for a "
            f"synchronous standby. Until then this is not certain: {error.message}{late}",
            hint="If synchronous_standby_names at the publisher names this subscription, the two "
            "wait for each other. On the publisher: SELECT pg_cancel_backend(pid) FROM "
            "pg_stat_activity WHERE wait_event = 'SyncRep'; the transaction is committed then, and "
            "the subscription goes on by itself.",
        )

    @property
    def keeps_rows(self) -> bool:
        """True if rows stay as they are when no message describes their change."""
        return self._subscription.unsent_changes == KEEP

    def fill(self, target: WatchedTarget, column: str) -> Fill:
        """Return the fill of older rows in a newly published column."""
        known = self._known.get(target.rel.sync_id)
        return UNKNOWN if known is None else known.fill(column)

    def labels(self, target: WatchedTarget) -> tuple[Labels, ...]:
        """Return the renamed labels whose old names coming changes may still have."""
        known = self._known.get(target.rel.sync_id)
        return () if known is None else _coming(known, target)

    def has_partitions(self, target: WatchedTarget) -> bool:
        """Return whether a table has partitions at the publisher."""
        known = self._known.get(target.rel.sync_id)
        return known is not None and bool(known.definition.leaves or known.doubts)

    def has_own_types(self, target: WatchedTarget) -> bool:
        """Return whether a table has enums or composite types, whose labels and attributes the
        publisher's users can change without a message."""
        known = self._known.get(target.rel.sync_id)
        types = () if known is None else known.definition.types
        return any(each.labels or each.attributes for each in types)

    def enums(self, target: WatchedTarget, columns: Mapping[str, int]) -> dict[str, int]:
        """Return the OIDs of the columns' enums, by column. ``columns``: type OIDs by name."""
        known = self._known.get(target.rel.sync_id)
        types = {} if known is None else {each.oid: each for each in known.definition.types}
        found = {name: _enum_of(oid, types) for name, oid in columns.items()}
        return {name: oid for name, oid in found.items() if oid is not None}

    def other_labels(
        self, target: WatchedTarget, sent: Mapping[tuple[str, int], Collection[str]]
    ) -> SchemaChanged | None:
        """Return the error of a table whose changes have labels that the enum lacks: they were
        renamed between two looks, or before a look had seen the column. ``sent``: the labels in the
        changes, by column and enum. The last look came after these changes."""
        known = self._known.get(target.rel.sync_id)
        types = {} if known is None else {each.oid: each for each in known.definition.types}
        reasons = [
            f'Label "{label}" of the enum type of column "{column}" has another name now'
            for (column, oid), labels in sent.items()
            if oid in types
            for label in sorted(set(labels) - {name for _, name in types[oid].labels})
        ]
        if known is None or not reasons:
            return None
        return self.error(target, Difference(known, tuple(reasons)), once=True)

    def ambiguous_labels(
        self, target: WatchedTarget, sent: Mapping[tuple[str, int], Collection[str]]
    ) -> SchemaChanged | None:
        """Return the error of a table whose changes have labels that may mean either of two.
        ``sent``: the labels in the changes, by column and enum, as they were sent."""
        known = self._known.get(target.rel.sync_id)
        coming = self.labels(target)
        reasons = [
            f'Label "{label}" of the enum type of column "{column}" was renamed together with'
            " others, and changes may mean either of them"
            for (column, _), labels in sent.items()
            for label in sorted({n for each in coming for n in each.ambiguous(column)} & {*labels})
        ]
        if known is None or not reasons:
            return None
        return self.error(target, Difference(known, tuple(reasons)), once=True)

    def due(self) -> bool:
        """Return whether the next look at all tables is due."""
        return not self._blind and time.monotonic() >= self._due

    def look(
        self, targets: Sequence[_Target], applied: Lsn, xids: Xids = ()
    ) -> list[tuple[_Target, Difference]]:
        """Look at tables, and return their differences. ``applied``: the LSN up to which the stream
        is applied to tables without a later LSN of their own; ``xids``: sent transactions that the
        look has to see. Raises PublisherError, ConnectionFailure."""
        if self._blind or not targets:
            return []
        try:
            if self._connection is None or not self._connection.is_open:
                self._connection = self._connect()
            return self._look(self._connection, targets, applied, xids)
        except PenstockError:
            self.close()
            raise

    def look_at_all(
        self, targets: Sequence[_Target], applied: Lsn
    ) -> list[tuple[_Target, Difference]]:
        """Look as ``look`` does, and set when the next look is due. After a ConnectionFailure, only
        warn: a caller that depends on the result calls ``look`` itself."""
        began = time.monotonic()
        try:
            return self.look(targets, applied)
        except ConnectionFailure as error:
            log.warning("definitions at the publisher could not be read: %s", error.message)
            return []
        finally:
            ended = time.monotonic()
            self._due = ended + max(LOOK_INTERVAL, _SHARE * (ended - began))

    def awaits_look(self, target: WatchedTarget) -> bool:
        """Return whether a TRUNCATE of a table was sent after the last look."""
        known = self._known.get(target.rel.sync_id)
        return known is not None and bool(known.truncated)

    def truncated(
        self,
        target: WatchedTarget,
        truncates: Sequence[tuple[int, int]],
        rows: tuple[Integers, Integers],
    ) -> None:
        """Note sent TRUNCATEs and row changes of a table before they are applied. ``truncates``:
        the sequence number and xid of each TRUNCATE; ``rows``: those of the row changes."""
        known = self._known.get(target.rel.sync_id)
        if known is None or not known.definition.leaves:
            return
        places, xids = rows
        noted = {sent.xid: sent.before(xids) for sent in known.truncated}
        for place, xid in truncates:
            noted.pop(xid, None)
            noted[xid] = SentTruncate(xid).before(xids[places > place])
        known = replace(known, truncated=tuple(noted.values())[-_TRUNCATES:])
        self.accept(target, Difference(known))

    def has_doubts(self, target: WatchedTarget) -> bool:
        """Return whether the stream has to tell of rows in partitions of a table."""
        known = self._known.get(target.rel.sync_id)
        return known is not None and bool(known.doubts)

    def told(
        self, target: WatchedTarget, first: Mapping[int, int], sent: Collection[tuple[int, int]]
    ) -> None:
        """Note transactions with rows of a table, before they are applied. ``sent``: their finish
        LSNs and numbers; ``first``: by leaf, the finish LSN of the first one that names it."""
        sync_id = target.rel.sync_id
        known = self._known.get(sync_id)
        if known is None or not known.doubts:
            return
        doubts = {oid: doubt.after(first.get(oid), sent) for oid, doubt in known.doubts.items()}
        if doubts == known.doubts:
            return
        settled = {oid: doubt for oid, doubt in doubts.items() if doubt.xids == frozenset()}
        self._pending[sync_id] = {
            oid: None if oid in settled else reason
            for oid, reason in self._pending.get(sync_id, {}).items()
        }
        attached = {doubt.name: doubt.seen for doubt in settled.values()}
        known = replace(known, doubts=doubts, attached={**known.attached, **attached})
        self.accept(target, Difference(known))

    def sent(self, target: WatchedTarget, leaf: int, name: str) -> SchemaChanged | None:
        """Return the error of a table with changes of a partition that no look has found: the
        partition was created and dropped between two looks. The last look came later."""
        known = self._known.get(target.rel.sync_id)
        # Relation messages of a root and its leaf are adjacent. So are those of any two tables if
        # a change between the messages was rolled back.
        if known is None or known.definition.filenode:
            return None
        if leaf in self._pending.get(target.rel.sync_id, {}):
            return None
        if leaf in known.definition.leaf_oids:
            return None
        reason = f'Partition "{name}" was dropped or detached'
        return self.error(target, Difference(known, (reason,)), once=True)

    def unproven(self, target: WatchedTarget) -> SchemaChanged | None:
        """Return the error of a table with a conflict that a partition explains: the partition may
        have been attached with rows that have all been updated since, or was emptied."""
        known = self._known.get(target.rel.sync_id)
        if known is None:
            return None
        marker = target.marker or INVALID
        attached = (name for name, until in known.attached.items() if until > marker)
        reasons = [f'Partition "{name}" was attached with rows' for name in attached]
        reasons += filter(None, self._pending.get(target.rel.sync_id, {}).values())
        return self.error(target, Difference(known, tuple(reasons)), once=True) if reasons else None

    def accept(self, target: WatchedTarget, difference: Difference) -> None:
        """Accept a difference, which the rows here now match. Save the table's ``Known`` if it has
        changed."""
        before, marker = self._known.get(target.rel.sync_id), target.marker or INVALID
        known = difference.known
        attached = {name: until for name, until in known.attached.items() if until > marker}
        known = replace(known, labels=_coming(known, target), attached=attached)
        self._known[target.rel.sync_id] = known
        now, sync_id = time.monotonic(), target.rel.sync_id
        when, xid = self._saved.get(sync_id, (-SAVE_INTERVAL, None))
        # Rows are compared with the look's xid, even after a restart. So a newer look is saved
        # from time to time.
        asked = bool(known.definition.leaves or known.labels)
        old = asked and xid != known.xid and now >= when + SAVE_INTERVAL
        if before is None or _stored(before) != _stored(known) or old:
            self._save(target.rel, known.text())
            self._saved[sync_id] = now, known.xid

    def _look(
        self,
        connection: Connection,
        targets: Sequence[_Target],
        applied: Lsn,
        xids: Xids = (),
    ) -> list[tuple[_Target, Difference]]:
        oids = {t.rel.relid: t for t in targets if t.rel.relid is not None}
        found = read_definitions(connection, self._subscription.publications, list(oids), xids)
        if found is None:
            self._blind = True
            return []
        differences = self._named_anew(connection, found, oids, applied)
        for oid, target in oids.items():
            ask = self._questions(connection, target, found.until, applied)
            self._seen[target.rel.sync_id] = found.seen
            if oid not in found.tables:
                continue  # dropped: its rows stay, as a subscriber's do
            known = self._known_of(connection, target, found)
            if known is None:
                first = first_known(found, oid, target.held.names)
                self.accept(target, Difference(first))
                continue
            publications = self._subscription.publications
            widens = self._subscription.schema_change == WIDEN
            difference = compare(known, found, oid, target.held, publications, ask, widens=widens)
            difference = _with_untold(difference, _told_upto(target, applied))
            difference = self._with_pending(target, difference)
            self._pending[target.rel.sync_id] = difference.pending
            if difference.reasons or difference.labels or difference.notices:
                differences.append((target, difference))
            else:
                self.accept(target, difference)
        return differences

    def _with_pending(self, target: WatchedTarget, difference: Difference) -> Difference:
        """Return a difference with the first look that saw each pending leaf's file. Otherwise each
        session, however short, would wait until the stream has reached its own look."""
        pending = {
            leaf: PendingFile(file, seen, leaf in difference.survived)
            for (sync_id, leaf, file), seen in self._leaf_seen.items()
            if sync_id == target.rel.sync_id and leaf in difference.pending
        }
        return replace(difference, known=replace(difference.known, pending=pending))

    def _known_of(
        self, connection: Connection, target: WatchedTarget, found: Definitions
    ) -> Known | None:
        """Return a table's ``Known``, translated to new numbers if pg_upgrade has run since."""
        known, upgrade = self._known.get(target.rel.sync_id), self._subscription.upgraded
        oid = target.rel.relid
        if known is None or upgrade is None or known.lsn >= upgrade.lsn or oid is None:
            return known
        if self._since is None:
            self._since = written_since(connection, upgrade.xid, _relations(found))
        known = carried_over(known, oid, found.tables[oid], upgrade, self._since)
        self._known[target.rel.sync_id] = known
        self._save(target.rel, known.text())
        return known

    def _named_anew(
        self,
        connection: Connection,
        found: Definitions,
        oids: Mapping[int, _Target],
        applied: Lsn,
    ) -> list[tuple[_Target, Difference]]:
        """Return the differences of tables that were renamed at the publisher, or dropped and
        replaced by another table of that name, once the stream is past the look that found it."""
        gone = [target for oid, target in oids.items() if oid not in found.tables]
        names = {target.rel.table_name for target in gone}
        publications = self._subscription.publications
        taken = published_namesakes(connection, publications, names) if names else ()
        differences = []
        for oid, target in oids.items():
            sync_id, name = target.rel.sync_id, target.rel.table_name
            known, raw = self._known.get(sync_id), found.tables.get(oid)
            now = None if raw is None else parse_definition(raw).name
            if known is None or now == name or (now is None and name not in taken):
                continue
            between = (known.lsn, found.until)
            since, seen = self._renamed.setdefault((sync_id, now), between)
            if seen <= _told_upto(target, applied):
                reason = (
                    "The table was dropped, and another one has its name"
                    if now is None
                    else f'The table was renamed to "{now[0]}.{now[1]}"'
                )
                known = replace(known, lsn=found.lsn)
                differences.append(
                    (target, Difference(known, (reason,), since=since, until=seen, renamed=True))
                )
        return differences

    def _questions(
        self, connection: Connection, target: WatchedTarget, until: Lsn, applied: Lsn
    ) -> LeafQuestions:
        sync_id, reached = target.rel.sync_id, _told_upto(target, applied)

        table = self._known.get(sync_id)
        pending = {} if table is None else table.pending

        def may_be_told(leaf: int, filenode: int) -> bool:
            known = pending.get(leaf)
            first = until if known is None or known.file != filenode else known.seen
            return self._leaf_seen.setdefault((sync_id, leaf, filenode), first) > reached

        upgrade = self._subscription.upgraded

        def came(leaf: int, links: Sequence[PartitionLink], ended: int) -> CameWith | None:
            # pg_upgrade has made all partitions of its time anew, with the rows that they had
            restored = upgrade is not None and not all(
                _is_later(link.attached, upgrade.xid) for link in links
            )
            if restored:
                links = [replace(link, made=False) for link in links]
            return rows_came_with(connection, leaf, links, ended)

        return replace(
            questions(connection), came_with_rows=came, may_be_told=may_be_told, reached=reached
        )

    def error(
        self, target: WatchedTarget, difference: Difference, *, once: bool = False
    ) -> SchemaChanged | None:
        """Return the error that stops or parks the table, or causes another copy. Return None and
        log a message if the difference concerns only later rows, or rows are to stay as they are.
        ``once``: every batch finds the difference, so log it only once."""
        follows = self._subscription.schema_change in FOLLOWING
        reasons = difference.reasons or (difference.notices if follows else ())
        known, name = self._known[target.rel.sync_id], target.rel.qualified_name
        since = difference.since or known.lsn
        until = difference.until or difference.known.lsn
        between = f"between {since} and {until}" if since < until else f"before {until}"
        stays = difference.known.left and not difference.reasons
        if reasons and not stays and not self.keeps_rows:
            text = ". ".join(reason[0].upper() + reason[1:] for reason in reasons)
            return SchemaChanged(
                f'relation "{name}" was changed at the publisher in a way that its changes do not '
                "tell",
                detail=f"{text}. That took effect {between}.",
                hint=None if difference.renamed else keep_hint(self._subscription.name),
            )
        kept = difference.reasons if self.keeps_rows else ()
        for notice in (*kept, *difference.notices):
            if once or difference.renamed:
                if (target.rel.sync_id, notice) in self._told:
                    continue
                self._told.add((target.rel.sync_id, notice))
            log.warning(
                'table "%s" of subscription "%s": %s (%s); rows from before stay as they are. '
                "%s REFRESH PUBLICATION, or REFRESH TABLE for a new copy",
                *(name, self._subscription.name, notice, between),
                alter(self._subscription.name),
            )
        return None


def keep_hint(subscription: str) -> str:
    """Return the hint that says how to keep the present rows."""
    return (
        "To keep the rows here as they are, now and whenever no change tells of others: "
        f"{alter(subscription)} SET (unsent_changes = keep), and then {alter(subscription)} ENABLE."
    )


def _told_upto(target: WatchedTarget, applied: Lsn) -> Lsn:
    """Return the LSN that the stream has reached for a table."""
    return max(applied, target.marker or INVALID)


def _with_untold(difference: Difference, reached: Lsn) -> Difference:
    """Return a difference plus the ``untold`` reasons that the stream has passed without a change
    that shows them."""
    untold = difference.known.untold
    due = {reason: since for reason, (since, seen) in untold.items() if seen <= reached}
    if not due:
        return difference
    known = replace(
        difference.known, untold={each: at for each, at in untold.items() if each not in due}
    )
    reasons = (*difference.reasons, *due)
    return replace(difference, known=known, reasons=reasons, since=min(due.values()))


def _relations(found: Definitions) -> set[int]:
    leaves = (leaf.oid for raw in found.tables.values() for leaf in parse_definition(raw).leaves)
    return {*found.tables, *leaves}


def _coming(known: Known, target: WatchedTarget) -> tuple[Labels, ...]:
    """Return the renamed labels whose old names changes may still have: not all changes up to
    ``until`` are applied, or one of their transactions was open at the last look."""
    marker = target.marker or INVALID
    return tuple(each for each in known.labels if each.until > marker or each.xid > known.xid)


def _stored(known: Known) -> Known:
    """Return the part of ``known`` that decides whether it is saved again."""
    return replace(known, lsn=INVALID, xid=0)
