"""The worked examples of PostgreSQL's chapter "Logical Decoding", word for word, on a node.

What psql and pg_recvlogical print is what is printed there, and what a stock server prints; LSNs,
xids, times and the width of columns are put aside.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import IO

import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.psql_pair import SUPERUSER, Pair, psql
from publishing.recvlogical import recvlogical

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SQL_INTERFACE = r"""
postgres=# -- Create a slot named 'regression_slot' using the output plugin 'test_decoding'
postgres=# SELECT * FROM pg_create_logical_replication_slot('regression_slot', 'test_decoding', false, true);
    slot_name    |    lsn
-----------------+-----------
 regression_slot | 0/16B1970
(1 row)

postgres=# SELECT slot_name, plugin, slot_type, database, active, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots;
    slot_name    |    plugin     | slot_type | database | active | restart_lsn | confirmed_flush_lsn
-----------------+---------------+-----------+----------+--------+-------------+-----------------
 regression_slot | test_decoding | logical   | postgres | f      | 0/16A4408   | 0/16A4440
(1 row)

postgres=# -- There are no changes to see yet
postgres=# SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL);
 lsn | xid | data
-----+-----+------
(0 rows)

postgres=# CREATE TABLE data(id serial primary key, data text);
CREATE TABLE

postgres=# -- DDL isn't replicated, so all you'll see is the transaction
postgres=# SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL);
    lsn    |  xid  |     data
-----------+-------+--------------
 0/BA2DA58 | 10297 | BEGIN 10297
 0/BA5A5A0 | 10297 | COMMIT 10297
(2 rows)

postgres=# -- Once changes are read, they're consumed and not emitted
postgres=# -- in a subsequent call:
postgres=# SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL);
 lsn | xid | data
-----+-----+------
(0 rows)

postgres=# BEGIN;
BEGIN
postgres=*# INSERT INTO data(data) VALUES('1');
INSERT 0 1
postgres=*# INSERT INTO data(data) VALUES('2');
INSERT 0 1
postgres=*# COMMIT;
COMMIT

postgres=# SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL);
    lsn    |  xid  |                          data
-----------+-------+---------------------------------------------------------
 0/BA5A688 | 10298 | BEGIN 10298
 0/BA5A6F0 | 10298 | table public.data: INSERT: id[integer]:1 data[text]:'1'
 0/BA5A7F8 | 10298 | table public.data: INSERT: id[integer]:2 data[text]:'2'
 0/BA5A8A8 | 10298 | COMMIT 10298
(4 rows)

postgres=# INSERT INTO data(data) VALUES('3');
INSERT 0 1

postgres=# -- You can also peek ahead in the change stream without consuming changes
postgres=# SELECT * FROM pg_logical_slot_peek_changes('regression_slot', NULL, NULL);
    lsn    |  xid  |                          data
-----------+-------+---------------------------------------------------------
 0/BA5A8E0 | 10299 | BEGIN 10299
 0/BA5A8E0 | 10299 | table public.data: INSERT: id[integer]:3 data[text]:'3'
 0/BA5A990 | 10299 | COMMIT 10299
(3 rows)

postgres=# -- The next call to pg_logical_slot_peek_changes() returns the same changes again
postgres=# SELECT * FROM pg_logical_slot_peek_changes('regression_slot', NULL, NULL);
    lsn    |  xid  |                          data
-----------+-------+---------------------------------------------------------
 0/BA5A8E0 | 10299 | BEGIN 10299
 0/BA5A8E0 | 10299 | table public.data: INSERT: id[integer]:3 data[text]:'3'
 0/BA5A990 | 10299 | COMMIT 10299
(3 rows)

postgres=# -- options can be passed to output plugin, to influence the formatting
postgres=# SELECT * FROM pg_logical_slot_peek_changes('regression_slot', NULL, NULL, 'include-timestamp', 'on');
    lsn    |  xid  |                          data
