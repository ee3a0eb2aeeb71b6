"""``Node.verify``: compare each table of a subscription with the publisher's, at one LSN.

A running node must follow the subscription. The result has, for each table, the counts of rows on
both sides and the differences. Four steps bring both sides to the same moment:

1. ask the worker to go no further than the publisher's present position
   (``subscription.cut_requests``);
2. make a temporary slot, which gives a snapshot of the publisher and its LSN;
3. ask the worker for a cut at this LSN, after which the worker waits;
4. note the newest versions of the tables, and let the worker continue.

Rows are compared afterwards, at that snapshot and those versions, while both sides are written. The
newest versions are taken, not the cut's: if another writer has changed a table since, the next cut
will have that damage. A table should hold what its initial copy would bring. Its columns, row
filters and partitions are therefore the publications' (``walreceiver.table_info``).
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import alter, check_identity
from penstock.errors import (
    ConnectionFailure,
    NotInPrerequisiteState,
    PenstockError,
    StateMismatch,
)
from penstock.identifiers import quote_literal
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pipeline.compare_tables import (
    CompareProgress,
    Comparison,
    RowDifference,
    TableDifference,
    compared_columns,
)
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.partition_tree import routing_of
from penstock.pipeline.parts import Leaves
from penstock.pipeline.table_copy import CopyOptions, CopySource
from penstock.relation import TableName, qualified
from penstock.sqlstate import UndefinedTable
from penstock.subscription.consistency import server_identity
from penstock.subscription.cut_requests import LONGEST_HOLD_S
from penstock.subscription.partitions import check_columns, open_leaf
from penstock.subscription.replica_identity import living
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import WRITING, sync_slot_prefix
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.table_info import RemoteTable
from penstock.walreceiver.table_locks import LockMessages, TableLocks

# Results of a comparison with the publisher (``verify``), and their one JSON form. ``cli.verify``
# shows them.

EQUAL: Final = "equal"
PARTIAL: Final = "partial"
"""Equal in the columns that were compared, but not all columns were."""
DIFFERENT: Final = "different"


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result for one table. ``reason``: why it was not compared, None if it was. ``lacking``:
    published columns that the node's table lacks, or that were left out for another reason.
    ``by_design``: differences that unpublished operations explain were dropped."""

    name: str
    reason: str | None = None
    difference: TableDifference | None = None
    lacking: tuple[str, ...] = ()
    by_design: bool = False

    @property
    def result(self) -> str | None:
        """One of EQUAL, PARTIAL and DIFFERENT; None if the table was not compared."""
        if self.difference is None:
            return None
        if self.difference.kinds:
            return DIFFERENT
        return PARTIAL if self.lacking or self.by_design else EQUAL

    @property
    def equal(self) -> bool:
        """Tell whether the table was compared whole and nothing differs."""
        return self.result == EQUAL

    @property
    def partial(self) -> bool:
        """Tell whether nothing differs, but not all of the table was compared."""
        return self.result == PARTIAL


@dataclass(frozen=True, slots=True)
class Verification:
    """The results for a subscription's tables at ``lsn``."""

    subscription: str
    lsn: Lsn
    tables: tuple[VerifiedTable, ...]

    @property
    def equal(self) -> bool:
        """Tell whether all tables were compared whole and are equal."""
        return all(table.equal for table in self.tables)

    @property
    def partial(self) -> bool:
        """Tell whether no table differs, but some were not compared whole."""
        return not self.equal and all(table.equal or table.partial for table in self.tables)


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of a comparison. ``doing``: the present step, in words; ``rows``: the rows
    compared so far, once comparing has begun."""

    subscription: str
    doing: str
    rows: CompareProgress | None = None


def as_json(verification: Verification) -> dict[str, Any]:
    """Return the whole result as JSON, for programs."""
    return {
        "subscription": verification.subscription,
        "lsn": str(verification.lsn),
        "equal": verification.equal,
        "tables": [_table_json(table) for table in verification.tables],
    }


def _table_json(table: VerifiedTable) -> dict[str, Any]:
    found = table.difference
    return {
        "name": table.name,
        "equal": table.equal,
        "result": table.result,
        "not_compared": table.reason,
        "lacking_columns": list(table.lacking),
        "publisher_rows": found and found.publisher_rows,
        "node_rows": found and found.node_rows,
        "differences": dict(found.kinds) if found else {},
        "all_differences_counted": found and found.whole,
        "examples": [_example_json(example) for example in found.examples] if found else [],
    }


def _example_json(example: RowDifference) -> dict[str, Any]:
    return {**asdict(example), "key": dict(example.key), "columns": list(example.columns)}


def row_text(example: RowDifference) -> str:
    """Return a row's key and the columns in which it differs, in words."""
    key = ", ".join(f"{name} = {_value(text)}" for name, text in example.key)
    times = f" ({example.count:,} times)" if example.count > 1 else ""
    columns = f" in {', '.join(example.columns)}" if example.columns else ""
    return f"{key}{columns}{times}"


