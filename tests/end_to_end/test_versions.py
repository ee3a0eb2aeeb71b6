"""PostgreSQL 14 to 18: tables equal the filtered source after the snapshot and after the stream.

From 15 on with a row filter and a column list; in text and in binary mode; all types of this issue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import VERSIONS

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_COLUMNS: Final = (
    *("id", "name", "code", "price", "weight", "ratio", "active", "tags", "counts", "amounts"),
    *("made", "at", "local", "uid", "doc", "plain", "raw", "big", "small", "span", "addr", "mood"),
    "any_number",
)
_AS_TEXT: Final = ("span", "addr", "mood", "any_number")
_FILTER: Final = "id % 3 <> 0 AND price <> 13"

_QUICK: Final = {(14, True), (15, False), (18, False), (18, True)}
"""The oldest, the first with filters and lists, and the newest; all others in ``make faults``."""

_HERE: Final = Path(__file__).parent


@pytest.fixture(scope="module")
def node(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """One node that subscribes to all servers."""
    folder: Path = tmp_path_factory.mktemp("versions") / "node"
    with LocalNode(folder, spark) as started:
        yield started


@pytest.mark.parametrize(
    ("version", "binary"),
    [
        pytest.param(
            version,
            binary,
            id=f"{version}-{'binary' if binary else 'text'}",
            marks=() if (version, binary) in _QUICK else part_of_make_faults,
        )
        for version in VERSIONS
        for binary in (False, True)
    ],
)
def test_tables_equal_the_filtered_source(
    node: LocalNode, database_on: Callable[..., Database], version: int, binary: bool
) -> None:
    schema = f"v{version}_{'binary' if binary else 'text'}"
    database = database_on(version)
    database.execute(f"CREATE SCHEMA {schema}")
    run_script(database, schema, "versions_setup.sql")
    filtered = version >= 15
    items = f"{schema}.items"
    if filtered:
        items += f" ({', '.join(_COLUMNS)}) WHERE ({_FILTER})"
    database.execute(
        f"CREATE PUBLICATION p FOR TABLE {items}, {schema}.parts, {schema}.empty, {schema}.keyless,"
        f" {schema}.whole"
        " WITH (publish_via_partition_root = true)"
    )
    node.subscribe(schema, database, "p", f"binary = {str(binary).lower()}")
    node.caught_up(schema, database)
    assert_equal(node, database, schema, filtered=filtered)
    run_script(database, schema, "versions_changes.sql")
    node.caught_up(schema, database)
    assert_equal(node, database, schema, filtered=filtered)
    node.node.sql(f"DROP SUBSCRIPTION {schema}")


def run_script(database: Database, schema: str, name: str) -> None:
    """Run a file by psql, every statement a transaction of its own."""
    script = (_HERE / name).read_text("utf-8")
    database.server.psql(f"SET search_path = {schema};\n{script}", database.name)


def assert_equal(node: LocalNode, database: Database, schema: str, *, filtered: bool) -> None:
    """Compare all tables."""
    with database.connect() as connection:
        for table in ("items", "parts", "empty", "keyless", "whole"):
            columns = _COLUMNS if table == "items" and filtered else ()
            wanted = publisher_rows(
                connection,
                f"{schema}.{table}",
                columns=columns,
                as_text=_AS_TEXT if table in ("items", "whole") else (),
                where=_FILTER if table == "items" and filtered else "true",
            )
            found = node.rows(table, schema=schema, subscription=schema)
            assert not (lack := difference(table, wanted, found)), str(lack)
