"""The standing proof: a thread that compares tables with the publishers' in the background.

Subscriptions with ``verify_interval`` take part. A round compares some ranges of tables at one LSN,
as ``penstock verify`` does (``verify``). It adds rows to ``_penstock/verifications`` and saves each
table's progress (``TableVerification``). A round's snapshot at the publisher lives only while some
megabytes are read, and a pause after the round keeps the rate that ``verify_rate`` allows. New
tables come first, then tables whose last comparison is the oldest.

A difference is checked a second time, at another LSN. A difference that stays is an error of the
table, which is handled as ``on_table_error`` says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import (
    SubscriptionRel,
    SubscriptionRelState,
    TableVerification,
)
from penstock.errors import NotInPrerequisiteState, PenstockError, StateMismatch, UndefinedObject
from penstock.failpoint import INSIDE_VERIFICATION, failpoint
from penstock.identifiers import quoted
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.side_table import VERIFICATIONS
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.verify import (
    DIFFERENT,
    EQUAL,
    PARTIAL,
    InBackground,
    Ranges,
    Verification,
    VerifiedTable,
    Verifier,
    VerifyOptions,
    row_text,
)
from penstock.pgtypes.pg_type import INTEGERS
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.table_copy import CopyOptions
from penstock.relation import TableName
from penstock.subscription.apply_error import log_stop
from penstock.subscription.parking import Parking
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.table_info import RemoteTable

log = logging.getLogger(__name__)

RANGE_BYTES: Final = 64 << 20
"""Bytes that are read at one snapshot of the publisher, in about a second. A table whose key does
not begin with an integer is read whole."""
_TABLES: Final = 50
"""The most tables about which one round asks the publisher."""
_LOOK_INTERVAL_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
"""The longest pause after repeated errors: errors of the publisher, or a cut that did not come. A
table that could not be compared pauses as long."""
_CUT_S: Final = 30.0
_EXAMPLES: Final = 10
_LOOKED_AFTER: Final = 64
"""Old rows are removed each time this many ranges have been recorded."""


@dataclass(slots=True)
class _Pace:
    """The pace of a subscription. ``due``: the time of its next round (``time.monotonic``)."""

    due: float = 0.0
    failures: int = 0
    told: str = ""
    later: dict[str, float] = field(default_factory=dict)
    """The times of the next try for tables that could not be compared, by sync id."""
    turns: dict[str, float] = field(default_factory=dict)
    """The times of the last comparison of a range, by sync id."""


class StandingProof:
    """A thread for all subscriptions of a node, which runs one round at a time."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        spark: Spark,
        copy: Callable[[], CopyOptions],
        primary_key_name: Callable[[TableName], str | None],
        parked: Callable[[int], None],
        kept_for: Callable[[], float],
    ) -> None:
        """Prepare the thread. ``parked`` is called with a subscription's oid after one of its
        tables was parked; the worker then leaves the table out. ``kept_for`` returns the seconds
        for which rows of the lake's table stay; 0: for ever."""
        self._catalog = catalog
        self._warehouse = warehouse
        self._spark = spark
        self._copy = copy
        self._primary_key_name = primary_key_name
        self._parked = parked
        self._kept_for = kept_for
        self._added = 0
        self._paces: dict[int, _Pace] = {}
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="standing proof", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread, even in the middle of a round."""
        self._stopping.set()

    def _run(self) -> None:
        forgotten = False
        while not self._stopping.wait(_LOOK_INTERVAL_S):
            try:
                if not forgotten:
                    self._forget_what_a_crash_left()
                    forgotten = True
                for subscription in self._catalog.subscriptions():
                    if subscription.verify_interval and subscription.should_run:
                        self._step(subscription)
            except Exception as error:
                log.warning("could not compare tables in the background: %s", error)

    def _forget_what_a_crash_left(self) -> None:
        """Remove cut requests and progress that a crash has left. Otherwise the workers would wait
        at a cut that no round will use."""
        for subscription in self._catalog.subscriptions():
            left = {request.id for request in self._catalog.cut_requests(subscription.oid)}
            if _request(subscription) in left:
                self._catalog.forget_cut_request(_request(subscription))
        with self._catalog.write(counted=False) as t:
            t.verifications.forget_others(frozenset(rel.sync_id for rel in t.relations.all()))

    def _step(self, subscription: Subscription) -> None:
        """Run a round if one is due for the subscription."""
        pace = self._paces.setdefault(subscription.oid, _Pace())
        if time.monotonic() < pace.due or self._stopping.is_set():
            return
        try:
            read = _Round(self, subscription, pace).run()
            pace.failures, pace.told = 0, ""
            pace.due = time.monotonic() + read / subscription.verify_rate
        except Exception as error:
            if self._stopping.is_set():
                return
            pace.failures += 1
            pace.due = time.monotonic() + min(_LONGEST_PAUSE_S, 2.0**pace.failures)
            expected = isinstance(error, PenstockError)
            told = str(error) if expected else f"{type(error).__name__}: {error}"
            if told != pace.told:
                log.warning(
                    'subscription "%s": tables could not be compared in the background: %s',
                    subscription.name,
                    told,
                    exc_info=None if expected else error,
                )
                pace.told = told

    def check(self, subscription: Subscription) -> None:
        """Raise NotInPrerequisiteState if a round must end."""
        if self._stopping.is_set():
            raise NotInPrerequisiteState("the node stops")
        with self._catalog.read() as transaction:
            now = transaction.subscriptions.find_oid(subscription.oid)
        if now is None or not now.should_run or not now.verify_interval:
            raise NotInPrerequisiteState(f'subscription "{subscription.name}" does not run')

    def verify(
        self, subscription: Subscription, names: Sequence[TableName], background: InBackground
    ) -> Verification:
        """Compare tables as ``penstock verify`` does, with one session that reads at the
        publisher."""
        options = VerifyOptions(examples=_EXAMPLES, timeout=_CUT_S, connections=1)
        return Verifier(
            subscription,
            self._catalog,
            self._warehouse,
            self._spark,
            lambda: self.check(subscription),
            options,
            replace(self._copy(), connections=1),
            background,
        ).run(names)

    def save(self, row: TableVerification) -> bool:
        """Save a table's progress. Return False if the table has left the subscription."""
        with self._catalog.write(counted=False) as transaction:
            rels = transaction.relations.all(row.subid)
            if there := any(rel.sync_id == row.sync_id for rel in rels):
                transaction.verifications.save(row)
            return there

    def refuse(
        self, subscription: Subscription, rel: SubscriptionRel, error: PenstockError
    ) -> None:
        """Handle a table's error as ``on_table_error`` says."""
        parking = Parking(subscription, self._warehouse, self._catalog.park, self._primary_key_name)
        try:
            parking.refuse(rel, error)
            self._parked(subscription.oid)
        except UndefinedObject:
            log.info('table "%s" has left the subscription meanwhile', rel.qualified_name)
        except PenstockError as stops:
            disables = subscription.disable_on_error
            told = log_stop(stops, subscription.name, disables)
            self._catalog.record_error(
                subscription, told, stopped=True, table=rel.sync_id, disable=disables
            )

    def add(self, rows: pa.Table) -> None:
        """Add rows to the lake's table, and remove old ones at intervals."""
        self._warehouse.verifications.add(rows)
        self._added += 1
        if self._added % _LOOKED_AFTER == 0:
            now, kept_for = datetime.now(UTC), self._kept_for()
            since = now - timedelta(seconds=kept_for) if kept_for else None
            try:
                self._warehouse.verifications.keep_since("ended", since)
            except PenstockError as error:
                log.warning("could not remove old verifications: %s", error.message)

    def states(self, subid: int) -> tuple[Sequence[SubscriptionRel], dict[str, TableVerification]]:
        """Return the tables of a subscription, and the progress of all tables by sync id."""
        with self._catalog.read() as transaction:
            return transaction.relations.all(subid), transaction.verifications.all()


