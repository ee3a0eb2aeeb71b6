"""Files of a Delta log that lost a bit or their end: what is read is what was written, or an error
or a warning names the file."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as DeltaRs

from fix_object_store import ObjectStore
from lakehouse.tables import accounts, again, commit, delta_rs_ids, grow, write
from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.identity import table_id
from penstock.lakehouse.log import entry_uri, list_log, log_folder, read_entry
from penstock.lakehouse.state import load, load_at
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table import DeltaTable

KEY = "penstock.crc32"
LAST = 9


def log_of(table: DeltaTable) -> Path:
    return Path(local_path(table.uri), "_delta_log")


def entry_of(table: DeltaTable, version: int) -> Path:
    return Path(local_path(entry_uri(table.uri, version)))


def checkpoint_of(table: DeltaTable, version: int) -> Path:
    return log_of(table) / f"{version:020d}.checkpoint.parquet"


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Files, deletion vectors, a TRUNCATE; a checkpoint at 4 and at 8, versions to 9."""
    table = accounts(tmp_path)
    for lsn in range(1, LAST + 1):
        if lsn == 3:
            table.stage(remove_all=True)
        grow(table, lsn)
    return table


def seen(table: DeltaTable) -> tuple[Any, ...]:
    state = load(Storage(table.storage.uri), table.uri)
    assert state is not None
    return (
        *(state.version, state.protocol, state.metadata, state.files, state.transactions),
        *(state.domains, state.last_app_id),
    )


def files_of(table: DeltaTable) -> tuple[Any, ...]:
    """What entries and checkpoints tell in the same form."""
    version, _, _, files, transactions, *_ = seen(table)
    return version, files, transactions


def actions_of(table: DeltaTable, version: int) -> list[dict[str, Any]]:
    """All but the checksum, which comes first, whatever the name of its key is by now."""
    found = read_entry(table.storage, table.uri, version)
    assert found is not None
    if (first := next(iter(found[0].get("commitInfo", ())), "timestamp")) != "timestamp":
        del found[0]["commitInfo"][first]
    return found


def damaged(path: Path, step: int = 1) -> Iterator[int]:
    """Change one bit of a file after the other, and in the end none; yield its place."""
    good = path.read_bytes()
    for at in range(0, len(good), step):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        path.write_bytes(bad)
        yield at
    path.write_bytes(good)


def named(error: PenstockError, path: Path) -> bool:
    return error.sqlstate == "XX001" and str(path) in error.message


@pytest.mark.parametrize("version", [0, 3, 7, LAST])
def test_one_bit_of_an_entry(table: DeltaTable, version: int) -> None:
    path = entry_of(table, version)
    right = actions_of(table, version)
    noticed = 0
    for at in damaged(path):
        try:
            found = actions_of(table, version)
        except StorageError as error:
            assert named(error, path), at
            noticed += 1
        else:
            assert found == right, at
    # a bit of the checksum's own name does no harm
    assert noticed >= len(path.read_bytes()) - len(f'"{KEY}":"00000000",')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"minValues\":{\"id\":-9", rb"minValues\":{\"id\":-3"),
        (rb'{"add":', rb'{"ade":'),
        (rb"numRecords\":2", rb"numRecords\":3"),
        (rb'"cardinality":1', rb'"cardinality":0'),
    ],
)
def test_what_hides_rows_is_noticed(table: DeltaTable, old: bytes, new: bytes) -> None:
    path = entry_of(table, LAST)
    content = path.read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(StorageError) as raised:
        again(table)
    assert named(raised.value, path)


def test_an_entry_that_lost_its_end(table: DeltaTable) -> None:
    path = entry_of(table, LAST)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(StorageError) as raised:
            load(table.storage, table.uri)
        assert named(raised.value, path), length


def test_an_empty_entry_of_another_writer(table: DeltaTable) -> None:
    path = entry_of(table, LAST + 1)
    for content in (b"", b"\n", b" \n\n"):
        path.write_bytes(content)
        with pytest.raises(StorageError) as raised:
            again(table)
        assert named(raised.value, path)


def test_entries_without_a_checksum(table: DeltaTable) -> None:
    """Of other writers, and of the versions before. They may have actions that are newer than us;
    one without what the protocol asks for is an error that names the entry."""
    right = seen(table)
    for path in log_of(table).glob("*.json"):
        whole = path.read_text()
        assert whole.count(KEY) == 1
        path.write_text(re.sub(f'"{KEY}":"[0-9a-f]{{8}}",', "", whole))
    assert seen(table) == right
    path = entry_of(table, LAST + 1)
    path.write_text('{"commitInfo":{"operation":"NEW"}}\n{"newAction":{"a":1}}\n')
    assert seen(table)[:4] == (LAST + 1, *right[1:4])
    for wrong in ('{"add":{"pati":"x","size":1}}', '{"remove":5}', '"add"', "[1]"):
        path.write_text(f"{wrong}\n")
        with pytest.raises(StorageError) as raised:
            again(table)
        assert named(raised.value, path)


def test_a_checksum_is_that_of_the_entry_alone(table: DeltaTable) -> None:
    """A text of a user that looks like one is none."""
    (file,) = write(table, [77])
    table.stage(written=[file])
    table.commit(app_id=f'"{KEY}":"00000000",', version_marker=1, operation=f'"{KEY}":"00000000",')
    assert again(table).version == LAST + 1


