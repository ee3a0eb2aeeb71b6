"""The columnar decoder against the readable one (law 7), and corners that chance seldom hits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import PenstockError, ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgoutput import columnar
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar import ColumnarDecoder, DecodedChunk, MessageChunk, check_commits
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import NULL, UNCHANGED, Binary, Cell, Text, TupleData
from penstock.pgtypes import find
from penstock.relation import Relation, ReplicaIdentity
from pgoutput.strategies import chunk_of, chunks

NOTHING = "nothing"


@pytest.fixture(scope="module", params=[columnar._BLOCK_BYTES, 100], autouse=True)
def blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Chunks are decoded whole, and some messages at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "_BLOCK_BYTES", request.param)
        yield


@dataclass
class Change:
    """A change as both decoders should see it: cells as values, ``nothing`` where not sent."""

    relation: Relation
    sequence: int
    operation: str
    new: list[Any]
    old: list[Any] | None
    old_kind: str | None


@dataclass
class Seen:
    changes: list[Change] = field(default_factory=list)
    truncates: list[tuple[Any, ...]] = field(default_factory=list)
    commits: list[tuple[int, ...]] = field(default_factory=list)


def frames(messages: Sequence[m.Message]) -> list[bytes]:
    return [b"w" + bytes(24) + encode(message) for message in messages]


def read_one_by_one(messages: Sequence[bytes], relations: dict[int, Relation]) -> Seen:
    decoder, seen = Decoder(), Seen()
    for sequence, payload in enumerate(messages):
        message = decoder.decode(payload)
        match message:
            case m.RelationMessage(relation):
                relations[relation.oid] = relation
            case m.Truncate(oids, cascade, restart):
                seen.truncates.append((sequence, oids, cascade, restart))
            case m.Commit(commit_lsn, end_lsn, time):
                unix = time + EPOCH_MICROSECONDS
                seen.commits.append((sequence, commit_lsn, end_lsn, unix))
            case m.Insert(oid, new):
                seen.changes.append(_change(relations[oid], sequence, "I", new, None, None))
            case m.Update(oid, new, old, kind):
                seen.changes.append(_change(relations[oid], sequence, "U", new, old, kind))
            case m.Delete(oid, old, kind):
                seen.changes.append(_change(relations[oid], sequence, "D", None, old, kind))
    return seen


def _change(
    relation: Relation,
    sequence: int,
    operation: str,
    new: TupleData | None,
    old: TupleData | None,
    kind: m.OldTuple | None,
) -> Change:
    return Change(
        relation,
        sequence,
        operation,
        [None] * len(relation.attributes) if new is None else _values(relation, new),
        None if old is None else _values(relation, old),
        None if kind is None else kind.value,
    )


def _values(relation: Relation, cells: TupleData) -> list[Any]:
    return [_value(a, cell) for a, cell in zip(relation.attributes, cells, strict=True)]


def _value(attribute: Attribute, cell: Cell) -> Any:
    if cell is NULL:
        return None
    if cell is UNCHANGED:
        return NOTHING
    family = find(attribute.type_oid)
    if isinstance(cell, Text):
        return family.text_value(cell.raw, attribute.typmod)
    assert isinstance(cell, Binary)
    return family.binary_value(cell.raw, attribute.typmod)


def rows_of(decoded: DecodedChunk) -> Seen:
    seen = Seen()
    for batch in decoded.changes:
        assert batch.new.num_rows == len(batch)
        assert (np.diff(batch.sequence) > 0).all()
        batch.new.validate(full=True)
        names = [a.name for a in batch.relation.attributes]
        assert batch.new.schema.names == names
        assert all(mask.any() for mask in batch.unchanged.values())
        new = [batch.new.column(i).to_pylist() for i in range(len(names))]
        old = None
        if batch.old is not None:
            batch.old.validate(full=True)
            assert batch.old.schema == batch.new.schema
            old = [batch.old.column(i).to_pylist() for i in range(len(names))]
        for row in range(len(batch)):
            values = [column[row] for column in new]
            for i, name in enumerate(names):
                if name in batch.unchanged and batch.unchanged[name][row]:
                    assert values[i] is None
                    values[i] = NOTHING
            kind = int(batch.old_kind[row])
            seen.changes.append(
                Change(
                    batch.relation,
                    int(batch.sequence[row]),
                    chr(batch.operation[row]),
                    values,
                    [column[row] for column in old] if old is not None and kind else None,
                    chr(kind) if kind else None,
                )
            )
            if old is not None and not kind:
                assert all(column[row] is None for column in old)
    seen.changes.sort(key=lambda change: change.sequence)
    seen.truncates = [
        (t.sequence, t.relation_oids, t.cascade, t.restart_identity) for t in decoded.truncates
    ]
    columns = (
        decoded.commit_sequence,
        decoded.commit_lsn,
        decoded.end_lsn,
        decoded.commit_time,
    )
    seen.commits = list(zip(*(c.tolist() for c in columns), strict=True))
    return seen


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Change) and isinstance(right, Change):
        return same(list(vars(left).values()), list(vars(right).values()))
    return type(left) is type(right) and left == right


@given(chunks(), st.integers(0, 14))
@settings(max_examples=200, deadline=None)
def test_both_decoders_agree(messages: list[m.Message], cut: int) -> None:
    """Also when the messages come in two chunks: the relation map goes on."""
    decoder = ColumnarDecoder(find)
    relations: dict[int, Relation] = {}
    for part in (messages[:cut], messages[cut:]):
        wanted = read_one_by_one([encode(message) for message in part], relations)
        halves = (part[: len(part) // 2], part[len(part) // 2 :])
        parts = [MessageChunk.from_copy_data(frames(half)) for half in halves]
        got = rows_of(decoder.decode(*parts))
        assert same(got.changes, wanted.changes)
        assert got.truncates == wanted.truncates
        assert got.commits == wanted.commits
        assert decoder.relations == relations


@given(chunks(), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_chunks_are_refused_or_agreed_upon(
    messages: list[m.Message], data: st.DataObject
) -> None:
    """One message truncated or with other bytes: never an IndexError, never another result."""
    payloads = [encode(message) for message in messages]
    if not payloads:
        return
    index = data.draw(st.integers(0, len(payloads) - 1))
    victim = bytearray(payloads[index])
    if data.draw(st.booleans()):
        del victim[data.draw(st.integers(0, len(victim) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(victim) - 1))
        victim[at] = data.draw(st.integers(0, 255))
    payloads[index] = bytes(victim)
    try:
        wanted = read_one_by_one(payloads, {})
    except (PenstockError, KeyError, ValueError):
        wanted = None
    try:
        decoded = ColumnarDecoder(find).decode(chunk_of(payloads))
    except ProtocolViolation:
        return
    got = rows_of(decoded)
    if wanted is not None and not decoded.unreadable:
        assert same(got.changes, wanted.changes)


T = Relation(
    16384,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Attribute("id", 23, key=True), Attribute("note", 25)),
)
ROW: TupleData = (Text(b"1"), Text(b"one"))


def decode(*messages: m.Message) -> DecodedChunk:
    return ColumnarDecoder(find).decode(MessageChunk.from_copy_data(frames(messages)))


@pytest.mark.parametrize(
    "message",
    [
        m.Insert(16384, ROW),
        m.Update(16384, ROW, (Text(b"2"), NULL), m.OldTuple.KEY),
        m.Delete(16384, ROW, m.OldTuple.ROW),
        m.Begin(Lsn(1), 2, 3),
        m.Commit(Lsn(1), Lsn(2), 3),
        m.Origin(Lsn(1), "east"),
        m.Truncate((16384,)),
    ],
)
def test_truncated_messages_are_refused_at_each_length(message: m.Message) -> None:
    head, whole = encode(m.RelationMessage(T)), encode(message)
    for behind in ([], [encode(m.Insert(16384, ROW))], [b"u" * 30]):
        for size in range(len(whole)):
            chunk = chunk_of([head, whole[:size], *behind])
            with pytest.raises(ProtocolViolation):
                ColumnarDecoder(find).decode(chunk)


def test_an_empty_chunk() -> None:
    decoded = decode()
    assert decoded.changes == ()
    assert decoded.truncates == ()
    assert len(decoded.commit_sequence) == len(decoded.end_lsn) == 0


def test_a_relation_without_columns_keeps_its_rows() -> None:
    empty = Relation(7, "public", "empty", ReplicaIdentity.FULL, ())
    (batch,) = decode(
        m.RelationMessage(empty),
        m.Insert(7, ()),
        m.Delete(7, (), m.OldTuple.ROW),
        m.Insert(7, ()),
    ).changes
    assert batch.new.num_rows == 3
    assert batch.old is not None
    assert batch.old.num_rows == 3


def test_a_repeated_definition_does_not_split_and_another_one_does() -> None:
    wider = Relation(
        16384, "public", "t", ReplicaIdentity.DEFAULT, (*T.attributes, Attribute("n", 23))
    )
    decoded = decode(
        m.RelationMessage(T),
        m.Insert(16384, ROW),
        m.RelationMessage(T),
        m.Insert(16384, ROW),
        m.RelationMessage(wider),
        m.Insert(16384, (*ROW, Text(b"5"))),
        m.RelationMessage(T),
        m.Insert(16384, ROW),
    )
    assert [batch.relation for batch in decoded.changes] == [T, wider, T]
    assert [batch.sequence.tolist() for batch in decoded.changes] == [[1, 3], [5], [7]]


def test_a_commit_is_where_its_begin_said() -> None:
    commit = m.Commit(Lsn(5), Lsn(6), 3)
    check_commits(decode(commit, m.Begin(Lsn(7), 2, 3), m.Commit(Lsn(7), Lsn(8), 3)))
    with pytest.raises(ProtocolViolation) as caught:
        check_commits(decode(m.Begin(Lsn(4), 2, 3), commit))
    assert caught.value.message == "incorrect commit LSN 0/5 in commit message (expected 0/4)"


def test_a_failed_chunk_leaves_the_relation_map_alone() -> None:
    decoder = ColumnarDecoder(find)
    broken: list[m.Message] = [m.RelationMessage(T), m.Insert(16385, ROW)]
    with pytest.raises(ProtocolViolation):
        decoder.decode(MessageChunk.from_copy_data(frames(broken)))
    assert decoder.relations == {}


def test_errors_name_table_and_column() -> None:
    days = Relation(9, "shop", "days", ReplicaIdentity.DEFAULT, (Attribute("day", 1082),))
    (found,) = decode(m.RelationMessage(days), m.Insert(9, (Text(b"infinity"),))).unreadable
    assert found.relation == days
    assert found.sequence.tolist() == [1]
    assert found.error.detail == 'Table "shop.days", column "day".'
    assert "infinity" in found.error.message


def test_a_value_that_cannot_be_held_concerns_its_relation_alone() -> None:
    days = Relation(9, "shop", "days", ReplicaIdentity.DEFAULT, (Attribute("day", 1082),))
    decoded = decode(
        m.RelationMessage(days),
        m.RelationMessage(T),
        m.Insert(16384, ROW),
        m.Insert(9, (Text(b"infinity"),)),
        m.Insert(16384, ROW),
    )
    assert [(b.relation, b.sequence.tolist()) for b in decoded.changes] == [(T, [2, 4])]
    assert [u.relation for u in decoded.unreadable] == [days]


@pytest.mark.parametrize(
    ("value", "message"),
    [(Text(b"x"), "invalid input syntax"), (Binary(b"123"), "incorrect binary data format")],
)
def test_a_value_that_its_type_cannot_read_concerns_its_relation_alone(
    value: Text | Binary, message: str
) -> None:
    """It may be a table's that nobody follows."""
    decoded = decode(m.RelationMessage(T), m.Insert(16384, (value, NULL)))
    (found,) = decoded.unreadable
    assert found.relation == T
    assert message in found.error.message


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([m.Insert(5, ())], "no relation map entry for remote relation ID 5"),
        ([m.Truncate((5,))], "no relation map entry for remote relation ID 5"),
        (
            [m.Insert(16384, ROW), m.RelationMessage(T)],
            "no relation map entry for remote relation ID 16384",
        ),
        (
            [m.RelationMessage(T), m.Insert(16384, ROW[:1])],
            "logical replication column 1 not found in tuple",
        ),
        (
            [m.RelationMessage(T), m.Insert(16384, (*ROW, NULL))],
            "tuple of 3 columns for a relation of 2",
        ),
        (
            [m.RelationMessage(T), m.Delete(16384, (UNCHANGED, NULL), m.OldTuple.KEY)],
            "old tuple with a TOAST value that was not sent",
        ),
    ],
)
def test_what_does_not_fit_the_relation_map(messages: list[m.Message], words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words.replace("(", r"\(")):
        decode(*messages)


@pytest.mark.parametrize("frame", [b"", b"w" + bytes(24), b"k" + bytes(17), b"k" + bytes(30)])
def test_frames_that_are_no_change(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        MessageChunk.from_copy_data([*frames([m.Origin(Lsn(1), "a")]), frame])


def test_origins_are_read_whether_alike_or_not() -> None:
    alike = [encode(m.Origin(Lsn(i), "east")) for i in range(1, 5)]
    ColumnarDecoder(find).decode(chunk_of(alike))
    for broken in (b"O" + bytes(8) + b"wes\0t", b"O" + bytes(8) + b"east!", b"O" + bytes(3)):
        with pytest.raises(ProtocolViolation):
            ColumnarDecoder(find).decode(chunk_of([*alike, broken]))
