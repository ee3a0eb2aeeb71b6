"""Files that cannot have the rows of ``WHERE column = constant`` are not read; the rest agrees with
a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import deltalake
import psycopg
import pyarrow.parquet as pq
import pytest

from faults.heavy import in_make_faults
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_LONG = "x" * 40
_VALUES = (
    "(1, 1, 'a', 'a'), (2, NULL, NULL, NULL)",
    f"(3, 3, '{_LONG}a', 'c'), (4, 4, '{_LONG}', 'c ')",
    f"(5, 30000, '{_LONG}b', 'é'), (6, 6, '', '')",
    "(9223372036854775807, -32768, '5', '5'), (0, 0, '0 ', '0 ')",
)
_CONDITIONS = (
    "k = 3",
    "k = 9223372036854775807",
    "4 = k AND s = 4",
    "k = 4 AND k = 5",
    "s = 30000",
    "s = 100000",
    "s = 9223372036854775807",
    "s = NULL",
    "NOT s = 3",
    "s = 3 OR k = 1",
    "s + 0 = 3",
    "s = 3.0",
    "s IS DISTINCT FROM 3",
    "30000 IS DISTINCT FROM s",
    "s IS NOT DISTINCT FROM 3",
    "t IS DISTINCT FROM 'a' AND k = 1",
    "v IS DISTINCT FROM 'c'",
    "(s = 3) IS NOT TRUE",
    "nullif(k, 3) IS NULL",
    f"t = '{_LONG}'",
    f"t = '{_LONG}a'",
    f"t = '{_LONG}c'",
    "t = ''",
    "t = 'é'",
    "v = 'c'",
    "v = 'c '",
    "v = 'é' AND k = 5",
    "v::text = 'a' AND s = 1",
    "c = 'c'",
    "t::bpchar = '0'::text::bpchar",
    "v::bpchar = '0'::varchar::bpchar",
    "k = 0 AND s = (SELECT min(s) FROM f WHERE k = 0)",
)


def _outcome(session: Any, statement: str) -> Any:
    try:
        found = session.execute(statement)
        return sorted(found.fetchall(), key=str) if found.description else found.rowcount
    except Exception as error:
        return getattr(error, "sqlstate", error)


@pytest.mark.parametrize("partitioned", ["", in_make_faults(" PARTITION BY RANGE (k)")])
def test_the_same_rows_as_on_a_server(
    lake: LakeNode, both: Callable[..., tuple[Any, Any]], partitioned: str
) -> None:
    columns = "k bigint, s smallint, t text, v varchar(50), c char(3)"
    parts = (
        "low PARTITION OF f FOR VALUES FROM (MINVALUE) TO (4)",
        "high PARTITION OF f FOR VALUES FROM (4) TO (MAXVALUE)",
    )
    node, server = both(
        f"CREATE TABLE f ({columns}){partitioned}",
        *(f"CREATE TABLE {part}" for part in parts if partitioned),
        *(f"INSERT INTO f (k, s, t, v) VALUES {values}" for values in _VALUES),
        "UPDATE f SET c = v WHERE length(v) < 4",
    )
    whole = "SELECT k, s, t, v, c FROM f"
    for condition in _CONDITIONS:
        for statement in (
            f"{whole} WHERE {condition}",
            f"SELECT count(*) FROM f a JOIN f b USING (s) WHERE a.{condition.split(' AND ')[0]}"
            if condition.startswith(("k =", "s =", "t =", "v ="))
            else whole,
            f"UPDATE f SET t = coalesce(t, '') || 'y', s = s WHERE {condition}",
            whole,
            f"DELETE FROM f WHERE {condition} AND length(t) > 41",
        ):
            assert _outcome(node, statement) == _outcome(server, statement), statement
    lake.execute("DROP TABLE f")


def test_what_differs_from_a_parameter(
    lake: LakeNode, both: Callable[..., tuple[Any, Any]]
) -> None:
    """As a client sends it that prepares its statements."""
    node, server = both(
        "CREATE TABLE h (k int PRIMARY KEY, v int)",
        *(f"INSERT INTO h VALUES {row}" for row in ("(1, 7)", "(2, 0)", "(3, NULL)", "(4, 5)")),
    )
    for statement in (
        "SELECT k FROM h WHERE v IS DISTINCT FROM %s ORDER BY k",
        "SELECT count(*) FROM h WHERE v IS DISTINCT FROM %s",
        "SELECT a.k FROM h a JOIN h b USING (k) WHERE a.v IS DISTINCT FROM %s ORDER BY 1",
        "UPDATE h SET k = k + 10 WHERE v IS DISTINCT FROM %s",
        "SELECT k FROM h WHERE v = %s",
        "DELETE FROM h WHERE v IS DISTINCT FROM %s",
        "SELECT k FROM h WHERE v IS NOT DISTINCT FROM %s",
    ):
        found, expected = (
            psycopg.Cursor(session).execute(statement, [0], prepare=True)
            for session in (node, server)
        )
        assert found.statusmessage == expected.statusmessage, statement
        if expected.description:
            assert found.fetchall() == expected.fetchall(), statement
    lake.execute("DROP TABLE h")


def test_files_of_other_rows_are_not_touched(lake: LakeNode) -> None:
    """They are gone, and nobody notices."""
    lake.execute("CREATE TABLE g (k integer, t text)")
    for number in range(4):
        lake.execute(f"INSERT INTO g VALUES ({number}, 'row {number}')")
    for uri in deltalake.DeltaTable(f"{lake.node.folder}/warehouse/public/g").file_uris():
        path = Path(unquote(urlparse(uri).path))
        if pq.read_table(path)["k"].to_pylist() != [2]:
            path.rename(path.with_suffix(".away"))
    assert lake.rows("SELECT t FROM g WHERE k = 2") == [("row 2",)]
    assert lake.rows("SELECT k FROM g WHERE t = 'row 2' AND k > 0") == [(2,)]
    lake.execute("UPDATE g SET t = 'new' WHERE k = 2", "BEGIN; DELETE FROM g WHERE k = 2; COMMIT")
    assert lake.rows("SELECT t FROM g WHERE k = 2") == []
    lake.execute("DROP TABLE g")
