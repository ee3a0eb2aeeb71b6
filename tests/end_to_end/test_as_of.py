"""Tables as of an LSN or a time, beside the publisher's own answers at each moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import InvalidParameterValue, NotInPrerequisiteState
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


@part_of_make_faults
def test_each_moment_can_be_read_again(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute("CREATE TABLE t (a int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    local = local_node()
    node = local.node
    local.subscribe("s", database, "p")
    local.caught_up("s", database)
    moments = []
    for change in (
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "UPDATE t SET v = 'changed' WHERE a = 2",
        "DELETE FROM t WHERE a = 1; INSERT INTO t VALUES (3, 'three')",
    ):
        database.execute(change)
        local.caught_up("s", database)
        ((lsn, now),) = database.rows("SELECT pg_current_wal_flush_lsn()::text, clock_timestamp()")
        moments.append((lsn, now, database.rows("SELECT * FROM t ORDER BY a")))

    def rows(as_of: object) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in node.read("t", as_of=as_of).collect())  # type: ignore[arg-type]

    for lsn, now, wanted in moments:
        for as_of in (lsn, Lsn.parse(lsn), int(Lsn.parse(lsn)), now):
            assert rows(as_of) == wanted
    cuts = node.cuts()
    assert [cut.cut_time for cut in cuts] == sorted(cut.cut_time for cut in cuts)
    assert cuts[-1] == node.cut()
    assert rows(cuts[-1]) == moments[-1][2]
    lsn, _, wanted = moments[1]
    node.views(as_of=lsn)
    assert [tuple(row) for row in node.spark.sql("SELECT * FROM t ORDER BY a").collect()] == wanted
    with pytest.raises(NotInPrerequisiteState, match="has no cut of 0/1 or before"):
        node.read("t", as_of="0/1")
    with pytest.raises(NotInPrerequisiteState, match="or before"):
        node.read("t", as_of=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(InvalidParameterValue, match="has no time zone"):
        node.read("t", as_of=datetime.now())


@part_of_make_faults
def test_cuts_are_kept_for_a_time(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    local = local_node(cuts_kept=1, cuts_kept_for="3d", checkpoint_commits=1)
    local.subscribe("s", database, "p")
    local.caught_up("s", database)
    for a in range(6):
        database.execute(f"INSERT INTO t VALUES ({a})")
        local.caught_up("s", database)
    cuts = local.node.cuts()
    assert len(cuts) >= 7
    for cut in cuts[-6:]:
        assert local.node.read("t", as_of=cut).count() >= cuts.index(cut) - len(cuts) + 7
    uri = cuts[-1].tables["public", "t"].uri

    def retentions() -> set[str]:
        found = DeltaTable(uri).metadata().configuration
        return {found[f"delta.{name}RetentionDuration"] for name in ("log", "deletedFile")}

    wait_until(lambda: retentions() == {f"interval {4 * 86_400} seconds"}, "the properties")