class _Round:
    """A round: it compares some ranges of a subscription's tables at one LSN."""

    def __init__(self, proof: StandingProof, subscription: Subscription, pace: _Pace) -> None:
        self._proof = proof
        self._subscription = subscription
        self._pace = pace
        self._ranges: dict[TableName, KeyRange | None] = {}
        self._bytes = 0

    def run(self) -> int:
        """Run the round. Return the bytes that were read at the publisher, 0 if nothing is due."""
        subscription = self._subscription
        rels, states = self._proof.states(subscription.oid)
        due = self._due(rels, states)
        if not due:
            return 0

        def choose(publisher: Publisher, infos: Mapping[TableName, RemoteTable]) -> Ranges:
            for rel in due:
                if rel.table_name in infos and self._bytes < RANGE_BYTES:
                    info, state = infos[rel.table_name], states.get(rel.sync_id)
                    if state is not None and not _goes_on(state, info):
                        # The key has changed, so this pass cannot continue: begin again.
                        states[rel.sync_id] = state = replace(state, began=None, next_key=None)
                    low = None if state is None else state.next_key
                    self._ranges[rel.table_name] = _range(publisher, info, low)
                    self._bytes += _size(self._ranges[rel.table_name], info)
            return self._ranges

        began = time.time()
        names = [rel.table_name for rel in due]
        first = self._proof.verify(
            subscription, names, InBackground(choose, _request(subscription))
        )
        failpoint(INSIDE_VERIFICATION)
        found = {table.name: table for table in first.tables}
        compared = [(rel, found[rel.qualified_name]) for rel in due if rel.qualified_name in found]
        # Tables to be checked again come last, so that their errors cost no other table's result.
        self._pace.turns.update((rel.sync_id, time.monotonic()) for rel, _ in compared)
        for rel, table in sorted(compared, key=lambda each: each[1].result == DIFFERENT):
            if table.result is None:
                self._pace.later[rel.sync_id] = time.monotonic() + _LONGEST_PAUSE_S
                log.info('table "%s" could not be compared: %s', table.name, table.reason)
                continue
            self._record(rel, states.get(rel.sync_id), table, first.lsn, began)
        return self._bytes

    def _due(
        self, rels: Sequence[SubscriptionRel], states: Mapping[str, TableVerification]
    ) -> list[SubscriptionRel]:
        now, wall = time.monotonic(), time.time()
        self._pace.later = {k: at for k, at in self._pace.later.items() if at > now}
        found = []
        for rel in rels:
            state = states.get(rel.sync_id) or TableVerification(rel.sync_id, rel.subid)
            if rel.state is not SubscriptionRelState.READY or rel.sync_id in self._pace.later:
                continue
            last = state.checked or 0.0
            # If the clock was put back, a comparison that is now in the future does not count.
            rests = 0 <= wall - last < self._subscription.verify_interval
            if state.began is not None or not rests:
                # A large table takes turns with others, which need not wait until it is done.
                turn = self._pace.turns.get(rel.sync_id, 0.0)
                found.append((turn, last, rel.table_name, rel))
        return [rel for *_, rel in sorted(found, key=lambda each: each[:3])[:_TABLES]]

    def _record(
        self,
        rel: SubscriptionRel,
        before: TableVerification | None,
        table: VerifiedTable,
        lsn: Lsn,
        began: float,
    ) -> None:
        part = self._ranges[rel.table_name]
        self._tell(table, part, lsn, began)
        if table.result == DIFFERENT:
            again_at = time.time()
            second = self._again(rel, part)
            table, lsn = second.tables[0], second.lsn
            if table.result is None:
                return  # the range stays due
            self._tell(table, part, lsn, again_at)
        state = before or TableVerification(rel.sync_id, rel.subid)
        partial = int(table.result == PARTIAL or bool(state.began is not None and state.partial))
        state = replace(state, began=state.began or began, lsn=lsn, partial=partial)
        if table.result == DIFFERENT:
            # Unless the difference is repaired, it is found again after an interval at the latest.
            ended = replace(state, began=None, next_key=None, checked=began, result=DIFFERENT)
            if self._proof.save(ended):
                self._proof.refuse(self._subscription, rel, _difference(table, lsn))
            return
        if part is not None and part.high is not None:
            self._proof.save(replace(state, next_key=part.high, key_column=part.column))
            return
        result = PARTIAL if partial else EQUAL
        verified = state.verified if partial else state.began
        checked = state.began
        self._proof.save(
            replace(
                state, began=None, next_key=None, checked=checked, verified=verified, result=result
            )
        )

    def _again(self, rel: SubscriptionRel, part: KeyRange | None) -> Verification:
        """Compare the same rows at another LSN."""
        self._bytes += self._bytes
        return self._proof.verify(
            self._subscription,
            [rel.table_name],
            InBackground(
                lambda publisher, infos: dict.fromkeys(infos, part),
                _request(self._subscription),
            ),
        )

    def _tell(self, table: VerifiedTable, part: KeyRange | None, lsn: Lsn, began: float) -> None:
        assert table.difference is not None
        row = {
            "subscription": self._subscription.name,
            "relation": table.name,
            "key_column": part and part.column,
            "low": part and part.low,
            "high": part and part.high,
            "lsn": int(lsn),
            "started": datetime.fromtimestamp(began, UTC),
            "ended": datetime.now(UTC),
            "publisher_rows": table.difference.publisher_rows,
            "node_rows": table.difference.node_rows,
            "result": table.result,
            "lacking_columns": ", ".join(table.lacking) or None,
            "differences": _rows(table) or None,
        }
        self._proof.add(pa.Table.from_pylist([row], VERIFICATIONS))


