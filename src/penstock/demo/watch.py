"""What is going on, about once a second, on the terminal.

In: the node's status, the newest cut, the publisher's position, the traffic's counter. Out: a live
table on a terminal, otherwise a plain line every few seconds. It reads only; the story decides when
to look on and when to go on.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo import cuts
from penstock.demo.cuts import NewestCut
from penstock.lsn import Lsn
from penstock.node import Node
from penstock.node.status import SubscriptionStatus

_INTERVAL = 1.0
_PLAIN_INTERVAL = 5.0
_WINDOW = 8
_STATES = {"i": "waiting", "d": "copying", "f": "copied", "s": "catching up", "r": "following"}


@dataclass(frozen=True)
class Sample:
    """What is known at one moment."""

    at: float
    transactions: int
    status: SubscriptionStatus | None
    cut: NewestCut | None
    publisher_lsn: Lsn
    flushed_lsn: Lsn | None

    @property
    def ready(self) -> bool:
        """Whether every table has its copy and is in a cut."""
        tables = self.status.tables if self.status else ()
        return self.cut is not None and bool(tables) and all(t.state == "r" for t in tables)

    @property
    def behind(self) -> int | None:
        """Bytes of WAL between the newest cut and the publisher."""
        return None if self.cut is None else max(0, self.publisher_lsn - self.cut.lsn)


class Watch:
    """Takes samples and shows them. ``transactions``: the traffic's counter."""

    def __init__(
        self,
        console: Console,
        node_folder: Path,
        subscription: str,
        slot: str,
        connection: psycopg.Connection[tuple[Any, ...]],
        transactions: Callable[[], int] = lambda: 0,
    ) -> None:
        self._console = console
        self._node = Node(node_folder)
        self._warehouse = node_folder / "warehouse"
        self._subscription = subscription
        self._slot = slot
        self._connection = connection
        self._transactions = transactions
        self._before: Sample | None = None
        self._applied: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._began = time.monotonic()

    def close(self) -> None:
        self._node.close()

    def look_on(
        self,
        headline: str,
        until: Callable[[Sample], bool],
        seconds: float,
        guard: Callable[[], None] = lambda: None,
    ) -> bool:
        """Shows what happens until ``until`` holds, at most ``seconds``; whether it held.

        ``guard`` is called each time and raises when waiting has become pointless.
        """
        deadline = time.monotonic() + seconds
        if not self._console.is_terminal:
            return self._look_on_plainly(headline, until, deadline, guard)
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                sample = self.sample()
                live.update(self._picture(headline, sample), refresh=True)
                if until(sample):
                    return True
                if time.monotonic() >= deadline:
                    return False
                guard()
                self._pause(sample)

    def _look_on_plainly(
        self,
        headline: str,
        until: Callable[[Sample], bool],
        deadline: float,
        guard: Callable[[], None],
    ) -> bool:
        shown = time.monotonic()
        while True:
            sample = self.sample()
            if until(sample):
                return True
            if time.monotonic() >= deadline:
                return False
            if time.monotonic() - shown >= _PLAIN_INTERVAL:
                shown = time.monotonic()
                print(f"  {headline}: {self._line(sample)}", file=sys.stdout, flush=True)
                self._before = sample
            guard()
            self._pause(sample)

    def _pause(self, sample: Sample) -> None:
        time.sleep(max(0.05, _INTERVAL - (time.monotonic() - sample.at)))

    def sample(self) -> Sample:
        ((publisher, flushed),) = self._connection.execute(
            "SELECT pg_current_wal_lsn()::text, (SELECT confirmed_flush_lsn::text"
            " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)",
            (self._slot,),
        ).fetchall()
        status = [s for s in self._node.status() if s.name == self._subscription]
        return Sample(
            at=time.monotonic(),
            transactions=self._transactions(),
            status=status[0] if status else None,
            cut=cuts.newest_cut(self._warehouse, self._subscription),
            publisher_lsn=Lsn.parse(publisher),
            flushed_lsn=Lsn.parse(flushed) if flushed else None,
        )

    # How it looks

    def _line(self, sample: Sample) -> str:
        status = sample.status
        parts = []
        if sample.transactions:
            parts.append(f"{sample.transactions:,} transactions made")
        if sample.cut is None or (status and not sample.ready):
            tables = status.tables if status else ()
            done = sum(t.state in ("s", "r") for t in tables)
            parts.append(f"{done} of {len(tables)} tables copied")
        if status:
            parts.append(f"{status.rows_applied:,} changes applied")
        if sample.cut is not None:
            parts.append(f"{sample.cut.count:,} cuts, newest {sample.cut.lsn}")
            parts.append(f"{(sample.behind or 0) / 1024:,.0f} kB behind")
        return ", ".join(parts)

    def _picture(self, headline: str, sample: Sample) -> Group:
        before = self._before
        self._before = sample
        self._applied.append((sample.at, sample.status.rows_applied if sample.status else 0))
        facts = Table.grid(padding=(0, 3))
        for label, value in self._facts(before, sample):
            facts.add_row(Text(label, style="dim"), value)
        tables = Table(box=None, padding=(0, 3), header_style="dim")
        for column in ("table", "state", "rows copied", "changes applied", "Delta version"):
            left = column in ("table", "state")
            tables.add_column(column, justify="left" if left else "right", no_wrap=True)
        for table in sample.status.tables if sample.status else ():
            version = sample.cut.tables.get(table.name, ("", ""))[1] if sample.cut else ""
            tables.add_row(
                table.name,
                _STATES.get(table.state, table.state),
                f"{table.rows_copied:,}" if table.rows_copied else "",
                f"{table.rows_applied:,}" if table.rows_applied else "",
                str(version),
            )
        elapsed = f"{time.monotonic() - self._began:5.0f} s"
        return Group(Text(f"{elapsed}  {headline}", style="bold"), Text(), facts, Text(), tables)

    def _facts(self, before: Sample | None, sample: Sample) -> list[tuple[str, str]]:
        facts = []
        if sample.transactions and before is not None:
            rate = (sample.transactions - before.transactions) / (sample.at - before.at)
            facts.append(("shop", f"{sample.transactions:,} transactions, {rate:,.0f}/s"))
        if sample.status is not None:
            facts.append(
                ("node", f"{sample.status.state}, {self._applied_per_second():,.0f} rows/s")
            )
        if sample.cut is not None:
            facts.append(("cuts", f"{sample.cut.count:,}, newest at {sample.cut.lsn}"))
            behind = f"{(sample.behind or 0) / 1024:,.0f} kB of WAL"
            facts.append(("lag", f"{behind}, {_age(sample.cut):.1f} s"))
        return facts

    def _applied_per_second(self) -> float:
        """Over the last samples, since batches come in lumps; a new process counts from 0 again."""
        (began, before), (ended, after) = self._applied[0], self._applied[-1]
        return max(0, after - before) / (ended - began) if ended > began else 0.0


def _age(cut: NewestCut) -> float:
    """Seconds since the newest transaction in the cut was committed."""
    if cut.commit_time is None:
        return 0.0
    return max(0.0, (datetime.now(UTC) - cut.commit_time).total_seconds())
