"""COPY to a replication connection, which is a subscriber's, beside COPY to anybody else."""

from __future__ import annotations

import psycopg
import pytest

from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ROWS = 5000


def messages(lake: LakeNode, copy: str, *, replication: bool) -> list[bytes]:
    """Contents of CopyData messages."""
    conninfo = lake.conninfo() + (" replication=database" if replication else "")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.cursor()
        with cursor.copy(copy.encode()) as stream:
            found = [bytes(data) for data in stream]
        assert cursor.rowcount == _ROWS
    return found


@pytest.mark.parametrize("options", ["", " WITH (FORMAT binary)"])
def test_a_subscriber_gets_many_rows_in_a_message(lake: LakeNode, options: str) -> None:
    name = "packed_binary" if options else "packed_text"
    lake.execute(
        f"CREATE TABLE {name} (id integer PRIMARY KEY, v text)",
        f"INSERT INTO {name} SELECT i, 'value' FROM generate_series(1, {_ROWS}) i",
    )
    for copy in (f"COPY {name} TO STDOUT", f"COPY (SELECT v, id FROM {name}) TO STDOUT"):
        each = messages(lake, copy + options, replication=False)
        packed = messages(lake, copy + options, replication=True)
        assert b"".join(packed) == b"".join(each)
        trailer = 1 if options else 0
        assert len(each) == _ROWS + trailer
        assert len(packed) < 20