def _request(subscription: Subscription) -> str:
    """Return the id of a subscription's cut request."""
    return f"standing-proof-{subscription.oid}"


def _goes_on(state: TableVerification, info: RemoteTable) -> bool:
    """Tell whether the next range of a pass can begin at the end of the last one."""
    return state.next_key is None or state.key_column in info.primary_key[:1]


def _size(part: KeyRange | None, info: RemoteTable) -> int:
    return max(1, info.size) if part is None else part.bytes


def _range(publisher: Publisher, info: RemoteTable, low: int | None) -> KeyRange | None:
    """Return the next range of a table, from ``low`` on; None: the whole table."""
    key = info.primary_key[0] if info.primary_key else ""
    types = {attribute.name: attribute.type_oid for attribute in info.relation.attributes}
    if low is None and (info.size <= RANGE_BYTES or types.get(key) not in INTEGERS):
        return None
    if types.get(key) not in INTEGERS:
        return None
    table = f"{quoted(info.relation.schema)}.{quoted(info.relation.name)}"
    leaves = ", ".join(str(leaf.oid) for leaf in info.leaves)
    ((counted,),) = publisher.connection.query(
        "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_catalog.pg_class"
        f" WHERE oid IN ({leaves})"
    )
    rows = int(str(counted)) or info.size // 100
    count = max(1, rows * RANGE_BYTES // max(1, info.size))
    name = quoted(key)
    after = "" if low is None else f" WHERE {name} >= {low}"
    found = publisher.connection.query(
        f"SELECT {name} FROM {table}{after} ORDER BY {name} OFFSET {count} LIMIT 1"
    )
    high = int(str(found[0][0])) if found else None
    if high is not None and low is not None and high <= low:  # one key has more rows than a range
        found = publisher.connection.query(f"SELECT min({name}) FROM {table} WHERE {name} > {low}")
        high = None if found[0][0] is None else int(str(found[0][0]))
    return KeyRange(key, low, high, min(RANGE_BYTES, max(1, info.size)))


def _rows(table: VerifiedTable) -> str:
    assert table.difference is not None
    return "\n".join(f"{each.kind}: {row_text(each)}" for each in table.difference.examples)


def _difference(table: VerifiedTable, lsn: Lsn) -> PenstockError:
    assert table.difference is not None
    counts = ", ".join(f"{count} {kind}" for kind, count in table.difference.kinds.items())
    return StateMismatch(
        f'table "{table.name}" differs from the publisher\'s at {lsn}',
        detail=f"Compared twice, rows differ: {counts}.\n{_rows(table)}",
        hint="See who has written to the table",
    )
