"""Updates whose keys change: pairs that were told are sent as updates, as far as they can be.

What is sent is applied in its order to a subscriber with a unique key, or to a multiset.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.row_pairs import NEW, OLD, PairFile, pairs_folder
from penstock.lakehouse.storage import Storage, make_folder
from penstock.lsn import Lsn
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import (
    NULL,
    Delete,
    Insert,
    Message,
    OldTuple,
    Text,
    TupleData,
    Update,
)
from penstock.pipeline.change_item import SENT_ORDER, ChangeItem, PublishedTable
from penstock.pipeline.publish_changes import (
    Divided,
    divide_items,
    encoded_changes,
    run_divide,
    shares,
)
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.protocol.copy_both import xlog_data_head
from penstock.publication.members import Operation
from penstock.relation import Relation, ReplicaIdentity

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
_HEADER = 30
"""Bytes of a message before what pgoutput wrote: they hold its length."""

Row = tuple[int | None, str | None]


class Changed:
    """Files of the old and new rows of an UPDATE, and of their pairs."""

    def __init__(self, folder: Path, *, key: tuple[str, ...] = ("id",), full: bool = False) -> None:
        self.storage = Storage(str(folder), fsync=False)
        self.uri = f"{self.storage.uri}/t"
        make_folder(pairs_folder(self.uri))
        self.key, self.full = key, full or not key

    def item(
        self,
        updated: Sequence[tuple[Row, Row]],
        *,
        told: Sequence[tuple[Row, Row]] | None = None,
        kept: Sequence[Row] = (),
        went: Sequence[Row] = (),
        came: Sequence[Row] = (),
        where: str | None = None,
    ) -> ChangeItem:
        """``kept``: copied with their file; ``went`` and ``came``: beside the update; ``told``:
        by default what an UPDATE tells."""
        old = [*(old for old, _ in updated), *kept, *went]
        new = [*(new for _, new in updated), *kept, *came]
        if told is None:
            told = [(old, new) for old, new in updated if self._told(old) != self._told(new)]
        identity = ReplicaIdentity.FULL if self.full else ReplicaIdentity.DEFAULT
        attributes = tuple(
            Attribute(name, oid, -1, key=self.full or name in self.key)
            for name, oid in (("id", 20), ("v", 25))
        )
        table = PublishedTable(
            Relation(1, "public", "t", identity, attributes),
            "public.t",
            tuple(ScanColumn(field.name, field.name, field.type) for field in _SCHEMA),
            self.key,
            () if self.full else self.key,
            dict.fromkeys(Operation, where),
            frozenset(Operation),
        )
        item = ChangeItem(
            0, table, self.uri, self._files(old), self._files(new), xlog_data_head(Lsn(1), 0)
        )
        return replace(item, pairs=self._pairs(told))

    def _told(self, row: Row) -> object:
        return row[0] if self.key else row

    def _files(self, rows: Sequence[Row]) -> tuple[ScanFile, ...]:
        found = []
        for part in (rows[::2], rows[1::2]):
            arrays = [pa.array([row[n] for row in part], f.type) for n, f in enumerate(_SCHEMA)]
            written = FileWriter(self.storage, self.uri, _SCHEMA)
            found += written.write([pa.Table.from_arrays(arrays, schema=_SCHEMA)] if part else [])
        return tuple(ScanFile(file.path, file.size, file.rows) for file in found)

    def _pairs(self, told: Sequence[tuple[Row, Row]]) -> tuple[PairFile, ...]:
        fields = [f for f in _SCHEMA if f.name in (self.key or _SCHEMA.names)]
        at = [_SCHEMA.get_field_index(f.name) for f in fields]
        schema = pa.schema([(side + f.name, f.type) for side in (OLD, NEW) for f in fields])
        columns = [[pair[side][n] for pair in told] for side in (0, 1) for n in at]
        folder = pairs_folder(self.uri)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        rows = pa.Table.from_arrays(arrays, schema=schema)
        files = FileWriter(self.storage, folder, schema).write([rows] if told else [])
        return tuple(PairFile(f"{folder}/{file.path}", file.size) for file in files)

    def sent(self, items: Iterable[ChangeItem]) -> list[Message]:
        """The messages of all, operation by operation."""
        found: list[tuple[Operation, Message]] = []
        for item in items:
            for operation, _, data in encoded_changes(self.storage, item, 1 << 30):
                found += ((operation, message) for message in _messages(data))
        return [message for _, message in sorted(found, key=lambda pair: SENT_ORDER.index(pair[0]))]

    def divided(self, item: ChangeItem) -> list[ChangeItem]:
        """The same as many shares."""
        parts: list[Divided] = []
        for _, work in divide_items(self.storage, item, f"{self.uri}/staging", 1 << 10, 2):
            for result in run_divide(work):
                assert isinstance(result, Divided), result
                parts.append(result)
        found = shares(item, parts, 1 << 10)
        assert len(found) > 4
        return found


def _messages(data: bytes) -> Iterator[Message]:
    at, decoder = 0, Decoder(1)
    while at < len(data):
        size = 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        yield decoder.decode(data[at + _HEADER : at + size])
        at += size


def _row(cells: TupleData) -> Row:
    number, text = (cell.raw.decode() if isinstance(cell, Text) else None for cell in cells)
    return None if number is None else int(number), text


def applied(rows: Iterable[Row], messages: Iterable[Message], *, unique: bool) -> Counter[Row]:
    """As strict as a subscriber with a primary key."""
    found = Counter(rows)

    def take(old: TupleData, kind: OldTuple) -> None:
        row = _row(old)
        there = [r for r in found if r == row] if kind is OldTuple.ROW else _of(found, row[0])
        assert len(there) == 1, f"{row} in {found}"
        found[there[0]] -= 1
        found.__iadd__(Counter())

    def put(new: TupleData) -> None:
        row = _row(new)
        assert not (unique and _of(found, row[0])), f"{row} is there: {found}"
        found[row] += 1

    for message in messages:
        match message:
            case Insert(new=new):
                put(new)
            case Delete(old=old, old_kind=kind):
                take(old, kind)
            case Update(new=new, old=old, old_kind=kind):
                take(old or new, kind or OldTuple.KEY)
                put(new)
    return found


def _of(rows: Counter[Row], key: int | None) -> list[Row]:
    return [row for row in rows if row[0] == key]


def shown(messages: Iterable[Message]) -> list[str]:
    found = []
    for message in messages:
        match message:
            case Insert(new=new):
                found.append(f"I {_row(new)}")
            case Delete(old=old):
                found.append(f"D {_row(old)[0]}")
            case Update(new=new, old=None):
                found.append(f"U {_row(new)}")
            case Update(new=new, old=old) if old is not None:
                found.append(f"U {_row(new)} was {_row(old)}")
    return sorted(found)


def test_a_changed_key_is_an_update_with_the_old_key(tmp_path: Path) -> None:
    changed = Changed(tmp_path)
    updated = [((1, "a"), (11, "b")), ((2, None), (2, "c")), ((3, "d"), (13, "d"))]
    item = changed.item(updated, kept=[(5, "e"), (6, None)], went=[(7, "g")], came=[(8, "h")])
    sent = changed.sent([item])
    assert shown(sent) == [
        "D 7",
        "I (8, 'h')",
        "U (11, 'b') was (1, None)",
        "U (13, 'd') was (3, None)",
        "U (2, 'c')",
    ]
    (moved,) = [m for m in sent if isinstance(m, Update) and m.old and _row(m.new)[0] == 11]
    assert moved.old_kind is OldTuple.KEY and moved.old is not None and moved.old[1] == NULL


def test_full_sends_the_old_row(tmp_path: Path) -> None:
    changed = Changed(tmp_path, full=True)
    item = changed.item([((1, "a"), (11, "b")), ((2, "x"), (2, "c"))])
    assert shown(changed.sent([item])) == [
        "U (11, 'b') was (1, 'a')",
        "U (2, 'c') was (2, 'x')",
    ]


def test_keys_that_go_round_are_paired_by_key(tmp_path: Path) -> None:
    """1 -> 2 -> 3: no order of updates would do at a subscriber with a unique key."""
    changed = Changed(tmp_path)
    swap = [((1, "a"), (2, "a")), ((2, "b"), (1, "b"))]
    assert shown(changed.sent([changed.item(swap)])) == ["U (1, 'b')", "U (2, 'a')"]
    chain = [((1, "a"), (2, "a")), ((2, "b"), (3, "b")), ((7, "c"), (8, "c"))]
    assert shown(changed.sent([changed.item(chain)])) == [
        "D 1",
        "I (3, 'b')",
        "U (2, 'a')",
        "U (8, 'c') was (7, None)",
    ]


def test_a_key_of_several_pairs_is_nobodys_in_particular(tmp_path: Path) -> None:
    """One old row is one new row, whatever is told: each is sent once."""
    changed = Changed(tmp_path)
    one, other, old, third = (5, "a"), (6, "b"), (1, "a"), (3, "c")
    item = changed.item(
        [(third, (13, "c"))],
        went=[old, (2, "b")],
        came=[one, other],
        told=[(old, one), (old, other), (third, (13, "c"))],
    )
    lone = "U (13, 'c') was (3, None)"
    assert shown(changed.sent([item])) == ["D 1", "D 2", "I (5, 'a')", "I (6, 'b')", lone]
    both = changed._pairs([(old, one), ((2, "b"), one), (third, (13, "c"))])
    assert shown(changed.sent([replace(item, pairs=both)])) == [
        *("D 1", "D 2", "I (5, 'a')", "I (6, 'b')"),
        lone,
    ]


def test_filters_are_asked_about_both_rows_of_a_pair(tmp_path: Path) -> None:
    changed = Changed(tmp_path)
    updated = [
        ((1, "in"), (101, "in")),
        ((2, "in"), (102, "out")),
        ((3, "out"), (103, "in")),
        ((4, "out"), (104, "out")),
    ]
    item = changed.item(updated, where="\"v\" = 'in'")
    assert shown(changed.sent([item])) == ["D 2", "I (103, 'in')", "U (101, 'in') was (1, None)"]


def test_rows_without_a_key_are_paired_as_they_are(tmp_path: Path) -> None:
    changed = Changed(tmp_path, key=())
    updated: list[tuple[Row, Row]] = [
        ((1, "a"), (2, "a")),
        ((1, "a"), (2, "a")),
        ((2, "a"), (3, None)),
        ((None, None), (4, "n")),
    ]
    kept: list[Row] = [(1, "a"), (3, None), (None, None)]
    item = changed.item(updated, kept=kept, went=[(9, "g")], came=[(8, "h")])
    sent = changed.sent([item])
    assert shown(sent) == [
        "D 9",
        "I (8, 'h')",
        "U (2, 'a') was (1, 'a')",
        "U (2, 'a') was (1, 'a')",
        "U (3, None) was (2, 'a')",
        "U (4, 'n') was (None, None)",
    ]
    old = [*(old for old, _ in updated), *kept, (9, "g")]
    new = [*(new for _, new in updated), *kept, (8, "h")]
    assert applied(old, sent, unique=False) == Counter(new)


@pytest.mark.parametrize("key", [("id",), ()])
def test_what_is_not_so_is_not_believed(tmp_path: Path, key: tuple[str, ...]) -> None:
    changed = Changed(tmp_path, key=key)
    item = changed.item([((1, "a"), (11, "a"))], told=[((2, "a"), (11, "a"))])
    assert [text[0] for text in shown(changed.sent([item]))] == ["D", "I"]
    gone = replace(item, pairs=(PairFile(f"{pairs_folder(changed.uri)}/gone.parquet", 1),))
    assert [text[0] for text in shown(changed.sent([gone]))] == ["D", "I"]
    other = changed.item([((1, "a"), (11, "a"))])
    renamed = replace(other.table, key=("v",)) if key else replace(other.table, key=("id",))
    relation = replace(other.table.relation, replica_identity=ReplicaIdentity.FULL)
    renamed = replace(renamed, relation=relation, identity=())
    kinds = {text[0] for text in shown(changed.sent([replace(other, table=renamed)]))}
    assert kinds <= {"D", "I", "U"}


@pytest.mark.parametrize("seed", range(6))
def test_at_random(tmp_path: Path, seed: int) -> None:
    """Keys go anywhere: what is sent can be applied, as a whole and divided."""
    rng = random.Random(seed)
    changed = Changed(tmp_path)
    keys = rng.sample(range(400), 200)
    old: list[Row] = [(key, rng.choice(["a", "b", None])) for key in keys]
    free = [key for key in range(800) if key not in keys]
    targets = rng.sample(keys[:40], 40) + rng.sample(free, 60) + keys[100:]
    updated: list[tuple[Row, Row]] = [
        (row, (target, rng.choice(["a", "b", "c"])))
        for row, target in zip(old, targets, strict=True)
    ]
    item = changed.item(updated)
    new = Counter(new for _, new in updated)
    whole = changed.sent([item])
    assert applied(old, whole, unique=True) == new
    moved = [m for m in whole if isinstance(m, Update) and m.old is not None]
    assert len(moved) == 60
    parts = changed.sent(changed.divided(item))
    assert applied(old, parts, unique=True) == new
    assert shown(parts) == shown(whole)


def test_rows_without_a_key_that_are_divided(tmp_path: Path) -> None:
    changed = Changed(tmp_path, key=())
    updated: list[tuple[Row, Row]] = [((n % 50, "a"), (n % 70, "b")) for n in range(300)]
    sent = changed.sent(changed.divided(changed.item(updated)))
    assert applied((old for old, _ in updated), sent, unique=False) == Counter(
        new for _, new in updated
    )
