"""Several processes on one catalog: nothing is lost, nobody sees half a transaction."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.catalog import Catalog, SubscriptionRelState

WRITERS, ROUNDS = 3, 8

# Each round adds a subscription with two tables in one transaction and reports numbers.
WRITER = """
import sys
from penstock.catalog import Catalog, SubscriptionRelState, SubscriptionStatistics
url, writer, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Catalog.open(url) as catalog:
    for round in range(rounds):
        with catalog.write() as t:
            s = t.subscriptions.create(
                f"s_{writer}_{round}", conninfo="x=1", publications=["p"], slot_name=None
            )
            t.relations.add(s.oid, [("public", "a"), ("public", "b")], SubscriptionRelState.INIT)
        for rel in catalog.relations(s.oid):
            catalog.set_state(rel, SubscriptionRelState.DATASYNC, None)
        catalog.statistics.report(
            [SubscriptionStatistics(subid=s.oid, pid=1, state="x", updated_at=0.0)]
        )
"""

# Writes a row, says so, and waits inside the transaction to be killed.
INTERRUPTED = """
import sys, time
from penstock.catalog import Catalog
with Catalog.open(sys.argv[1]) as catalog:
    with catalog.write() as t:
        t.subscriptions.create("half", conninfo="x=1", publications=["p"], slot_name=None)
        print("written", flush=True)
        time.sleep(60)
"""


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with Catalog.create(url) as catalog:
        start = catalog.generation()
        processes = [
            subprocess.Popen([sys.executable, "-c", WRITER, url, str(n), str(ROUNDS)])
            for n in range(WRITERS)
        ]
        seen = start
        while any(process.poll() is None for process in processes):
            assert catalog.generation() >= seen
            seen = catalog.generation()
            with catalog.read() as t:
                subscriptions, rels = t.subscriptions.all(), t.relations.all()
            assert len(rels) == 2 * len(subscriptions), "a transaction is seen whole"
        assert [process.returncode for process in processes] == [0] * WRITERS
        subscriptions = catalog.subscriptions()
        assert len({s.oid for s in subscriptions}) == WRITERS * ROUNDS
        states = {rel.state for rel in catalog.relations()}
        assert states == {SubscriptionRelState.DATASYNC}
        assert catalog.generation() == start + 3 * WRITERS * ROUNDS
        assert len(catalog.statistics.all()) == WRITERS * ROUNDS


def test_a_killed_writer_leaves_nothing_and_holds_nobody_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with Catalog.create(url) as catalog:
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, url], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "written\n"
            assert catalog.subscriptions() == ()
            os.kill(process.pid, signal.SIGKILL)
        with catalog.write() as t:
            t.subscriptions.create("whole", conninfo="x=1", publications=["p"], slot_name=None)
        assert [s.name for s in catalog.subscriptions()] == ["whole"]
