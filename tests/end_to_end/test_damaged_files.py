"""Data files that are damaged or gone: an error that names the file and its table, of this table
alone, and ways on that work to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.embedded import free_port
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_KEY = 1_013_904_223
"""The key whose row is updated. Keys do not compress, so their bytes stand in the file."""
_SETUP = (
    "CREATE TABLE {0} (id integer PRIMARY KEY, v text);"
    f"INSERT INTO {{0}} SELECT (i * 1664525::bigint + {_KEY}) % 2147483647, md5(i::text)"
    " FROM generate_series(0, 19999) i;"
)
_UPDATE = f"UPDATE {{0}} SET v = 'new' WHERE id = {_KEY};"
_GOES_ON = "INSERT INTO sound SELECT max(id) + 1, 'on' FROM sound"


def _key(path: Path, content: bytearray) -> None:
    """One bit of the key: nothing but a checksum tells it from another key."""
    at = bytes(content).index(_KEY.to_bytes(4, "little"))
    content[at] ^= 1


def _pages(path: Path, content: bytearray) -> None:
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset + 16
    content[at : at + 200] = bytes(255 - byte for byte in content[at : at + 200])


def _head(path: Path, content: bytearray) -> None:
    content[:16] = bytes(255 - byte for byte in content[:16])


def _footer(path: Path, content: bytearray) -> None:
    content[-300:-100] = bytes(255 - byte for byte in content[-300:-100])


def _short(path: Path, content: bytearray) -> None:
    del content[len(content) // 2 :]


_DAMAGES = {"key": _key, "pages": _pages, "head": _head, "footer": _footer, "short": _short}
_TABLES = (*_DAMAGES, "gone")


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> Iterator[LocalNode]:
    for table in (*_TABLES, "sound"):
        database.execute(_SETUP.format(table))
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    trust = ["host all all 127.0.0.1/32 trust"]
    yield local_node(key_index_size=0, port=free_port(), hba=trust)


def file_of(node: LocalNode, table: str) -> Path:
    (path,) = (node.warehouse / "public" / table).glob("part-*.parquet")
    return path


def damage(node: LocalNode, table: str) -> bytes:
    """Damage the only data file of a table; return what it held."""
    path = file_of(node, table)
    sound = path.read_bytes()
    if table == "gone":
        path.unlink()
    else:
        content = bytearray(sound)
        _DAMAGES[table](path, content)
        path.write_bytes(content)
    return sound


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def assert_told(error: str | None, hint: str | None, path: Path) -> None:
    assert f'could not read file "file://{path}"' in str(error)
    what = "damaged" if path.exists() else "gone"
    assert str(hint).startswith(f"The file is {what}: put it back from a copy."), hint


def statements(status: SubscriptionStatus) -> list[str]:
    return re.findall(
        r"ALTER SUBSCRIPTION s [A-Z]+(?: PUBLICATION| \([^)]*\))?", str(status.error_hint)
    )


def test_only_their_tables_are_parked(node: LocalNode, database: Database) -> None:
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database, timeout=180)
    paths = {table: file_of(node, table) for table in _TABLES}
    for table in _TABLES:
        damage(node, table)
    database.execute("".join(map(_UPDATE.format, _TABLES)) + _GOES_ON)

    def parked(status: SubscriptionStatus) -> bool:
        return {t.name for t in status.tables if t.state == "p"} == {
            f"public.{table}" for table in _TABLES
        }

    node.wait_for("s", "the parked tables", parked)
    node.caught_up_but_parked("s", database)
    assert_equal(node, database, "sound")
    refresh = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
    for told in node.status("s").tables:
        if told.state == "p":
            assert_told(told.error, told.error_hint, paths[told.name.removeprefix("public.")])
            assert refresh in str(told.error_hint)
    assert len(node.node.sql(refresh).notices) == len(_TABLES)
    node.caught_up("s", database)
    assert_equal(node, database, *_TABLES, "sound")


def test_the_ways_on_of_a_stopped_subscription(node: LocalNode, database: Database) -> None:
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    for table in _TABLES:
        path = file_of(node, table)
        sound = damage(node, table)
        database.execute(_UPDATE.format(table) + _GOES_ON)
        status = node.stopped("s")
        assert_told(status.error, status.error_hint, path)
        assert f'table "public.{table}"' in str(status.error_detail)
        enable, refresh, enable_too, park = statements(status)
        assert enable == enable_too == "ALTER SUBSCRIPTION s ENABLE"
        assert park == "ALTER SUBSCRIPTION s SET (on_table_error = park)"
        if table in ("pages", "gone"):
            path.write_bytes(sound)
        else:
            node.node.sql(enable)
            assert node.stopped("s").error == status.error
            (told,) = node.node.sql(refresh).notices
            assert told.message == f'table "public.{table}" will be copied again'
        node.node.sql(enable)
        node.caught_up("s", database)
        assert_equal(node, database, table, "sound")


def test_statements_and_verify(node: LocalNode, database: Database) -> None:
    """Whoever needs the rows of a damaged file is told so, and nobody else."""
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    paths = {table: file_of(node, table) for table in _TABLES}
    for table in _TABLES:
        damage(node, table)
    node.node.sql("CREATE ROLE lake LOGIN SUPERUSER")
    assert node.node.serving is not None
    conninfo = f"host=127.0.0.1 port={node.node.serving.port} dbname=lake user=lake"
    with psycopg.connect(conninfo, autocommit=True) as session:
        assert session.execute("SELECT count(v) FROM sound").fetchall() == [(20000,)]
        for table, path in paths.items():
            for statement in (
                f"SELECT * FROM {table}",
                f"SELECT count(*) FROM {table} WHERE id > 0",
                f"COPY {table} TO STDOUT",
                f"UPDATE {table} SET v = 'here' WHERE id = {_KEY}",
                f"DELETE FROM {table} WHERE id = {_KEY}",
            ):
                with pytest.raises(psycopg.Error) as told:
                    run(session, statement)
                gone = not path.exists()
                assert told.value.sqlstate == ("58P01" if gone else "XX001"), statement
                assert path.name in str(told.value), statement
                assert gone or "put it back from a copy" in str(told.value.diag.message_hint)
    verified = node.node.verify(subscription="s")
    for compared in verified.tables:
        name = compared.name.removeprefix("public.")
        assert compared.equal == (name == "sound")
        assert name == "sound" or paths[name].name in str(compared.reason)


def run(session: psycopg.Connection[Any], statement: str) -> None:
    if statement.startswith("COPY"):
        with session.cursor() as cursor, cursor.copy(statement) as rows:
            for _ in rows:
                pass
    else:
        session.execute(statement)
