"""A node inside the test's process, on the shared Spark session, for tests that need no kill.

In: a folder, a Spark session, parameters. Out: subscriptions that are waited for; rows at the last
cut, read by delta-rs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from end_to_end.compare import Row, delta_rows
from fix_postgres import Database
from penstock import Node
from penstock.embedded import wait_until
from penstock.lakehouse.cuts import Cut
from penstock.node.status import SubscriptionStatus


class LocalNode:
    """Wraps ``penstock.Node`` with waiting."""

    def __init__(
        self, folder: Path, spark: Any, parameters: Mapping[str, Any] | None = None
    ) -> None:
        Node.init(folder, state=(parameters or {}).get("state")).close()
        values = {
            "warehouse": str(folder / "warehouse"),
            "wal_receiver_status_interval": "1s",
            "wal_retrieve_retry_interval": "200ms",
            "max_logical_replication_workers": 16,
            **(parameters or {}),
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        (folder / "penstock.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.node = Node(folder, spark=spark)

    def __enter__(self) -> LocalNode:
        self.node.__enter__()
        self.node.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.node.__exit__(*error)

    def subscribe(self, name: str, database: Database, publication: str, options: str = "") -> None:
        """CREATE SUBSCRIPTION to a database of a test server."""
        self.node.sql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{database.conninfo}' PUBLICATION {publication}"
            + (f" WITH ({options})" if options else "")
        )

    def status(self, name: str) -> SubscriptionStatus:
        """The status of one subscription."""
        (found,) = [status for status in self.node.status() if status.name == name]
        return found

    def caught_up(self, name: str, database: Database, timeout: float = 90) -> None:
        """Wait until all tables are in a cut that holds what is committed now."""
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        self.has_passed(name, target, timeout)

    def has_passed(self, name: str, target: int, timeout: float = 90) -> None:
        """Wait until all tables are in a cut at an LSN, or a later one."""

        def state(status: SubscriptionStatus) -> bool:
            joined = bool(status.tables) and all(t.state == "r" for t in status.tables)
            return joined and status.cut_lsn is not None and status.cut_lsn >= target

        self.wait_for(name, f"catching up to {target}", state, timeout)

    def looks(self, name: str, database: Database) -> None:
        """Restart, and wait until the new session has looked at the publisher's definitions: the
        former one's last cut has all that is committed before, so the new one gets something more
        to pass."""
        self.node.stop()
        self.node.start()
        lsn = database.value("SELECT pg_logical_emit_message(true, 'look', '') - '0/0'")
        self.has_passed(name, int(lsn) + 1)

    def caught_up_but_parked(self, name: str, database: Database, timeout: float = 90) -> None:
        """As ``caught_up``, of the tables that are not parked."""
        target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

        def state(status: SubscriptionStatus) -> bool:
            joined = all(t.state in "rp" for t in status.tables)
            return joined and status.cut_lsn is not None and status.cut_lsn >= target

        self.wait_for(name, f"catching up to {target}", state, timeout)

    def new_cut(self, name: str) -> None:
        """Wait until there is a cut newer than the last one of now."""
        before = self.status(name).cut_lsn or 0
        self.wait_for(name, "a new cut", lambda status: (status.cut_lsn or 0) > before)

    def stopped(self, name: str, timeout: float = 60) -> SubscriptionStatus:
        """Wait until the subscription has stopped with an error."""
        self.wait_for(name, "an error", lambda status: status.stopped, timeout, fails=False)
        return self.status(name)

    def retrying(self, name: str) -> SubscriptionStatus:
        """Wait until the subscription is tried again after an error."""

        def fails(status: SubscriptionStatus) -> bool:
            return status.error is not None and status.state == "waiting to retry"

        self.wait_for(name, "a pause after an error", fails)
        return self.status(name)

    def no_worker(self) -> None:
        """Wait until the workers of disabled subscriptions have ended, which a state does not say:
        one that is about to begin a stream begins it first."""
        pids = "SELECT 1 FROM pg_stat_subscription WHERE pid IS NOT NULL"
        wait_until(lambda: not self.node.sql(pids).rows, "the end of the workers")

    def wait_for(
        self,
        name: str,
        what: str,
        state: Callable[[SubscriptionStatus], bool],
        timeout: float = 60,
        *,
        fails: bool = True,
    ) -> None:
        """Wait for a state; ``fails``: an error that stops the subscription fails the test."""

        def look() -> bool:
            status = self.status(name)
            found = state(status)
            assert found or not (fails and status.stopped), f"waiting for {what}: {status}"
            return found

        wait_until(look, what, timeout, state=lambda: self.status(name))

    def cut(self, subscription: str = "s") -> Cut:
        """The last cut, which must exist."""
        cut = self.node.cut(subscription)
        assert cut is not None
        return cut

    def rows(self, table: str, *, schema: str = "public", subscription: str = "s") -> list[Row]:
        """Rows at the last cut."""
        pin = self.cut(subscription).tables[schema, table]
        return delta_rows(pin.uri, pin.version)