def _value(text: str | None) -> str:
    return "NULL" if text is None else quote_literal(text)


_AGAIN: Final = "Run penstock verify again."
_MESSAGES: Final = LockMessages(
    locked='could not lock table "{table}" to compare it',
    changed='table "{table}" was changed when the comparison began',
    waited_for='the comparison of table "{table}" makes way',
    later=_AGAIN,
    again=_AGAIN,
)
_LOCK_PATIENCE: Final = "1s"
_POLL_S: Final = 0.1
_SLOT_S: Final = LONGEST_HOLD_S - 10
"""Seconds within which the publisher must make the slot, since the worker waits meanwhile."""

_NOT_READY: Final[Mapping[SubscriptionRelState, str]] = {
    SubscriptionRelState.PARKED: "it is parked: an error keeps it from following",
    SubscriptionRelState.INIT: "its initial copy has not begun",
    SubscriptionRelState.DATASYNC: "its initial copy has not finished",
}
_BY_DESIGN: Final[Mapping[str, frozenset[str]]] = {
    "insert": frozenset({"missing"}),
    "update": frozenset({"different", "missing", "extra", "doubled"}),  # keys change, too
    "delete": frozenset({"extra", "doubled"}),
    "truncate": frozenset({"extra", "doubled"}),
}
"""The kinds of differences that arise when no publication publishes an operation."""
_NOT_A_MEMBER: Final = "the subscription does not have it yet"
_NOT_IN_CUTS: Final = "it is in no cut yet"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a comparison. ``examples``: the number of rows named for each kind of difference
    and table. ``timeout``: seconds within which the node must reach the publisher's position.
    ``connections``: sessions that read at the publisher."""

    examples: int = 10
    timeout: float = 300.0
    connections: int = 4
    progress: Callable[[VerifyProgress], None] = lambda progress: None


Ranges = Mapping[TableName, KeyRange | None]
"""The tables to compare, with the range of their rows; None: all rows."""


@dataclass(frozen=True, slots=True)
class InBackground:
    """The settings of a comparison in the background, where nobody waits for the answer.

    ``choose`` selects tables and ranges of rows among the tables that can be compared. ``request``:
    the cut request's id, by which a request left by a crash is found. ``slot_s``: seconds within
    which the publisher must make the slot. Columns that are known to lack values are left out, and
    so are differences that arise because publications leave out operations.
    """

    choose: Callable[[Publisher, Mapping[TableName, RemoteTable]], Ranges]
    request: str
    slot_s: float = 5.0


class Verifier:
    """The comparison of one subscription; call ``run`` once. ``check`` raises if the node does not
    work on the subscription."""

    def __init__(
        self,
        subscription: Subscription,
        catalog: Catalog,
        warehouse: Warehouse,
        spark: Spark,
        check: Callable[[], None],
        options: VerifyOptions,
        copy: CopyOptions,
        background: InBackground | None = None,
    ) -> None:
        """Prepare a comparison. ``copy``: how tables are divided into parts, as for an initial
        copy."""
        self._background = background
        self._subscription = subscription
        self._catalog = catalog
        self._warehouse = warehouse
        self._spark = spark
        self._check = check
        self._options = options
        self._copy = copy

    def run(self, wanted: Sequence[TableName] = ()) -> Verification:
        """Compare the tables ``wanted``, or all without it. Raises UndefinedObject,
        ConnectionFailure, PublisherError ...; NotInPrerequisiteState if the node does not follow,
        or lags."""
        rels = self._rels(wanted)
        self._check()
        try:
            return self._run(rels, wanted)
        except ConnectionFailure as error:
            raise error.changed(hint=_AGAIN) from error

    def _rels(self, wanted: Sequence[TableName]) -> list[SubscriptionRel]:
        known = {rel.table_name: rel for rel in self._catalog.relations(self._subscription.oid)}
        for name in wanted:
            if name not in known:
                raise UndefinedTable(
                    f'table "{qualified(*name)}" is not part of subscription '
                    f'"{self._subscription.name}"'
                )
        return [known[name] for name in sorted(wanted or known)]

    def _run(self, rels: Sequence[SubscriptionRel], wanted: Sequence[TableName]) -> Verification:
        subscription = self._subscription
        conninfo = ConnInfo.parse(subscription.conninfo)
        slot = f"{sync_slot_prefix(subscription.app_id, 'verify')}{uuid.uuid4().hex[:12]}"
        with (
            Publisher.connect(conninfo, slot, lock_timeout=_LOCK_PATIENCE) as publisher,
            TableLocks(conninfo, slot, self._check, _MESSAGES) as locks,
            SnapshotHolder(conninfo, slot, check_server=self._check_server) as holder,
        ):
            publisher.connection.interrupt = self._check
            self._check_server(publisher.connection)
            results: dict[TableName, VerifiedTable] = {}
            infos = self._published(rels, wanted, publisher, locks, results)
            left_out: Mapping[TableName, frozenset[str]] = {}
            ranges: Ranges = dict.fromkeys(infos)
            if self._background is not None:
                left_out = publisher.operations_left_out(subscription.publications)
                ranges = self._background.choose(publisher, infos)
                infos = {name: infos[name] for name in ranges}
                if not infos:
                    return Verification(self._subscription.name, INVALID, tuple(results.values()))
            snapshot_name, cut, sources = self._same_moment(infos, publisher, holder, results)
            refused = locks.hold(snapshot_name, list(sources), publisher.connection)
            for name, error in refused.items():
                del sources[name]
                results[name] = _not_compared(name, error)

            passed: dict[TableName, PenstockError] = {}

            def check() -> None:
                holder.check()
                locks.check()
                passed.update(locks.let_pass(publisher.connection))

            sources = {n: replace(source, rows=ranges[n]) for n, source in sources.items()}
            comparison = Comparison(
                self._spark,
                conninfo=conninfo,
                snapshot_name=snapshot_name,
                options=self._copy,
                progress=self._comparing,
                check=check,
            )
            found = comparison.run(list(sources.values()), examples=self._options.examples)
            for (name, source), one in zip(sources.items(), found, strict=True):
                table = _verified(name, source, infos[name], passed.get(name, one))
                results[name] = _without_kinds(table, left_out.get(name, frozenset()))
        ordered = tuple(results[name] for name in sorted(results))
        return Verification(subscription.name, cut.lsn, ordered)

    def _check_server(self, connection: Connection) -> None:
        subscription = self._subscription
        check_identity(subscription.name, subscription.publisher, server_identity(connection))

    def _published(
        self,
        rels: Sequence[SubscriptionRel],
        wanted: Sequence[TableName],
        publisher: Publisher,
        locks: TableLocks,
        results: dict[TableName, VerifiedTable],
    ) -> dict[TableName, RemoteTable]:
        """Return the publisher's definitions of the tables that can be compared. Put the reasons
        why others cannot into ``results``."""
        published = publisher.tables(self._subscription.publications)
        if not wanted and self._background is None:
            for name in set(published) - {rel.table_name for rel in rels}:
                results[name] = VerifiedTable(qualified(*name), _NOT_A_MEMBER)
        for rel in rels:
            reason = _NOT_READY.get(rel.state)
            if rel.table_name not in published:
                reason = "the publications do not have it (any more)"
            if reason is not None:
                results[rel.table_name] = VerifiedTable(rel.qualified_name, reason)
        names = [rel.table_name for rel in rels if rel.table_name not in results]
        for name, error in locks.look(names).items() if names else ():
            results[name] = _not_compared(name, error)
        infos: dict[TableName, RemoteTable] = {}
        for name in names:
            if name in results:
                continue
            try:
                infos[name] = publisher.table_info(self._subscription.publications, *name)
            except ConnectionFailure:
                raise
            except PenstockError as error:
                results[name] = _not_compared(name, error)
        return infos

    def _same_moment(
        self,
        infos: Mapping[TableName, RemoteTable],
        publisher: Publisher,
        holder: SnapshotHolder,
        results: dict[TableName, VerifiedTable],
    ) -> tuple[str, Cut, dict[TableName, CopySource]]:
        """Return a snapshot, the cut at its LSN, and the tables as they were at that LSN."""
        self._say("waiting for a slot on the publisher")
        began = time.monotonic()
        most = _SLOT_S if self._background is None else self._background.slot_s

        def patience() -> None:
            self._check()
            if time.monotonic() - began > most:
                raise NotInPrerequisiteState(
                    f"the publisher has made no slot within {most:g} s",
                    detail="It waits for all transactions that write, in any database.",
                    hint=f"Run penstock verify when no long transaction runs: {WRITING}",
                )

        with self._requested(_present(publisher)) as move:
            snapshot_name, point = holder.open(patience)
            move(point)
            self._say(f"waiting for a cut at {point}")
            cut = self._wait_for_cut(point)
            sources: dict[TableName, CopySource] = {}
            for name, info in infos.items():
                try:
                    sources[name] = self._source(name, info, cut)
                except PenstockError as error:
                    results[name] = _not_compared(name, error)
            self._check_nothing_since(cut, sources)
        return snapshot_name, cut, sources

    @contextlib.contextmanager
    def _requested(self, lsn: Lsn) -> Iterator[Callable[[Lsn], None]]:
        with self._catalog.write() as transaction:
            own = None if self._background is None else self._background.request
            request = transaction.cut_requests.ask(self._subscription.oid, lsn, own)

        def move(lsn: Lsn) -> None:
            with self._catalog.write() as transaction:
                if not transaction.cut_requests.move(request.id, lsn):
                    raise _passed(lsn)

        try:
            yield move
        finally:
            self._catalog.forget_cut_request(request.id)

    def _wait_for_cut(self, lsn: Lsn) -> Cut:
        subscription, options = self._subscription, self._options
        owner = CutOwner(subscription.name, subscription.app_id)
        deadline = time.monotonic() + options.timeout
        while True:
            cut = self._warehouse.cuts.last(owner)
            if cut is not None and cut.lsn == lsn:
                return cut
            if cut is not None and cut.lsn > lsn:
                raise _passed(lsn)
            self._check()
            if time.monotonic() >= deadline:
                raise NotInPrerequisiteState(
                    f'subscription "{subscription.name}" has not reached {lsn} within '
                    f"{options.timeout:g} s",
                    detail=f"The last cut is at {cut.lsn if cut else 'no LSN yet'}.",
                    hint="Look at: penstock status. A node that is far behind needs more time: "
                    "--timeout.",
                )
            time.sleep(_POLL_S)

    def _source(self, name: TableName, info: RemoteTable, cut: Cut) -> CopySource:
        """Return a table, with its partitions, at the newest versions. Raises the errors of
        opening, and StateMismatch if it is not the cut's table. Raises NotInPrerequisiteState if it
        is in no cut, another subscription fills it too, or none of its columns is published."""
        if name not in cut.tables:
            raise NotInPrerequisiteState(_NOT_IN_CUTS)
        app_id = self._subscription.app_id
        table = self._warehouse.open(*name)
        if table is None or table.id != cut.tables[name].id:
            raise StateMismatch("the Delta table is not the one of the cut")
        tree = self._catalog.partition_tree(name)
        leaves = None
        if tree:
            routing, partitions = routing_of(tree, table.schema)
            leaves = Leaves(tuple(open_leaf(self._warehouse, each) for each in partitions), routing)
            for leaf in leaves.tables:
                check_columns(leaf, table.schema)
        way = self._subscription.out_of_range
        if self._background is not None:
            info = _without(info, table)
        source = CopySource(
            *(info, table, leaves, tree), out_of_range=way, enums=self._catalog.enum_types()
        )
        for each in source.tables:
            others = living(each, app_id, self._catalog.subscription_name)
            if others and each.filled_by(app_id, others):
                raise NotInPrerequisiteState("another subscription fills it too")
        if not compared_columns(source):
            raise NotInPrerequisiteState("no column of it is published")
        return source

    def _check_nothing_since(self, cut: Cut, sources: Mapping[TableName, CopySource]) -> None:
        """Check that the worker has waited: no table has a change after the snapshot."""
        self._wait_for_cut(cut.lsn)
        for source in sources.values():
            for table in source.tables:
                marker = table.transaction_version(self._subscription.app_id)
                if marker is not None and marker > cut.lsn:
                    raise _passed(cut.lsn)

    def _say(self, doing: str) -> None:
        self._options.progress(VerifyProgress(self._subscription.name, doing))

    def _comparing(self, rows: CompareProgress) -> None:
        doing = "looking for what differs" if rows.again else "comparing"
        self._options.progress(VerifyProgress(self._subscription.name, doing, rows))


def check_follows(subscription: Subscription, *, running: bool) -> None:
    """Raise NotInPrerequisiteState if no worker can make a cut."""
    if not running:
        raise NotInPrerequisiteState(
            "the node does not run",
            detail="Its tables are compared at a position of the publisher, to which a running "
            "node brings them.",
            hint="Start it: penstock start. Then run penstock verify beside it.",
        )
    if not subscription.should_run and not subscription.stopped:
        raise NotInPrerequisiteState(
            f'subscription "{subscription.name}" is disabled',
            hint=f"{alter(subscription.name)} ENABLE",
        )


def _present(publisher: Publisher) -> Lsn:
    """Return an LSN before which no new slot will begin. On a standby, which has received more than
    it decodes, return INVALID: the worker then stays where it is."""
    _, in_recovery = publisher.database()
    return INVALID if in_recovery else publisher.current_wal_lsn()


def _passed(lsn: Lsn) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(
        f"the node has no cut at {lsn}, and went on",
        detail="It was started again meanwhile, or has waited for too long.",
        hint=_AGAIN,
    )


def _not_compared(name: TableName, error: PenstockError) -> VerifiedTable:
    return VerifiedTable(qualified(*name), error.message)


def _without(info: RemoteTable, table: DeltaTable) -> RemoteTable:
    """Return the definition without columns in which rows lack the publisher's values; the server
    log has named these columns."""
    unfilled = {column.source for column in table.schema.columns if column.name in table.unfilled}
    kept = tuple(each for each in info.relation.attributes if each.name not in unfilled)
    return replace(info, relation=replace(info.relation, attributes=kept))


def _verified(
    name: TableName,
    source: CopySource,
    info: RemoteTable,
    found: TableDifference | PenstockError,
) -> VerifiedTable:
    if isinstance(found, ConnectionFailure):
        raise found
    if isinstance(found, PenstockError):
        return _not_compared(name, found)
    compared = {column.source for column in compared_columns(source)}
    published = (attribute.name for attribute in info.relation.attributes)
    lacking = tuple(column for column in published if column not in compared)
    return VerifiedTable(qualified(*name), None, found, lacking)


def _without_kinds(table: VerifiedTable, left_out: frozenset[str]) -> VerifiedTable:
    """Return the result without differences that unpublished operations (``left_out``) explain."""
    found = table.difference
    ignored = {kind for operation in left_out for kind in _BY_DESIGN[operation]}
    if found is None or not ignored.intersection(found.kinds):
        return table
    kinds = {kind: count for kind, count in found.kinds.items() if kind not in ignored}
    examples = tuple(each for each in found.examples if each.kind not in ignored)
    return replace(table, difference=replace(found, kinds=kinds, examples=examples), by_design=True)
