"""TPC-B: pgbench's own transaction, which changes four tables.

In: the tables that pgbench made. Out: figures of a backlog and of a steady rate.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Final

from changes import mark
from context import Bench, Outcome
from kinds import backlogs, steady_rate
from penstock.embedded import EmbeddedPostgres
from servers import ROWS_PER_SCALE, Server
from subject import Subject, Table

_CLIENTS: Final = 2
_CHANGES: Final = 4
_TELLERS: Final = 10
"""For each branch."""
_RATE: Final = 200.0

TPCB: Final = Subject(
    "bench_tpcb",
    (
        Table("pgbench_accounts", ("CAST(aid AS bigint) * CAST(abalance AS bigint)",)),
        Table("pgbench_tellers", ("CAST(tid AS bigint) * CAST(tbalance AS bigint)",)),
        Table("pgbench_branches", ("CAST(bid AS bigint) * CAST(bbalance AS bigint)",)),
        Table("pgbench_history", ("CAST(aid AS bigint) * CAST(delta AS bigint)", "tid", "bid")),
    ),
    touch="UPDATE pgbench_branches SET bbalance = bbalance WHERE bid = 1",
)


def publish(publisher: Server) -> None:
    """The tables are there."""
    publisher.execute(f"CREATE PUBLICATION {TPCB.name} FOR TABLE {TPCB.table_names}")


def backlog(bench: Bench) -> Outcome:
    """Made by the program pgbench."""
    count = bench.sizes.tpcb
    with bench.subscribed(TPCB) as sides:
        figures = backlogs(
            bench,
            TPCB,
            sides,
            functools.partial(_backlog, bench.cluster, bench.publisher, count),
            what=f"backlog of {count} TPC-B transactions, 4 changes each",
            count=count * _CHANGES,
        )
        return Outcome(figures, bench.equal(TPCB, sides))


def steady(bench: Bench) -> Outcome:
    """The same transaction, from one session."""
    with bench.subscribed(TPCB) as sides:
        figure = steady_rate(
            bench,
            TPCB,
            sides,
            functools.partial(transactions, bench.sizes.rows),
            what=f"commit to visible, TPC-B, {_RATE:.0f}/s",
            rate=_RATE,
        )
        return Outcome([figure], bench.equal(TPCB, sides))


def transactions(rows: int) -> Iterator[str]:
    """What is between BEGIN and END of pgbench's script, for ``rows`` accounts."""
    draw = random.Random(42)
    branches = max(1, rows // ROWS_PER_SCALE)
    while True:
        aid, bid = draw.randint(1, rows), draw.randint(1, branches)
        tid, delta = draw.randint(1, branches * _TELLERS), draw.randint(-5000, 5000)
        yield (
            f"UPDATE pgbench_accounts SET abalance = abalance + {delta} WHERE aid = {aid};"
            f"SELECT abalance FROM pgbench_accounts WHERE aid = {aid};"
            f"UPDATE pgbench_tellers SET tbalance = tbalance + {delta} WHERE tid = {tid};"
            f"UPDATE pgbench_branches SET bbalance = bbalance + {delta} WHERE bid = {bid};"
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
            f" VALUES ({tid}, {bid}, {aid}, {delta}, CURRENT_TIMESTAMP)"
        )


def _backlog(cluster: EmbeddedPostgres, publisher: Server, count: int) -> int:
    # For sessions that begin from now on: pgbench's.
    publisher.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    each = str(count // _CLIENTS)
    cluster.pgbench("-n", "-M", "prepared", "-c", str(_CLIENTS), "-t", each)
    publisher.execute("ALTER DATABASE postgres RESET synchronous_commit")
    return mark(publisher, TPCB.touch)
