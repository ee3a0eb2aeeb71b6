"""Prepared transactions between their two phases (worker.c, apply_handle_prepare and its kin).

The frames of a prepared transaction are kept until COMMIT PREPARED, which returns them, or ROLLBACK
PREPARED. A publisher does not send them again. So they are stored as files in the warehouse, with a
row in the catalog, and survive a loss of the node's machine. Until COMMIT PREPARED the changes are
in no table. The files are durable before any later change is applied or acknowledged (law 1), and
are deleted once the changes are in a cut.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.catalog import (
    Catalog,
    PreparedXact,
    Subscription,
    SubscriptionRelState,
    TwoPhaseState,
)
from penstock.catalog.publisher_identity import copy_anew
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import StorageError, UndefinedObject
from penstock.failpoint import AFTER_PREPARE, failpoint
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.messages import CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from penstock.subscription.frame_run import FrameRun
from penstock.subscription.spool import SpooledFrames

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedStore:
    """The place where one subscription's prepared transactions are kept. ``folder``: a URI in the
    warehouse. ``check``: is called before a transaction's files are removed. ``way_back``: the hint
    if they are lost."""

    catalog: Catalog
    subid: int
    storage: Storage
    folder: str
    spool_folder: Path
    check: Callable[[], None] = lambda: None
    way_back: str = ""


@dataclass(frozen=True, slots=True)
class TwoPhaseOptions:
    """The two-phase commit settings of a session.

    ``state``: the state as the session begins. ``enable``: the session's stream asks the publisher
    to enable two-phase commit for the slot from now on, and then calls ``enabled``. ``store``:
    where prepared transactions are kept.
    """

    state: TwoPhaseState
    enable: bool
    enabled: Callable[[], None]
    store: PreparedStore


def two_phase(
    catalog: Catalog, warehouse: Warehouse, subscription: Subscription, spool_folder: Path
) -> TwoPhaseOptions:
    """Return the two-phase commit settings of a session that begins now.

    Two-phase commit is enabled once there are tables and all are ready (AllTablesyncsReady): a
    transaction prepared before a table was copied would be in neither the copy nor the stream.
    """
    oid = subscription.oid
    now, rels = catalog.subscription_with_relations(oid)
    state = TwoPhaseState.DISABLED if now is None else now.two_phase_state
    ready = bool(rels) and all(rel.state is SubscriptionRelState.READY for rel in rels)
    return TwoPhaseOptions(
        state=state,
        enable=state is TwoPhaseState.PENDING and ready,
        enabled=lambda: catalog.enable_two_phase(oid),
        store=PreparedStore(
            catalog,
            oid,
            warehouse.storage,
            warehouse.prepared_uri(subscription.app_id),
            spool_folder,
            lambda: warehouse.check_lease(),
            copy_anew(subscription.name, subscription.slot_name),
        ),
    )


class PreparedTransactions:
    """The prepared transactions of one subscription.

    The receiving thread calls ``keep``, ``commit`` and ``roll_back``; the applying thread calls
    ``begin`` and ``forget``.
    """

    def __init__(self, store: PreparedStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._xacts: dict[int, PreparedXact] = {}

    def begin(self, last_cut: Lsn | None) -> None:
        """Read the kept transactions, and forget those in a cut. Call it before a stream starts."""
        store = self._store
        with self._lock, store.catalog.read() as t:
            self._xacts = {xact.xid: xact for xact in t.prepared_xacts.all(store.subid)}
        # Files without a row: the node was killed in between, and the transaction is sent again.
        known = {xact.folder for xact in self._xacts.values()}
        for _, prepared, uri in self._folders():
            if uri not in known and prepared > (last_cut or INVALID):
                store.check()
                store.storage.discard_folder(uri)
        if last_cut is not None:
            self.forget(last_cut)

    def _folders(self) -> Iterator[tuple[int, Lsn, str]]:
        """Yield the xid, the PREPARE's end LSN and the URI of each transaction in the warehouse."""
        for file in self._store.storage.list(self._store.folder):
            xid, prepared, _ = file.base_name.split("-", 2)
            yield int(xid), Lsn(int(prepared)), f"{self._store.folder}/{file.base_name}"

    @property
    def any(self) -> bool:
        """True if any transaction is kept."""
        with self._lock:
            return bool(self._xacts)

    def keep(
        self, message: Prepare | StreamPrepare, runs: Sequence[FrameRun], relations: Sequence[int]
    ) -> None:
        """Make a transaction durable. Raises StorageError.

        The files of ``runs``, which are all on disk, are copied and deleted. A transaction that is
        sent again replaces its earlier files. If SKIP names the transaction, it is skipped.
        """
        store = self._store
        folder = f"{store.folder}/{message.xid}-{int(message.end_lsn)}-{uuid.uuid4()}"
        store.storage.create_folder(folder)
        for number, run in enumerate(runs):
            assert run.spooled is not None
            place = f"{message.xid}/{number}"
            store.storage.write(f"{folder}/{number}", run.spooled.sealed(place))
            run.forget()
        xact = PreparedXact(
            subid=store.subid,
            xid=message.xid,
            gid=message.gid,
            prepare_end_lsn=message.end_lsn,
            prepare_time=message.prepare_time + EPOCH_MICROSECONDS,
            folder=folder,
            runs=tuple(run.count for run in runs),
            relations=tuple(relations),
            prepare_lsn=message.prepare_lsn,
        )
        former = self._xacts.get(xact.xid)
        self._put_prepared(xact)
        failpoint(AFTER_PREPARE)
        if former is not None:
            store.storage.discard_folder(former.folder)

    def commit(self, message: CommitPrepared) -> tuple[list[FrameRun], tuple[int, ...]]:
        """Return a transaction's frames, and the OIDs of the relations defined in them.

        Both are empty if the transaction is skipped, or was not sent because it changed nothing.
        Raises UndefinedObject (42704), StorageError.
        """
        xact = self._xacts.get(message.xid)
        if xact is None:
            self._check_never_kept(message)
            return [], ()
        finished = replace(xact, commit_lsn=message.commit_lsn, finish_lsn=message.end_lsn)
        if self._put_finished(finished):
            return [], ()
        runs = [self._run(xact, number, count) for number, count in enumerate(xact.runs)]
        return runs, xact.relations

    def _check_never_kept(self, message: CommitPrepared) -> None:
        """Raise UndefinedObject if the warehouse has files of an unknown transaction.

        Without files the transaction changed nothing: servers before 18 send only the COMMIT
        PREPARED of such a transaction.
        """
        if any(xid == message.xid for xid, *_ in self._folders()):
            gid = f"pg_gid_{self._store.subid}_{message.xid}"
            raise UndefinedObject(
                f'prepared transaction with identifier "{gid}" does not exist',
                detail=f'At the publisher it is "{message.gid}", which has been committed there.',
                hint="The node's state store seems to be an older copy of itself, as the "
                f'warehouse has what the transaction did, in "{self._store.folder}". '
                f"{self._store.way_back}",
            )

    def _put_prepared(self, xact: PreparedXact) -> None:
        """Record a transaction, and skip it if SKIP names it.

        As on a server, SKIP is then cleared. A skipped transaction that is sent again after a crash
        stays skipped.
        """
        lsn = xact.prepare_lsn
        with self._lock, self._store.catalog.write() as t:
            subscription = t.subscriptions.find_oid(xact.subid)
            former = t.prepared_xacts.find(xact.subid, xact.xid)
            begins = subscription is not None and subscription.skip_lsn == lsn
            again = former is not None and former.skipped and former.prepare_lsn == lsn
            if subscription is not None and begins:
                t.subscriptions.save(replace(subscription, skip_lsn=INVALID))
            xact = replace(xact, skipped=begins or again)
            t.prepared_xacts.put(xact)
            self._xacts[xact.xid] = xact
        if begins:
            log.info("logical replication starts skipping transaction at LSN %s", lsn)
            log.info("logical replication completed skipping transaction at LSN %s", lsn)

    def _put_finished(self, xact: PreparedXact) -> bool:
        """Record a transaction's COMMIT PREPARED; return whether the transaction is skipped.

        The catalog row is read again: a statement may have marked it as skipped since.
        """
        with self._lock, self._store.catalog.write() as t:
            stored = t.prepared_xacts.find(xact.subid, xact.xid)
            xact = replace(xact, skipped=stored is not None and stored.skipped)
            t.prepared_xacts.put(xact)
            self._xacts[xact.xid] = xact
        return xact.skipped

    def _run(self, xact: PreparedXact, number: int, count: int) -> FrameRun:
        uri, place = f"{xact.folder}/{number}", f"{xact.xid}/{number}"
        content = self._store.storage.read(uri)
        spooled = SpooledFrames.of_sealed(self._store.spool_folder, content, place, count)
        if spooled is None:
            raise StorageError(
                f'file "{uri}" of the prepared transaction "{xact.gid}" is damaged',
                hint="Put it back from a backup; the publisher no longer has the transaction's "
                f"changes. {self._store.way_back}",
                sqlstate="XX001",
            )
        return FrameRun(size=len(content), spooled=spooled)

    def roll_back(self, message: RollbackPrepared) -> None:
        """Forget a transaction that was rolled back. It may be gone already, because the publisher
        may send the rollback again (LookupGXact)."""
        xact = self._xacts.get(message.xid)
        if xact is not None and xact.prepare_end_lsn == message.prepare_end_lsn:
            self._forget([xact])

    def forget(self, cut: Lsn) -> None:
        """Forget the transactions whose rows are in a cut."""
        with self._lock:
            known = list(self._xacts.values())
        done = [xact for xact in known if xact.finish_lsn is not None and xact.finish_lsn <= cut]
        if done:
            self._forget(done)

    def _forget(self, xacts: Sequence[PreparedXact]) -> None:
        # Files first: files without a row would look as if the row were lost.
        self._store.check()
        for xact in xacts:
            self._store.storage.discard_folder(xact.folder)
        with self._lock, self._store.catalog.write() as t:
            for xact in xacts:
                t.prepared_xacts.delete(xact.subid, xact.xid)
                del self._xacts[xact.xid]