-----------+-------+---------------------------------------------------------
 0/BA5A8E0 | 10299 | BEGIN 10299
 0/BA5A8E0 | 10299 | table public.data: INSERT: id[integer]:3 data[text]:'3'
 0/BA5A990 | 10299 | COMMIT 10299 (at 2017-05-10 12:07:21.272494-04)
(3 rows)

postgres=# -- Remember to destroy a slot you no longer need to stop it consuming
postgres=# -- server resources:
postgres=# SELECT pg_drop_replication_slot('regression_slot');
 pg_drop_replication_slot
-----------------------

(1 row)
"""  # noqa: E501
_OF_THE_TABLE = "\n LSN | XID | BEGIN XID\n LSN | XID | COMMIT XID\n(2 rows)"
"""A table's creation is a transaction there; on a node it is none (docs/logical-decoding.md)."""
_PROMPT = re.compile(r"^postgres=\*?# ", re.MULTILINE)
_LEFT_ASIDE = (
    (re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b"), "LSN"),
    (re.compile(r"\b(BEGIN|COMMIT) \d+"), r"\1 XID"),
    (re.compile(r"LSN \| +\d+ "), "LSN | XID "),
    (re.compile(r"\(at [^)]+\)"), "(at TIME)"),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r" +"), " "),
    (re.compile(r"\n\s*\n+"), "\n"),
    (re.compile(r" $", re.MULTILINE), ""),
)


def _compared(printed: str) -> str:
    for pattern, shown in _LEFT_ASIDE:
        printed = pattern.sub(shown, printed)
    return printed.strip()


def test_the_sql_interface(pair: Pair, database_on: Callable[..., Database]) -> None:
    commands = [line for line in _SQL_INTERFACE.splitlines() if _PROMPT.match(line)]
    script = "\n".join(_PROMPT.sub("", line) for line in commands)
    wanted = _compared(_PROMPT.sub("", _SQL_INTERFACE))
    assert _OF_THE_TABLE in wanted
    ours = wanted.replace(_OF_THE_TABLE, "\n(0 rows)")
    server = database_on(17)  # 18's package has no test_decoding
    for conninfo, database, expected in (
        (server.conninfo, server.name, wanted),
        (pair.lake.conninfo(SUPERUSER), "lake", ours),
    ):
        printed = psql(conninfo, script).partition("\n")[2]
        found = _compared(printed).replace(f"| {database} |", "| postgres |")
        assert found == expected
    pair.lake.execute("DROP TABLE data")


def _done(pair: Pair, *arguments: str) -> None:
    with recvlogical(pair.lake, SUPERUSER, *arguments) as process:
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed, errors) == (0, "", "")


def test_pg_recvlogical(pair: Pair) -> None:
    """Example 1 of "Replication Slots" on the shell: --start waits in the background."""
    lake = pair.lake
    lake.execute(
        "CREATE TABLE data(id serial primary key, data text)",
        "INSERT INTO data(data) VALUES ('1'), ('2'), ('3')",
    )
    _done(pair, "--slot=test", "--create-slot")
    with recvlogical(pair.lake, SUPERUSER, "--slot=test", "--start", "-f", "-") as started:
        wait_until(
            lambda: lake.rows("SELECT active FROM pg_replication_slots") == [(True,)], "the stream"
        )
        psql(lake.conninfo(SUPERUSER), "INSERT INTO data(data) VALUES('4');\n")
        output: IO[str] | None = started.stdout
        assert output is not None
        printed = [output.readline() for _ in range(3)]
        started.send_signal(signal.SIGINT)
        started.wait(60)
    xid = printed[0].split()[-1]
    assert printed == [
        f"BEGIN {xid}\n",
        "table public.data: INSERT: id[integer]:4 data[text]:'4'\n",
        f"COMMIT {xid}\n",
    ]
    _done(pair, "--slot=test", "--drop-slot")
    assert lake.rows("SELECT slot_name FROM pg_replication_slots") == []
    lake.execute("DROP TABLE data")
