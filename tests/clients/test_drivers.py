"""Drivers as people use them: what they get of a node is what they get of a server."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
import pandas
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper
from sqlalchemy.dialects.postgresql.base import PGInspector

from clients.conftest import Both
from faults.heavy import part_of_make_faults
from penstock import artifacts
from penstock.artifacts import Artifact
from penstock.embedded.installation import clients as postgres_clients

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_HERE = Path(__file__).parent
_PGJDBC = Artifact(
    "org.postgresql",
    "postgresql",
    "42.7.8",
    "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7",
)
_NODE_PG = "pg@8.16.3"
_ROW = (
    70,
    "back\\slash 'quoted' é",
    Decimal("-1234.50"),
    -(2**63),
    False,
    datetime.date(1999, 12, 31),
    datetime.datetime(1999, 12, 31, 23, 59, 59, 999999),
)
_COLUMNS = "id, name, price, sold, ok, added, at"
_NOT_YET = "types | ["
"""The step of JDBC that differs: tables have no row types."""


def same(both: Both, run: Callable[[int], list[Any]]) -> None:
    """``run`` gives the same on both ports."""
    theirs, ours = run(both.server), run(both.node)
    wrong = [f"{a}\n    {b}" for a, b in zip(theirs, ours, strict=True) if a != b]
    assert not wrong, "\n".join(wrong)


_OIDS: Final = {"text": 25, "varchar": 1043}
_DECLARED: Final = [
    ("int", "7"), ("int", " 7 "), ("int", "x"), ("int", None), ("bigint", "99999999999999999999"),
    ("float8", "1e3"), ("boolean", "yes"), ("date", "2024-02-30"),
    ("timestamptz", "2024-01-01 00:00+02"), ("uuid", "0" * 32), ("text", "x"), ("char(3)", "x"),
    ("bytea", "\\x00ff"), ("jsonb", '{"a": 1}'),
]  # fmt: skip


@pytest.mark.parametrize("declared", ["text", "varchar"])
def test_strings_with_a_declared_type(both: Both, declared: str) -> None:
    """A cast reads them as the type's literals, as when JDBC's setString meets ``?::int``."""

    def run(port: int) -> list[Any]:
        out: list[Any] = []
        conninfo = f"host=127.0.0.1 port={port} user=lake dbname=lake"
        with psycopg.connect(conninfo, autocommit=True) as c:
            c.adapters.register_dumper(str, type("Dumper", (StrDumper,), {"oid": _OIDS[declared]}))
            for type_, text in _DECLARED:
                try:
                    found = c.execute(f"SELECT %s::{type_}", (text,)).fetchall()
                except psycopg.Error as error:
                    out.append((type_, text, error.sqlstate, error.diag.message_primary))
                else:
                    out.append((type_, text, found))
        return out

    same(both, run)


def test_psycopg(both: Both) -> None:
    def run(port: int) -> list[Any]:
        out: list[Any] = []
        conninfo = f"host=127.0.0.1 port={port} user=lake dbname=lake"
        with psycopg.connect(conninfo, autocommit=True, row_factory=dict_row) as c:
            for binary in (False, True):
                query = "SELECT * FROM goods WHERE id = %s"
                out += [c.execute(query, (i,), binary=binary).fetchall() for i in (1, 2, 3)]
            places = ", ".join(["%s"] * len(_ROW))
            c.execute(f"INSERT INTO goods ({_COLUMNS}) VALUES ({places})", _ROW)
            out.append(c.execute("SELECT * FROM goods WHERE id = 70").fetchall())
            many = c.execute("SELECT id FROM goods WHERE id = ANY(%s) ORDER BY 1", ([1, 70],))
            out.append(many.fetchall())
            for _ in range(7):  # from the sixth on prepared by the server
                found = c.execute("SELECT name FROM goods WHERE sold = %s", (7,)).fetchall()
                out.append(found)
            out.append(c.execute("UPDATE goods SET name = %s WHERE id = %s", ("x", 70)).rowcount)
            with c.pipeline():
                cursors = [c.execute("SELECT %s::int8 + 1 AS n", (i,)) for i in range(3)]
            out += [cursor.fetchall() for cursor in cursors]
            with c.transaction():
                out.append(c.execute("SELECT count(*) AS n FROM goods").fetchall())
            out.append(c.execute("DELETE FROM goods WHERE id = %s", (70,)).rowcount)
            with pytest.raises(psycopg.errors.UndefinedColumn):
                c.execute("SELECT nothing FROM goods")
        return out

    same(both, run)


def test_psycopg2(both: Both) -> None:
    def run(port: int) -> list[Any]:
        out: list[Any] = []
        c = psycopg2.connect(host="127.0.0.1", port=port, user="lake", dbname="lake")
        c.autocommit = True
        with c.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute("SELECT * FROM goods ORDER BY id")
            out += cursor.fetchall()
            cursor.execute("SELECT id FROM goods WHERE id IN %s ORDER BY id", ((1, 3),))
            out += cursor.fetchall()
            places = ", ".join(["%s"] * 6)
            cursor.execute(
                f"INSERT INTO goods (id, price, sold, ok, added, at) VALUES ({places})",
                (_ROW[0], *_ROW[2:]),
            )
            cursor.execute("SELECT * FROM goods WHERE id = %s", (70,))
            out += cursor.fetchall()
            cursor.execute("DELETE FROM goods WHERE id = %s", (70,))
            out.append(cursor.rowcount)
        c.close()
        return out

    same(both, run)


def test_asyncpg(both: Both) -> None:
    same(both, lambda port: asyncio.run(_asyncpg(port)))


async def _asyncpg(port: int) -> list[Any]:
    c = await asyncpg.connect(host="127.0.0.1", port=port, user="lake", database="lake")
    out: list[Any] = [await c.fetch("SELECT * FROM goods ORDER BY id")]
    out.append(await c.fetchrow("SELECT * FROM goods WHERE id = $1", 2))
    out.append(await c.fetch("SELECT id FROM goods WHERE id = ANY($1::int[]) ORDER BY id", [1, 3]))
    places = ", ".join(f"${n}" for n in range(1, len(_ROW) + 1))
    out.append(await c.execute(f"INSERT INTO goods ({_COLUMNS}) VALUES ({places})", *_ROW))
    out.append(await c.fetchrow("SELECT * FROM goods WHERE id = $1", 70))
    change = "UPDATE goods SET name = $1, price = $2 WHERE id = $3"
    out.append(await c.execute(change, "new", None, 70))
    await c.executemany("INSERT INTO goods (id, name) VALUES ($1, $2)", [(71, "a"), (72, "b")])
    out.append(await c.fetchval("SELECT count(*) FROM goods"))
    out.append(await c.execute("DELETE FROM goods WHERE id >= $1", 70))
    async with c.transaction():
        cursor = c.cursor("SELECT id FROM goods ORDER BY id", prefetch=1)
        out.append([row["id"] async for row in cursor])
    out.append(await c.fetchrow("SELECT '{1,2}'::int[], ARRAY['a'], '1 2'::int2vector, 5::oid"))
    prepared = await c.prepare("SELECT id, name FROM goods WHERE name LIKE $1")
    out.append([(a.name, a.type.name) for a in prepared.get_attributes()])
    out.append([p.name for p in prepared.get_parameters()])
    await c.reset()
    with pytest.raises(asyncpg.UndefinedColumnError):
        await c.fetch("SELECT nothing FROM goods")
    await c.close()
    return out


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_and_pandas(both: Both, driver: str) -> None:
    def run(port: int) -> list[Any]:
        url = f"postgresql+{driver}://lake@127.0.0.1:{port}/lake"
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        found = cast(PGInspector, sa.inspect(engine))
        out: list[Any] = [found.get_schema_names(), found.get_table_names()]
        out += [found.get_view_names(), found.get_sequence_names(), found.get_enums()]
        for look in ("columns", "pk_constraint", "foreign_keys", "indexes", "unique_constraints"):
            out.append((look, str(getattr(found, f"get_{look}")("goods"))))
        for look in ("check_constraints", "table_comment", "table_options"):
            out.append((look, str(getattr(found, f"get_{look}")("goods"))))
        metadata = sa.MetaData()
        metadata.reflect(engine)
        goods = metadata.tables["goods"]
        with engine.connect() as c:
            c.execute(goods.insert().values(id=70, name="n", ok=True))
            out.append(c.execute(sa.select(goods).where(goods.c.id == 70)).all())
            c.execute(goods.update().where(goods.c.id == 70).values(name="z"))
            names = sa.select(goods.c.name).where(goods.c.id.in_([1, 70])).order_by(goods.c.id)
            out.append(c.execute(names).all())
            out.append(c.execute(goods.delete().where(goods.c.id == 70)).rowcount)
            table = pandas.read_sql_table("goods", c).sort_values("id", ignore_index=True)
            out.append(table.to_csv())
            query = "SELECT id, name FROM goods WHERE id > %(id)s ORDER BY id"
            out.append(pandas.read_sql(query, c, params={"id": 1}).to_csv())
        engine.dispose()
        return out

    same(both, run)


@part_of_make_faults
def test_pgjdbc(both: Both) -> None:
    """In its default mode: prepared by the server, and binary, after five executions."""
    (jar,) = artifacts.fetch((_PGJDBC,), artifacts.cache_home() / "pgjdbc", "pgjdbc 42.7.8")

    def run(port: int) -> list[Any]:
        java = ["java", "-Duser.timezone=Europe/Berlin", "-cp", str(jar), str(_HERE / "Jdbc.java")]
        url = f"jdbc:postgresql://127.0.0.1:{port}/lake"
        lines = _output([*java, url, "lake", "none"]).splitlines()
        return [line for line in lines if not line.startswith(_NOT_YET)]

    same(both, run)


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node or npm is missing"
)
def test_node_pg(both: Both, tmp_path: Path) -> None:
    _output(["npm", "install", "--silent", "--prefix", str(tmp_path), _NODE_PG])

    def run(port: int) -> list[Any]:
        program = ["node", str(_HERE / "node_pg.js"), str(port)]
        steps: list[Any] = json.loads(_output(program, NODE_PATH=str(tmp_path / "node_modules")))
        return steps

    same(both, run)


def test_psql_sets_a_password_and_options(both: Both) -> None:
    def run(port: int) -> list[Any]:
        conninfo = f"host=127.0.0.1 port={port} user=lake dbname=lake"
        options = f"{conninfo} options='-c work_mem=64MB -c jit=off -c geqo_threshold=11'"
        return [
            _psql(conninfo, "\\password\nnew\nnew\nSELECT 1;\n"),
            _psql(options, "SHOW work_mem; SHOW geqo_threshold;\n"),
        ]

    same(both, run)


def _psql(conninfo: str, script: str) -> str:
    """Without a terminal, so that passwords are read from the script."""
    done = subprocess.run(
        [str(postgres_clients().program("psql")), "-X", "-d", conninfo],
        input=script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    return done.stdout


def _output(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
