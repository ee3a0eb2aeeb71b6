"""A transaction that cannot be applied is skipped as PostgreSQL's documentation says (29.7)."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_FINISHED = re.compile(r'relation "skipped\.t" .*?finished at ([0-9A-F]+/[0-9A-F]+)')


@pytest.mark.parametrize(("publisher", "version"), [("node", 15), ("node", 18), ("postgresql", 15)])
def test_both_ways_skip_one_transaction_and_nothing_else(
    lake: LakeNode, subscriber: Callable[..., Database], version: int, publisher: str
) -> None:
    name = f"skip_{publisher}_{version}"
    target = subscriber(version)
    write = lake.execute
    if publisher == "postgresql":
        source = subscriber(17)  # not the server that subscribes: it would wait for itself
        write = source.execute  # type: ignore[assignment]
        conninfo = source.conninfo
    else:
        conninfo = lake.conninfo()
    for execute in (write, target.execute):
        execute("CREATE SCHEMA skipped")
        execute("CREATE TABLE skipped.t (id integer PRIMARY KEY, v text)")
    write("CREATE PUBLICATION skipped FOR TABLE skipped.t")
    target.execute(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo.replace(chr(39), chr(39) * 2)}' "
        "PUBLICATION skipped WITH (disable_on_error = true)"
    )
    lake.copied(target, name)
    target.execute("INSERT INTO skipped.t VALUES (1, 'mine'), (2, 'mine')")

    write("INSERT INTO skipped.t VALUES (1, 'theirs')")
    first = finish_lsn(target, name)
    target.execute(f"ALTER SUBSCRIPTION {name} SKIP (lsn = '{first}')")
    target.execute(f"ALTER SUBSCRIPTION {name} ENABLE")
    write("INSERT INTO skipped.t VALUES (3, 'theirs')")
    wait_until(lambda: len(target.rows("SELECT FROM skipped.t")) == 3, "the row that comes next")

    write("INSERT INTO skipped.t VALUES (2, 'theirs')")
    second = finish_lsn(target, name)
    assert second != first
    target.execute(
        f"SELECT pg_replication_origin_advance('pg_' || oid, '{second}'::pg_lsn + 1) "
        f"FROM pg_subscription WHERE subname = '{name}'"
    )
    target.execute(f"ALTER SUBSCRIPTION {name} ENABLE")
    write("INSERT INTO skipped.t VALUES (4, 'theirs')")
    wait_until(lambda: len(target.rows("SELECT FROM skipped.t")) == 4, "the row that comes next")
    assert target.rows("SELECT * FROM skipped.t ORDER BY id") == [
        (1, "mine"),
        (2, "mine"),
        (3, "theirs"),
        (4, "theirs"),
    ]
    target.execute(f"DROP SUBSCRIPTION {name}")
    if publisher == "node":
        write("DROP PUBLICATION skipped", "DROP TABLE skipped.t", "DROP SCHEMA skipped")


def finish_lsn(target: Database, name: str) -> str:
    """Of the transaction that has stopped the subscription, from the server's log."""
    wait_until(
        lambda: (
            not target.value("SELECT subenabled FROM pg_subscription WHERE subname = %s", (name,))
        ),
        f"the end of {name}",
    )
    return str(_FINISHED.findall(target.server.log())[-1])
