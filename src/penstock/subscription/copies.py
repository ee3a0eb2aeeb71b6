"""The initial copies of one subscription, round by round, beside its stream (tablesync.c).

In: rows of pg_subscription_rel in state i and d. Out: rounds of ``tablesync`` on a thread of their
own; a table whose copy fails keeps its error in the status and is copied again. As in PostgreSQL at
least ``wal_retrieve_retry_interval`` lies between two starts (process_syncing_tables_for_apply).
The first copy of a subscription is of all its tables side by side; beside a stream a round has one
snapshot too, and ``max_sync_workers_per_subscription`` tables of it are in work at a time.
Neither the stream nor other tables wait for it, and whatever the error is, it stops nothing: with
the cause its error goes. Only with ``disable_on_error`` one that does not pass by itself ends the
worker. Where the publisher's role lacks a right, the hint is the GRANT.

All methods are called by the apply worker's thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import alter
from penstock.errors import PenstockError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pipeline.snapshot import CopyOptions
from penstock.sql.text.quoting import quote_identifier
from penstock.subscription.retry import max_tries
from penstock.subscription.tablesync import (
    CopyCancelled,
    CopyRound,
    RelStates,
    recover,
    run_round,
)
from penstock.subscription.worker_status import Shown, WorkerStatus
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo

NO_RIGHT: Final = "42501"


def missing_right(rel: SubscriptionRel, conninfo: str) -> str:
    """GRANTs for the table, and for those that its owner makes later: default privileges are those
    of the role that creates a table, so they are set for that one."""
    user = ConnInfo.parse(conninfo).parameters.get("user")
    role = "<the role of the connection>" if user is None else quote_identifier(user)
    schema, table = quote_identifier(rel.schema), quote_identifier(rel.table)
    return (
        f"On the publisher: GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON TABLE "
        f"{schema}.{table} TO {role}; the copy is tried again by itself. For tables to come, once "
        "for each role that creates some: ALTER DEFAULT PRIVILEGES FOR ROLE <that role> IN SCHEMA "
        f"{schema} GRANT SELECT ON TABLES TO {role};"
    )


log = logging.getLogger(__name__)

NOT_COPIED: Final = (SubscriptionRelState.INIT, SubscriptionRelState.DATASYNC)


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """``retry_interval``: seconds. ``tables``: in work at a time beside the stream; 0: none at all,
    and none before there is one. ``snapshot_timeout``: seconds, 0 for none."""

    copy: CopyOptions
    retry_interval: float
    tables: int
    snapshot_timeout: float = 0.0


class Copies:
    """Rounds of copies, one at a time."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        spark: Spark,
        warehouse: Warehouse,
        catalog: RelStates,
        options: Callable[[], SyncOptions],
        status: WorkerStatus,
        cancelled: Callable[[], bool],
        check_connection: Callable[[Connection], None],
        shown: Shown,
    ) -> None:
        """``options``: as they are now."""
        self._subscription = subscription
        self._cut_owner = CutOwner(subscription.name, subscription.app_id)
        self._warehouse = warehouse
        self._catalog = catalog
        self._status = status
        self._options = options
        self._work = CopyRound(
            spark=spark,
            warehouse=warehouse,
            states=catalog,
            subscription=subscription,
            options=options().copy,
            progress=status.copying,
            held=status.holding,
            snapshot_timeout=lambda: options().snapshot_timeout,
            cancelled=lambda: cancelled() or self._terminated.is_set(),
            check_connection=check_connection,
            failed=self._failed,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tablesync")
        self._shown = shown
        self._terminated = threading.Event()
        self._round: Future[bool] | None = None
        self.disabling: Exception | None = None
        """What has failed and, by disable_on_error, ends the worker."""
        self._again_at: dict[str, float] = {}
        """By sync id: when a table that failed is tried again."""
        self._began = -math.inf
        """When the last round did."""
        self._due = math.inf
        self._finished = False
        self._members: frozenset[str] = frozenset()
        self._outdated = False
        """The subscription has tables to copy that the session does not know."""
        self._alone = False
        """One table a round: something that no table was named for has ended a round of several."""
        self.began_at: Lsn | None = None
        """The last cut as a round began, whose tables the stream does not know yet. Nothing after
        it may be acknowledged."""

    def go_on_for(self, earlier: Copies) -> None:
        """Before ``begin``: for another worker's, which has ended. What failed waits its time."""
        self._again_at = dict(earlier._again_at)
        self._began, self._alone = earlier._began, earlier._alone

    @property
    def running(self) -> bool:
        """Whether a round is under way."""
        return self._round is not None

    def begin(self) -> None:
        """Before a session opens its tables. Raises what catalog and warehouse raise."""
        self._outdated = False
        self._settle()
        if self._round is None:
            # Before any streaming: a copy that was committed has its point in the past, and
            # nothing after that point may be acknowledged.
            self._recover()
            self.began_at = None
            self._finished = False

    def start(self, members: frozenset[str]) -> None:
        """Once a session knows that publisher and tables belong together: a round, if one is due.

        ``members``: sync ids that the session knows. No other is copied in it, as it may have the
        Delta table open for an earlier membership. Raises what catalog and warehouse raise.
        """
        self._members = members
        self._start()

    def step(self) -> bool:
        """Again and again: start a round when one is due. Whether tables were copied since
        ``begin``, or are to be that the session does not know: then one is to begin that does."""
        if self._settle() and not self._finished:
            self.began_at = None
            self._start()
        elif self._round is None and time.monotonic() >= self._due:
            self._start()
        return self._finished or self._outdated

    def close(self) -> None:
        """Wait for a round that sees that it is cancelled."""
        self._pool.shutdown(cancel_futures=True)

    def _settle(self) -> bool:
        """Take in a round that has ended; whether one has. Raises what keeps it from being so, and
        what disables the subscription."""
        if self.disabling is not None:
            raise self.disabling
        if self._round is None or not self._round.done():
            return False
        ended, self._round = self._round, None
        self._finished = ended.result() or self._finished
        return True

    def _start(self) -> None:
        if self._round is not None or self._finished:  # those first: began_at holds for them
            return
        rels = self._catalog.rels()
        waiting = [rel for rel in rels if rel.state in NOT_COPIED]
        if not self._members.issuperset(rel.sync_id for rel in waiting):
            self._outdated = True
            return
        self._status.only_failed({rel.qualified_name for rel in waiting})
        self._again_at = {
            rel.sync_id: self._again_at[rel.sync_id]
            for rel in waiting
            if rel.sync_id in self._again_at
        }
        now = time.monotonic()
        due = [rel for rel in waiting if self._again_at.get(rel.sync_id, now) <= now]
        self._alone = self._alone and bool(waiting)
        if not due:
            self._due = min(self._again_at.values(), default=math.inf)
            return
        options = self._options()
        if not options.tables:
            self._due = now + options.retry_interval
            return
        first = len(waiting) == len(rels)
        work = options.copy if first else replace(options.copy, tables=options.tables)
        cut = self._warehouse.cuts.last(self._cut_owner)
        # Before the round has its point, so that the slot cannot pass it.
        self.began_at = INVALID if cut is None else cut.lsn
        self._due, self._began = math.inf, now
        self._round = self._pool.submit(
            self._run, replace(self._work, options=work), due[:1] if self._alone else due
        )

    def _run(self, work: CopyRound, rels: Sequence[SubscriptionRel]) -> bool:
        """A round, in its thread; whether it has copied tables."""
        error: Exception | None = None
        self._terminated.clear()
        try:
            with self._shown.copies([rel.table_name for rel in rels], self._terminated.set):
                run_round(work, rels)
        except CopyCancelled as cancelled:
            log.info('subscription "%s": %s', self._subscription.name, cancelled)
        except Exception as ended:
            error = ended
        self._recover()
        ids = {rel.sync_id for rel in rels}
        now = [rel for rel in self._catalog.rels() if rel.sync_id in ids]
        if error is not None:
            self._ended(error, [rel for rel in now if rel.state in NOT_COPIED])
            self._alone = not isinstance(error, PenstockError)
        return any(rel.state is SubscriptionRelState.FINISHEDCOPY for rel in now)

    def _recover(self) -> None:
        recover(self._catalog.rels(), self._warehouse, self._catalog, self._subscription.app_id)

    def _failed(self, rel: SubscriptionRel, error: PenstockError) -> None:
        """One table of a round."""
        error = error.with_statement(alter(self._subscription.name))
        if error.sqlstate == NO_RIGHT:
            error = error.changed(hint=missing_right(rel, self._subscription.conninfo))
        if self._disables(rel, error):
            return
        log.warning("%s", error.report())
        log.info(
            'subscription "%s": table "%s" is copied again in %.1f s',
            self._subscription.name,
            rel.qualified_name,
            self._pause(),
        )
        self._wait(rel, error)

    def _ended(self, error: Exception, rels: Sequence[SubscriptionRel]) -> None:
        """All that is left of a round."""
        if any(self._disables(rel, error) for rel in rels):
            return
        if isinstance(error, PenstockError):
            error = error.with_statement(alter(self._subscription.name))
            log.warning("%s", error.report())
        else:
            log.warning("ERROR:  %s", error, exc_info=error)
        log.info(
            'subscription "%s": %d tables are copied again in %.1f s',
            self._subscription.name,
            len(rels),
            self._pause(),
        )
        for rel in rels:
            self._wait(rel, error)

    def _disables(self, rel: SubscriptionRel, error: Exception) -> bool:
        """Whether the subscription is disabled now (DisableSubscriptionAndExit)."""
        if not self._subscription.disable_on_error or max_tries(error) is None:
            return False
        self._wait(rel, error)
        self.disabling = error
        return True

    def _wait(self, rel: SubscriptionRel, error: Exception) -> None:
        self._again_at[rel.sync_id] = time.monotonic() + self._pause()
        self._status.copy_failed(rel.qualified_name, error)

    def _pause(self) -> float:
        """Seconds before what has failed in the last round may begin again."""
        return max(0.0, self._began + self._options().retry_interval - time.monotonic())