def test_one_bit_of_a_checkpoint_and_all_entries(
    table: DeltaTable, caplog: pytest.LogCaptureFixture
) -> None:
    right, path = seen(table), checkpoint_of(table, 8)
    step = max(1, len(path.read_bytes()) // 300)
    for at in damaged(path, step):
        caplog.clear()
        assert seen(table) == right, at
        assert str(path) in caplog.text, at
        assert table_id(table.storage, table.uri, 8) == table.id
    caplog.clear()
    assert seen(table) == right and not caplog.text


def test_one_bit_of_a_checkpoint_alone(table: DeltaTable) -> None:
    """Its entries were cleaned up."""
    right, path = seen(table), checkpoint_of(table, 8)
    checkpoint_of(table, 4).unlink()
    for version in range(8):
        entry_of(table, version).unlink()
    assert seen(table) == right
    step = max(1, len(path.read_bytes()) // 300)
    for at in damaged(path, step):
        with pytest.raises(StorageError) as raised:
            seen(table)
        assert named(raised.value, path), at
        with pytest.raises(StorageError) as raised:
            load_at(table.storage, table.uri, LAST)
        assert named(raised.value, path), at
    entry_of(table, LAST).unlink()
    entry_of(table, 8).unlink()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError) as raised:  # nothing else is there
        seen(table)
    assert str(path) in raised.value.message


def test_no_older_state_for_a_damaged_checkpoint(table: DeltaTable) -> None:
    """The entries end before it."""
    path = checkpoint_of(table, 8)
    for version in (8, LAST):
        entry_of(table, version).unlink()
    assert seen(table)[0] == 8
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError) as raised:
        seen(table)
    assert str(path) in raised.value.message


def test_checkpoints_without_a_checksum(table: DeltaTable) -> None:
    """Of other writers, and of the versions before; or replaced by another writer."""
    right, path = seen(table), checkpoint_of(table, 8)
    entry_of(table, 0).unlink()
    checkpoint_of(table, 4).unlink()
    pq.write_table(pq.read_table(path), path, compression="gzip")
    assert seen(table) == right
    for each in log_of(table).glob(".*.sum"):
        each.unlink()
    assert seen(table) == right


def test_the_next_checkpoint_is_not_made_of_a_damaged_one(
    table: DeltaTable, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint_of(table, 8)
    content = path.read_bytes()
    at = content.index(b"part-")
    path.write_bytes(content[:at] + b"q" + content[at + 1 :])
    right = seen(table)
    table.checkpoint()
    assert str(path) in caplog.text and not path.exists()
    assert seen(table) == right
    entry_of(table, 0).unlink()
    assert seen(table) == right  # by the new one
    assert delta_rs_ids(table) == list(range(3, LAST + 1))


def test_a_damaged_checkpoint_stays_if_entries_are_gone(table: DeltaTable) -> None:
    path = checkpoint_of(table, 8)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"part-", b"qart-"))
    entry_of(table, 6).unlink()
    with pytest.raises(StorageError) as raised:
        table.checkpoint()
    assert named(raised.value, path) and path.exists()


def test_no_checkpoint_of_a_damaged_entry(table: DeltaTable) -> None:
    path = entry_of(table, LAST)
    path.write_bytes(path.read_bytes().replace(rb"numRecords\":2", rb"numRecords\":3"))
    with pytest.raises(StorageError) as raised:
        table.checkpoint()
    assert named(raised.value, path) and not checkpoint_of(table, LAST).exists()


def test_a_damaged_pointer_to_the_last_checkpoint(
    table: DeltaTable, caplog: pytest.LogCaptureFixture
) -> None:
    right, path = seen(table), log_of(table) / "_last_checkpoint"
    for content in (b"", b"{", b"[]", b'{"version":88}', b'{"version":"8"}', b"\0" * 60):
        path.write_bytes(content)
        assert seen(table) == right
        checkpoint_of(table, LAST).unlink(missing_ok=True)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            table.checkpoint()
        assert str(path) in caplog.text
        assert json.loads(path.read_text())["version"] == LAST
    for at in damaged(path):
        assert seen(table) == right, at
        table.checkpoint()
        assert DeltaRs(local_path(table.uri)).version() == LAST, at


def test_sums_go_with_their_checkpoints(table: DeltaTable) -> None:
    names = [path.name for path in log_of(table).glob(".*.sum")]
    assert sorted(name[1:21] for name in names) == [f"{4:020d}", f"{8:020d}"]
    table.checkpoint()
    table.checkpoint()  # again
    names = [path.name for path in log_of(table).glob(".*.sum")]
    assert sorted(int(name[1:21]) for name in names) == [4, 8, 9]


def test_in_an_object_store(s3: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    table = accounts(f"s3://{s3.bucket()}/lake")
    for lsn in range(1, 4):
        table.stage(written=write(table, [lsn]))
        commit(table, lsn)
    table.checkpoint()
    right, storage = files_of(table), table.storage
    (part,) = list_log(storage, table.uri).checkpoints[3]
    for uri in (part, f"{log_folder(table.uri)}/_last_checkpoint", entry_uri(table.uri, 2)):
        good = storage.read(uri)
        at = len(good) // 2
        storage.write(uri, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        caplog.clear()
        assert files_of(table) == right
        assert (uri in caplog.text) == (uri == part)
        if uri == entry_uri(table.uri, 2):
            with pytest.raises(StorageError, match="its checksum is wrong"):
                load_at(storage, table.uri, 2)
        storage.write(uri, good)
    table.stage(written=write(table, [4]))
    commit(table, 4)
    table.checkpoint()
    assert delta_rs_ids(again(table)) == [1, 2, 3, 4]
