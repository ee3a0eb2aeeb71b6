"""The place where faults happen: a server, a proxy before it, the bank, a node, a checker of cuts.

In: a folder and a seed. Out: one cycle of one kind of fault after the other, with all cuts checked
after each, and the final comparison. One server and one warehouse live through all cycles.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from end_to_end.compare import Difference, delta_rows, difference, publisher_rows
from faults.bank import TABLES, Bank
from faults.check_cuts import CutChecker
from faults.heavy import HEAVY
from faults.node_process import NodeProcess
from fix_proxy import Proxy
from penstock import failpoint
from penstock.embedded import EmbeddedPostgres, wait_until

SERVER: Final[Mapping[str, str | int | bool]] = {
    "deadlock_timeout": "100ms",
    "wal_sender_timeout": "10s",
    "checkpoint_timeout": "30s",
    # the bank's larger transactions are streamed
    "logical_decoding_work_mem": "64kB",
}
NODE: Final[Mapping[str, str | int | bool]] = {
    # Small limits, so that upkeep, spilling and copies in several tasks take part: tables that join
    # are copied by Spark, those that are there at first in the node.
    "copy_unit_size": "512kB",
    "compact_small_files": 12,
    "checkpoint_commits": 25,
    "cuts_kept": 100_000,
}
SUBSCRIPTION: Final = "bank"


@dataclass
class Cycle:
    """One line of the report."""

    number: int
    kind: str
    cuts: int
    seconds: float


class Arena:
    """State of a run. Use it as a context manager."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        warehouse: str = "",
        *,
        two_phase: bool = False,
        version: int = 18,
    ) -> None:
        """``warehouse``: where the tables are to be; empty: a folder. ``two_phase``: some
        transactions are prepared first, as soon as that is enabled. ``version``: of the server."""
        self.rng = random.Random(seed)
        self.two_phase = two_phase
        more = {"max_prepared_transactions": 10} if two_phase else {}
        self.server = EmbeddedPostgres(version, settings={**SERVER, **more})
        rate = 40 if HEAVY else 12
        self.bank = Bank(lambda: psycopg.connect(self.server.conninfo()), seed=seed, rate=rate)
        self.node = NodeProcess(
            folder / "node", warehouse=folder / "warehouse", warehouse_uri=warehouse
        )
        self.cuts = CutChecker(self.node.warehouse_uri, SUBSCRIPTION, every=1 if HEAVY else 4)
        self.cycles: list[Cycle] = []
        self.kills = 0
        self.complaints: list[str] = []
        """What the node said where it had to stop."""
        self._stack = contextlib.ExitStack()
        self._fresh = True

    def __enter__(self) -> Arena:
        stack = self._stack
        stack.enter_context(self.server)
        self.proxy = stack.enter_context(contextlib.closing(Proxy(self.server.port)))
        self.bank.create()
        self.bank.truncating = False
        self.execute(f"CREATE PUBLICATION bank FOR TABLE {', '.join(TABLES)}")
        self.node.init(NODE)
        stack.callback(self.node.close)
        self.node.sql(
            f"CREATE SUBSCRIPTION {SUBSCRIPTION}"
            f" CONNECTION '{self.proxy.conninfo(self.server.conninfo())}' PUBLICATION bank"
            f" WITH (two_phase = {str(self.two_phase).lower()}, failover = true,"
            " partition_by = 'loans (branch); journal (kind)', cluster_by = 'savings (iban)')"
        )
        self.bank.start()
        stack.callback(self.bank.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # Cycles

    def run(self, kind: str, fault: Callable[[Arena], None]) -> Cycle:
        """One cycle: the fault, the checks after it."""
        began, checked = time.monotonic(), self.cuts.checked
        fault(self)
        self.check()
        number = len(self.cycles) + 1
        seconds = time.monotonic() - began
        self.cycles.append(Cycle(number, kind, self.cuts.checked - checked, seconds))
        return self.cycles[-1]

    def check(self) -> None:
        """All new cuts, and law 1 as the publisher sees it."""
        acknowledged = self.value(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s",
            (SUBSCRIPTION,),
        )
        # Asked for afterwards, so it can only be newer.
        last = self.cuts.last_lsn()
        if last >= 0:
            assert acknowledged <= last, f"acknowledged {acknowledged}, the last cut is at {last}"
        with self.bank.paused():  # or more cuts would come meanwhile than are read
            self.cuts.check_new()
        newest = self.cuts.last()
        if newest is not None and set(TABLES) <= set(newest.tables):
            self.bank.truncating = True

    def kill_at(self, name: str) -> None:
        """Start with an armed failpoint and wait for the death."""
        self.end_somewhere()
        self.draw_limits()
        # One table joins, so one copy is committed.
        passes = 1 if name == failpoint.AFTER_COPY_COMMIT else self.rng.randint(1, 4)
        self.node.start(f"{name}:{passes}")
        # The first time the first copy is still to come.
        if name in (failpoint.INSIDE_COPY, failpoint.AFTER_COPY_COMMIT) and not self._fresh:
            self.let_a_table_join()
        self._fresh = False
        self._wait_killed(name)

    def kill_somewhere(self) -> None:
        """SIGKILL some time after a cut."""
        self.new_cut()
        self.pause(2.0)
        self.node.kill9()
        self.kills += 1

    def restart_server(self, mode: Any) -> None:
        """The server stops, is away for a moment and comes back; the node goes on by itself."""
        self.new_cut()
        self.server.stop(mode)
        self.pause(1.0)
        self.server.start()
        self.catch_up()

    def cut_connections(self) -> None:
        """Every connection ends inside a message; the next one as well, soon after it began."""
        self.new_cut()
        self.proxy.cut_after(self.rng.randint(1, 20_000))
        self.new_cut()
        self.proxy.cut_after(self.rng.randint(1, 3000))
        self.catch_up()

    def cut_connections_in_copy(self) -> None:
        """The sessions that copy a joining table end inside its rows, again and again."""
        self.new_cut()
        before = self.proxy.connections
        name = self.let_a_table_join()
        for _ in range(3):
            self._copying(name, before)
            self.proxy.cut_after(self.rng.randint(100_000, 1_000_000))
            before = self.proxy.connections
        self.joined(name)
        self.catch_up()

    def restart_server_in_copy(self) -> None:
        """The server goes away while a joining table is copied."""
        self.new_cut()
        name = self.let_a_table_join()
        self.pause(2.0)
        self.server.restart("immediate")
        self.joined(name)
        self.catch_up()

    def stall_connections(self) -> None:
        """The network goes deaf and is then cut."""
        self.new_cut()
        self.proxy.stall()
        self.pause(2.0)
        self.proxy.cut()
        self.proxy.resume()
        self.catch_up()

    def kill_of_spark(self, kill: Callable[[], None], master: str = "local[5]") -> None:
        """``kill`` processes of Spark: while a table is copied, and twice while Spark applies
        batches. The node goes on by itself."""
        if self.node.running:
            self.node.kill9()
        self.draw_limits(master)
        self.node.start()
        self.new_cut()
        before = self.proxy.connections
        name = self.let_a_table_join()
        self._copying(name, before)
        kill()
        self.joined(name)
        for _ in range(2):
            self.new_cut()
            self.pause(1.0)
            kill()
            self.catch_up()
        self.kills += 3

    def finish(self) -> list[Difference]:
        """Stop the bank, wait for the last transaction, compare all tables, stop the node."""
        self.bank.stop()
        self.catch_up()
        tables = (*TABLES, *self.bank.late)
        for name in tables:
            self.joined(name)
        self.check()
        assert self.node.stop() == 0, self.node.log_tail()
        self.check()
        last = self.cuts.last()
        assert last is not None
        assert set(last.tables) == set(tables)
        with self.connect() as connection:
            return [
                difference(
                    t, publisher_rows(connection, f"public.{t}"), delta_rows(*last.tables[t])
                )
                for t in tables
            ]

    # Steps

    def start(self) -> None:
        """Have a node that runs."""
        if not self.node.running:
            self.draw_limits()
            self.node.start()

    def draw_limits(self, master: str = "") -> None:
        """Limits of a batch, other ones at each start: batches that come again end elsewhere."""
        limits = {
            "apply_batch_delay": self.rng.choice(("50ms", "300ms", "1s")),
            "logical_decoding_work_mem": self.rng.choice(("64kB", "256kB", "1MB")),
            "apply_queue_mem": self.rng.choice(("64kB", "1MB")),
            "backlog_copy_threshold": self.rng.choice(("16kB", "64MB")),
        }
        # With few cores, the node applies batches itself; with more, Spark does.
        master = master or self.rng.choice(("local[2]", "local[5]"))
        memory = "" if master.startswith("local") else "512m"
        self.node.configure({**NODE, **limits}, master=master, executor_memory=memory)

    def end_somewhere(self) -> None:
        """Have no node that runs."""
        if self.node.running:
            self.kill_somewhere()

    def new_cut(self) -> None:
        """Have a running node with a cut newer than those of now."""
        self.start()
        before = self.cuts.last_lsn()
        self.node.wait_for("a new cut", lambda: self.cuts.last_lsn() > before)

    def catch_up(self) -> None:
        """Have a cut that holds everything committed until now."""
        self.start()
        target = self.value("SELECT pg_current_wal_flush_lsn() - '0/0'")
        last_lsn = self.cuts.last_lsn
        self.node.wait_for("catching up", lambda: last_lsn() >= target, progress=last_lsn)

    def acknowledged(self, lsn: int) -> None:
        """Have a slot that sends nothing from before a position."""
        slot = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        self.node.wait_for("the slot to move on", lambda: self.value(slot, [SUBSCRIPTION]) > lsn)

    def joined(self, name: str) -> None:
        """Have a cut with that table in it; a stream that is behind gets there in the end."""
        self.start()
        last_lsn = self.cuts.last_lsn
        self.node.wait_for(
            f"{name} in a cut", lambda: self._is_in_cuts(name), timeout=180, progress=last_lsn
        )

    def left(self, name: str) -> None:
        """Have a cut without that table."""
        self.node.wait_for(f"a cut without {name}", lambda: not self._is_in_cuts(name))

    def let_a_table_join(self) -> str:
        """A table for the copy to die in: one more joins the running node."""
        name = self.bank.add_late_table()
        self.let_join(name)
        return name

    def let_join(self, name: str) -> None:
        """A table joins the publication and the subscription."""
        self.execute(f"ALTER PUBLICATION bank ADD TABLE {name}")
        self.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} REFRESH PUBLICATION")

    def let_leave(self, name: str) -> None:
        """A table leaves the publication and the subscription."""
        self.execute(f"ALTER PUBLICATION bank DROP TABLE {name}")
        self.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} REFRESH PUBLICATION")

    def complaint(self, what: str, pattern: str, timeout: float = 120) -> str:
        """Wait until the node says that it does not go on, and why; its report, hint included."""
        # The hint comes last, of a subscription that stops after the line that says so.
        report = re.compile(f"ERROR:.*?({pattern})(.*\\n)+?HINT:.*\\n")
        found = wait_until(
            lambda: report.search(self.node.news()),
            f"word of {pattern!r}: {what}",
            timeout,
            state=self.node.log_tail,
            pause=0.1,
        )
        assert found is not None
        self.complaints.append(f"{what}: {found[0].splitlines()[0]}")
        return found[0]

    def enable(self) -> None:
        """What stopped the subscription is over: let it go on, as its message says."""
        self.node.forgive()
        self.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE")

    def pause(self, most: float) -> None:
        """Let a random time pass, so that faults hit at random moments."""
        time.sleep(self.rng.uniform(0, most))

    def _is_in_cuts(self, name: str) -> bool:
        last = self.cuts.last()
        return last is not None and name in last.tables

    def _copying(self, name: str, connections: int) -> None:
        """Wait for the sessions of a copy, or its end."""
        self.node.wait_for(
            f"the copy of {name}",
            lambda: self.proxy.connections > connections + 2 or self._is_in_cuts(name),
        )

    def _wait_killed(self, name: str) -> None:
        status = self.node.wait_end(120)
        assert status is not None, f"failpoint {name} was not reached\n{self.node.log_tail()}"
        assert status == -9, f"the node ended with status {status}\n{self.node.log_tail()}"
        self.kills += 1

    # The publisher

    def also(self, server: EmbeddedPostgres) -> EmbeddedPostgres:
        """A further server, started, which ends with the arena."""
        return self._stack.enter_context(server)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.conninfo(), autocommit=True)

    def refuses_its_own_slot(self) -> str | None:
        """What the publisher answers to its own functions, which read what the slot has for us."""
        try:
            self.value(
                "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
                " 'proto_version', '4', 'publication_names', 'bank', 'streaming', 'parallel')",
                (SUBSCRIPTION,),
            )
        except psycopg.errors.InternalError_ as error:
            return str(error)
        return None

    def execute(self, sql: str) -> None:
        with self.connect() as connection:
            connection.execute(sql)

    def value(self, sql: str, parameters: Any = None) -> int:
        with self.connect() as connection:
            ((value,),) = connection.execute(sql, parameters).fetchall()
        return int(value)
