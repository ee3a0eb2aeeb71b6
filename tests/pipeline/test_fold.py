"""The fold against a plain model: whatever happened at the publisher, the net change says it."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.errors import ProtocolViolation, RelationChanged, ReplicationConflict
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pipeline.fold import fold
from penstock.pipeline.net_change import NetChange
from penstock.relation import ReplicaIdentity
from pipeline.history import TEXT, Message, Publisher, Row, batches, multiset

TYPES = {"a": pa.int32(), "b": pa.string(), "big": pa.string(), "n": pa.int64()}
LATER = "later"
NOON = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("UTC"))


def schema_of(types: dict[str, pa.DataType], key: tuple[str, ...]) -> TableSchema:
    columns = (Column(name, Attribute(name, TEXT), type) for name, type in types.items())
    return TableSchema(tuple(columns), key)


def apply_to(rows: list[Row], net: NetChange) -> list[Row]:
    """The net change on a plain list of rows, every assumption of it checked."""
    if net.truncate:
        assert not net.removed.num_rows and not net.absent.num_rows and not net.incomplete
        rows = []
    key = net.schema.key
    rows = list(rows)
    if not key:
        for row, count in zip(net.removed.to_pylist(), _counts(net), strict=True):
            for _ in range(count):
                rows.remove(row)
        return [*rows, *net.rows.to_pylist()]
    held = {tuple(row[k] for k in key): row for row in rows}
    assert len(held) == len(rows)
    absent = {tuple(row.values()) for row in net.absent.to_pylist()}
    assert not absent & set(held)
    old = [held.pop(tuple(row.values())) for row in net.removed.to_pylist()]
    new = net.rows.to_pylist()
    if net.incomplete:
        for i, row in enumerate(net.incomplete.rows.to_pylist()):
            for name, mask in net.incomplete.missing.items():
                if mask[i]:
                    assert row[name] is None
                    row[name] = old[net.incomplete.old[i]][name]
            new.append(row)
    for row in new:
        assert held.setdefault(tuple(row[k] for k in key), row) is row
    return list(held.values())


def _counts(net: NetChange) -> list[int]:
    return [] if net.copies is None else net.copies.tolist()


def folded(publisher: Publisher, messages: list[Message], **options: Any) -> NetChange:
    changes, truncates = batches(messages, publisher.types)
    key = options.pop("key", publisher.key)
    schema = schema_of(publisher.types, key)
    return fold(changes, schema, truncates=truncates, **options)


@st.composite
def histories(draw: st.DrawFn, key: tuple[str, ...], identity: ReplicaIdentity) -> Any:
    """A publisher with some rows and a list of chunks, each the messages of some operations."""
    publisher = Publisher(dict(TYPES), key, identity)
    keys = st.tuples(st.integers(0, 3), st.sampled_from("xy"))
    for a, b in draw(st.lists(keys, max_size=4)):
        _insert(publisher, a, b, 0)
    publisher.take_messages()
    start, chunks = [dict(row) for row in publisher.rows], []
    steps = st.sampled_from(["insert", "delete", "truncate", "border", "add", *["update"] * 6])
    toasted = st.sampled_from([frozenset(), frozenset({"big"}), frozenset({"big", "b"})])
    for number, step in enumerate(draw(st.lists(steps, min_size=1, max_size=25)), 1):
        held = len(publisher.rows)
        if step == "insert":
            _insert(publisher, *draw(keys), number)
        elif step == "border":
            chunks.append((dict(publisher.types), publisher.take_messages()))
        elif step == "add":
            publisher.add_column(LATER, pa.int64())
        elif step == "truncate" and draw(st.integers(0, 3)) == 0:
            publisher.truncate()
        elif held and step == "delete":
            publisher.delete(draw(st.integers(0, held - 1)))
        elif held and step == "update":
            values = draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "a": st.integers(0, 3),
                        "big": st.just(f"B{number}"),
                        "n": st.just(number),
                    },
                )
            )
            _update(publisher, draw(st.integers(0, held - 1)), values, draw(toasted))
    chunks.append((dict(publisher.types), publisher.take_messages()))
    return start, chunks, publisher


def _insert(publisher: Publisher, a: int, b: str, number: int) -> None:
    row = {"a": a, "b": b, "big": f"b{number}" if number % 3 else None, "n": number % 2}
    if not publisher.key or not _held(publisher, row):
        publisher.insert(row)


def _update(publisher: Publisher, at: int, values: Row, toasted: frozenset[str]) -> None:
    new = {**publisher.rows[at], **values}
    if not publisher.key or not _held(publisher, new, but=at):
        publisher.update(at, values, toasted)


def _held(publisher: Publisher, row: Row, but: int = -1) -> bool:
    return any(
        all(other[k] == row[k] for k in publisher.key)
        for i, other in enumerate(publisher.rows)
        if i != but
    )


def check_history(start: list[Row], chunks: list[Any], publisher: Publisher) -> None:
    rows = start
    for types, messages in chunks:
        rows = [{name: row.get(name) for name in types} for row in rows]
        changes, truncates = batches(messages, types)
        schema = schema_of(types, publisher.key)
        rows = apply_to(rows, fold(changes, schema, truncates=truncates))
    assert multiset(rows) == multiset(publisher.rows)


@settings(max_examples=400, deadline=None)
@given(histories(("a",), ReplicaIdentity.DEFAULT))
def test_single_key(history: Any) -> None:
    check_history(*history)


@settings(max_examples=200, deadline=None)
@given(histories(("b", "a"), ReplicaIdentity.DEFAULT))
def test_composite_key(history: Any) -> None:
    check_history(*history)


@settings(max_examples=200, deadline=None)
@given(histories(("a",), ReplicaIdentity.FULL))
def test_full_identity_with_key(history: Any) -> None:
    check_history(*history)


@settings(max_examples=300, deadline=None)
@given(histories((), ReplicaIdentity.FULL))
def test_multiset(history: Any) -> None:
    check_history(*history)


def publisher_with(*rows: Row, **options: Any) -> Publisher:
    publisher = Publisher(dict(TYPES), ("a",), **options)
    for row in rows:
        publisher.insert(row)
    publisher.take_messages()
    return publisher


ROW = {"a": 1, "b": "x", "big": "toast", "n": 0}


def test_insert_and_partial_update_is_one_complete_row() -> None:
    publisher = publisher_with()
    publisher.insert(ROW)
    publisher.update(0, {"n": 7}, frozenset({"big"}))
    net = folded(publisher, publisher.take_messages())
    assert net.rows.to_pylist() == [{**ROW, "n": 7}]
    assert net.incomplete is None
    assert net.removed.num_rows == 0
    assert net.absent.to_pylist() == [{"a": 1}]


def test_unchanged_cell_follows_its_row_through_key_changes() -> None:
    publisher = publisher_with(ROW, {**ROW, "a": 2, "big": "other"})
    publisher.update(0, {"a": 3}, frozenset({"big"}))
    publisher.update(1, {"a": 1}, frozenset({"big"}))
    publisher.update(0, {"a": 2}, frozenset({"big"}))
    net = folded(publisher, publisher.take_messages())
    assert net.incomplete is not None
    removed = [row["a"] for row in net.removed.to_pylist()]
    moved = {
        row["a"]: removed[old]
        for row, old in zip(net.incomplete.rows.to_pylist(), net.incomplete.old, strict=True)
    }
    assert moved == {2: 1, 1: 2}
    assert net.rows.num_rows == 0
    assert net.absent.to_pylist() == [{"a": 3}]


def test_reinserted_key_does_not_inherit_cells() -> None:
    publisher = publisher_with(ROW)
    publisher.delete(0)
    publisher.insert({**ROW, "big": None})
    publisher.update(0, {"n": 9}, frozenset({"big"}))
    net = folded(publisher, publisher.take_messages())
    assert net.rows.to_pylist() == [{**ROW, "big": None, "n": 9}]
    assert net.removed.to_pylist() == [{"a": 1}]


def test_truncate_drops_what_was_before_and_keeps_what_follows() -> None:
    publisher = publisher_with(ROW)
    publisher.update(0, {"n": 3})
    publisher.truncate()
    publisher.insert({**ROW, "n": 4})
    net = folded(publisher, publisher.take_messages())
    assert net.truncate
    assert net.rows.to_pylist() == [{**ROW, "n": 4}]
    assert net.removed.num_rows == net.absent.num_rows == 0
    assert net.changes == 1


def test_changes_below_from_sequence_are_skipped_with_their_truncates() -> None:
    publisher = publisher_with(ROW)
    publisher.truncate()
    publisher.insert(ROW)
    publisher.update(0, {"n": 5})
    net = folded(publisher, publisher.take_messages(), from_sequence=2)
    assert not net.truncate
    assert net.rows.to_pylist() == [{**ROW, "n": 5}]
    assert net.removed.to_pylist() == [{"a": 1}]
    nothing = folded(publisher_with(), [], from_sequence=0)
    assert nothing.empty


def test_many_key_changes_of_one_row() -> None:
    publisher = publisher_with(ROW)
    for a in range(2, 3000):
        publisher.update(0, {"a": a}, frozenset({"big"}))
    net = folded(publisher, publisher.take_messages())
    assert net.incomplete is not None
    assert net.incomplete.rows.to_pylist() == [{**ROW, "a": 2999, "big": None}]
    assert net.removed.to_pylist() == [{"a": 1}]
    assert net.absent.num_rows == 2998


@pytest.mark.parametrize("operations", ["II", "UI", "DII"])
def test_a_key_inserted_twice_is_a_unique_violation(operations: str) -> None:
    with pytest.raises(ReplicationConflict, match=r'"public\.t"') as raised:
        with_old_rows(folded(publisher_with(), sent(operations)))
    assert raised.value.sqlstate == "23505"
    line = "Key already exists."
    assert str(raised.value.detail).startswith(f"{line}\nKey (a)=(1); existing local row (1, ")
    assert raised.value.hint is not None


@pytest.mark.parametrize(
    ("operations", "updates", "deletes"),
    [("DD", 0, 1), ("DU", 1, 0), ("TU", 1, 0), ("TD", 0, 1), ("IDU", 1, 0), ("DUDI", 1, 1)],
)
def test_changes_of_rows_that_the_run_has_removed_are_skipped(
    operations: str, updates: int, deletes: int
) -> None:
    net = with_old_rows(folded(publisher_with(), sent(operations)))
    assert net.skipped is not None
    assert (net.skipped.update_missing, net.skipped.delete_missing) == (updates, deletes)
    assert net.rows.num_rows == operations.endswith("I")


def with_old_rows(net: NetChange) -> NetChange:
    """Of a target that has the rows for which a run asks that removes or makes a row twice."""
    if not net.asks:
        return net
    assert net.without is not None
    return net.without(np.zeros(net.removed.num_rows, int))


def sent(operations: str) -> list[Message]:
    relation = publisher_with().relation
    message = {
        "I": Message(relation, "I", new=ROW),
        "U": Message(relation, "U", new=ROW),
        "D": Message(relation, "D", old={"a": 1}),
        "T": Message(relation, "T"),
    }
    return [message[o] for o in operations]


def test_insert_without_a_value_is_a_conflict_not_null() -> None:
    moved = Message(publisher_with().relation, "I", new=ROW, unchanged=frozenset({"big"}))
    with pytest.raises(ReplicationConflict, match='"big"'):
        folded(publisher_with(), [moved])
    with pytest.raises(ReplicationConflict, match='"big"'):
        folded(publisher_with(), [moved], key=())


def test_identity_that_does_not_identify_the_targets_rows() -> None:
    publisher = publisher_with(ROW)
    publisher.update(0, {"n": 1})
    messages = publisher.take_messages()
    with pytest.raises(RelationChanged, match="replica identity column"):
        folded(publisher, messages, key=("b",))
    with pytest.raises(RelationChanged, match="has neither REPLICA IDENTITY index"):
        folded(publisher, messages, key=())


def test_columns_that_the_target_cannot_take() -> None:
    publisher = publisher_with()
    publisher.insert(ROW)
    changes, _ = batches(publisher.take_messages(), TYPES)
    with pytest.raises(RelationChanged, match='"n"'):
        fold(changes, schema_of({k: v for k, v in TYPES.items() if k != "n"}, ("a",)))
    with pytest.raises(RelationChanged, match="another type") as raised:
        fold(changes, schema_of({**TYPES, "n": pa.float64()}, ("a",)))
    assert raised.value.detail == "The target holds double, the publisher sends int64."


def test_delete_without_old_tuple() -> None:
    relation = publisher_with().relation
    with pytest.raises(ProtocolViolation):
        folded(publisher_with(), [Message(relation, "D"), Message(relation, "D", old={"a": 1})])


@pytest.mark.parametrize(
    ("type", "first", "second"),
    [
        (pa.string(), "a", "a "),
        (pa.binary(), b"\x00", b"\x00\x01"),
        (pa.decimal128(10, 2), Decimal("1.10"), Decimal("1.11")),
        (pa.timestamp("us", "UTC"), NOON, NOON + timedelta(microseconds=1)),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
        (pa.bool_(), False, True),
        (pa.float64(), float("nan"), float("inf")),
        (pa.list_(pa.int32()), [1, None], [1]),
    ],
    ids=str,
)
def test_any_type_can_be_a_key(type: pa.DataType, first: Any, second: Any) -> None:
    types = {**TYPES, "a": type}
    publisher = Publisher(types, ("a",))
    for key in (first, second):
        publisher.insert({**ROW, "a": key})
    publisher.take_messages()
    publisher.update(0, {"n": 1})
    publisher.update(0, {"n": 2})
    publisher.delete(1)
    net = folded(publisher, publisher.take_messages())
    assert net.rows["n"].to_pylist() == [2]
    removed = [
        value.astimezone(NOON.tzinfo) if isinstance(value, datetime) and value.tzinfo else value
        for value in net.removed["a"].to_pylist()
    ]
    assert repr(removed) == repr([first, second])
    assert net.removed.schema.field("a").type == type


def test_multiset_takes_one_of_equal_rows() -> None:
    publisher = Publisher(dict(TYPES), (), ReplicaIdentity.FULL)
    for _ in range(3):
        publisher.insert({**ROW, "n": None})
    publisher.take_messages()
    publisher.delete(0)
    publisher.update(0, {"b": "y"}, frozenset({"big"}))
    net = folded(publisher, publisher.take_messages())
    assert net.removed.to_pylist() == [{**ROW, "n": None}]
    assert net.copies is not None and np.array_equal(net.copies, [2])
    assert net.rows_removed == 2
    assert net.rows.to_pylist() == [{**ROW, "b": "y", "n": None}]
