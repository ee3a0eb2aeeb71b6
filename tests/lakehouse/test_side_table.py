"""Tables beside those of subscriptions: what is in them once, whoever writes again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from end_to_end.compare import query
from faults.heavy import part_of_make_faults
from penstock.lakehouse.side_table import CONFLICTS, VERIFICATIONS, SideTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.subscription.conflicts import SAME

EARLIER = pa.schema([CONFLICTS.field(name) for name in CONFLICTS.names[:9]])
"""What the first nodes that had the table told."""


def conflict(key: int | None, lsn: int, schema: pa.Schema = CONFLICTS, **values: Any) -> pa.Table:
    row = {
        "log_time": datetime.now(UTC),
        "subscription": "s",
        "relation": "public.t",
        "conflict_type": "insert_exists",
        "replica_identity": None if key is None else f'{{"id": {key}}}',
        "remote_commit_lsn": lsn,
        "changes": 1,
        "resolution": "error",
        "remote_origin": "pg_1",
        **values,
    }
    return pa.Table.from_pylist([row], schema)


def rows(table: SideTable) -> list[dict[str, Any]]:
    uri = table.uri.removeprefix("file://")
    found: list[dict[str, Any]] = query("SELECT * FROM c", c=DeltaTable(uri)).to_pylist()
    return found


def test_an_error_that_comes_again_is_there_once(tmp_path: Path) -> None:
    table = Warehouse(str(tmp_path), fsync=False).conflicts
    errors = [
        conflict(1, 10),
        conflict(1, 10, changes=3),  # tried again
        conflict(2, 10),
        conflict(1, 20),
        conflict(1, 10, conflict_type="update_exists"),
        conflict(1, 10, relation="public.u"),
        conflict(1, 10, remote_origin="pg_2"),
        conflict(None, 10, changes=7),
        conflict(None, 10, changes=7),
        conflict(1, 10, resolution="keep_local"),
    ]
    for error in errors:
        table.append_once(error, SAME)
    table.append_once(pa.concat_tables([*errors, conflict(3, 10)]), SAME)
    assert len(rows(table)) == len(errors) - 2 + 1
    # a batch's marker is its own, whatever errors came before it
    table.append("app", Lsn(10), conflict(9, 10, resolution=None))
    table.append("app", Lsn(10), conflict(9, 10, resolution=None))
    assert len(rows(table)) == len(errors)
    # what somebody has deleted may come again
    DeltaTable(table.uri.removeprefix("file://")).delete("remote_commit_lsn = 20")
    table.append_once(conflict(1, 20), SAME)
    table.append_once(conflict(1, 20), SAME)
    assert len(rows(table)) == len(errors)


def test_a_table_of_an_older_node_gets_the_columns(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path), fsync=False)
    folder = f"{warehouse.uri}/_penstock"
    older = SideTable(warehouse.storage, warehouse.store, folder, "conflicts", EARLIER)
    older.append("app", Lsn(10), conflict(1, 10, EARLIER))
    warehouse.conflicts.append_once(conflict(1, 10, local_row="(1, x)"), SAME)
    before, after = sorted(rows(warehouse.conflicts), key=lambda row: row["local_row"] or "")
    assert list(before) == CONFLICTS.names
    assert (before["replica_identity"], before["resolution"]) == ('{"id": 1}', None)
    assert (after["local_row"], after["resolution"]) == ("(1, x)", "error")
    # and one that has not heard of them goes on
    older.append("app", Lsn(20), conflict(2, 20, EARLIER))
    assert len(rows(older)) == 3


def verification(number: int, ended: datetime) -> pa.Table:
    return pa.Table.from_pylist([{"relation": f"public.t{number}", "ended": ended}], VERIFICATIONS)


@part_of_make_faults
def test_what_is_old_goes_and_small_files_are_put_together(tmp_path: Path) -> None:
    table = Warehouse(str(tmp_path), fsync=False).verifications
    table.keep_since("ended", None)  # there is none yet
    today = datetime.now(UTC).replace(microsecond=0)
    ages = [100 if n % 4 == 0 else 1 for n in range(66)]
    for number, days in enumerate(ages):
        table.add(verification(number, today - timedelta(days=days)))
    everything = {row["relation"] for row in rows(table)}
    table.keep_since("ended", None)
    files = DeltaTable(table.uri.removeprefix("file://")).file_uris
    assert len(files()) == 1
    assert {row["relation"] for row in rows(table)} == everything
    history = DeltaTable(table.uri.removeprefix("file://")).history(1)
    assert history[0]["operation"] == "OPTIMIZE"
    for number in range(100, 164):
        table.add(verification(number, today))
    table.keep_since("ended", today - timedelta(days=90))
    kept = {f"public.t{n}" for n, days in enumerate(ages) if days == 1}
    kept |= {f"public.t{n}" for n in range(100, 164)}
    assert {row["relation"] for row in rows(table)} == kept
    assert len(DeltaTable(table.uri.removeprefix("file://")).file_uris()) == 1
    table.keep_since("ended", today + timedelta(days=1))
    assert rows(table) == []
    table.add(verification(1, today))
    assert len(rows(table)) == 1


def test_columns_that_somebody_has_added_stay(tmp_path: Path) -> None:
    table = Warehouse(str(tmp_path), fsync=False).verifications
    today = datetime.now(UTC)
    table.add(verification(0, today - timedelta(days=9)))
    uri = table.uri.removeprefix("file://")
    DeltaTable(uri).alter.add_columns(Field("note", PrimitiveType("string")))
    for number in range(1, 70):
        table.add(verification(number, today))
    table.keep_since("ended", today - timedelta(days=5))
    assert len(rows(table)) == 69
    assert "note" in rows(table)[0]
