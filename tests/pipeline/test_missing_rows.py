"""Changes of rows that the target does not have: what PostgreSQL's apply worker does, one by one.

The model is ``apply_handle_insert``, ``_update`` and ``_delete``: an insert of a key that is there
is a unique violation, an update or delete of a row that is not there is skipped and counted.
``tests/end_to_end/test_keys.py`` compares the same with a real subscriber.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.errors import InsertExists, ReplicationConflict, UpdateExists
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pipeline.fold import fold
from penstock.pipeline.net_change import LocalRow, Met, NetChange
from penstock.relation import ReplicaIdentity
from pipeline.history import Message, Publisher, batches

TYPES = {"k": pa.int64(), "v": pa.int64()}
_KEYS = st.integers(1, 3)
_CHANGES = st.one_of(
    st.tuples(st.just("I"), _KEYS, _KEYS),
    st.tuples(st.just("U"), _KEYS, _KEYS),
    st.tuples(st.just("D"), _KEYS, _KEYS),
    st.tuples(st.just("T"), _KEYS, _KEYS),
)
Rows = list[dict[str, Any]]
_V = frozenset({"v"})
_MOST_SEARCHES = 2
"""Each is a job, and there may be millions of changes, each of the row that the one before made."""


def _schema(key: tuple[str, ...]) -> TableSchema:
    return TableSchema(tuple(Column(n, Attribute(n, 20), type) for n, type in TYPES.items()), key)


def _carry_out(net: NetChange, table: Rows) -> NetChange:
    """What ``apply`` does, on a list: search, fold again while rows are missing, change."""
    searches = 0
    while True:
        if net.truncate:
            table.clear()
        stock = Counter(tuple(r[name] for name in net.removed.column_names) for r in table)
        wanted = net.copies if net.copies is not None else np.ones(net.removed.num_rows, int)
        found = [stock[tuple(row.values())] for row in net.removed.to_pylist()]
        lacking = np.maximum(wanted - np.array(found, int), 0)
        if not lacking.any() and not net.asks:
            break
        searches += 1
        assert net.without is not None and searches <= _MOST_SEARCHES
        net = net.without(lacking)
    for row, count in zip(net.removed.to_pylist(), wanted, strict=True):
        for _ in range(count):
            table.remove(next(r for r in table if row.items() <= r.items()))
    keys = {tuple(row[name] for name in net.absent.column_names) for row in table}
    if any(tuple(row.values()) in keys for row in net.absent.to_pylist()):
        raise ReplicationConflict("exists")
    table += net.rows.to_pylist()
    return net


@given(there=st.sets(_KEYS), changes=st.lists(_CHANGES, min_size=1, max_size=8))
def test_keyed_tables(there: set[int], changes: list[tuple[str, int, int]]) -> None:
    publisher = Publisher(dict(TYPES), ("k",))
    model, missing, exists = {k: {"k": k, "v": 0} for k in there}, Counter[str](), False
    messages: list[Message] = []
    for number, (operation, key, to) in enumerate(changes, 1):
        new = {"k": to if operation == "U" else key, "v": number}
        old = {"k": key, "v": None} if operation == "D" or to != key else None
        match operation:
            case "I":
                exists = exists or key in model
                messages.append(Message(publisher.relation, "I", new=new))
                model[key] = new
            case "U":
                # the publisher's own index does not let a key move to one that is there
                assume(to == key or key not in model or to not in model)
                messages.append(Message(publisher.relation, "U", new=new, old=old))
                if key in model:
                    del model[key]
                    model[to] = new
                else:
                    missing["U"] += 1
            case "D":
                messages.append(Message(publisher.relation, "D", old=old))
                if model.pop(key, None) is None:
                    missing["D"] += 1
            case _:
                messages.append(Message(publisher.relation, "T"))
                model.clear()
    table = [{"k": k, "v": 0} for k in there]
    found, truncates = batches(messages, TYPES)
    try:
        net = _carry_out(fold(found, _schema(("k",)), truncates=truncates), table)
    except ReplicationConflict:
        assert exists
        return
    if not exists:
        assert sorted(map(str, table)) == sorted(map(str, model.values()))
        told = net.skipped
        assert (told.update_missing if told else 0) <= missing["U"]
        assert (told.delete_missing if told else 0) <= missing["D"]
        assert bool(told) == bool(missing) or _only_hidden(changes)


def _only_hidden(changes: list[tuple[str, int, int]]) -> bool:
    """D, U, I of one key, and what a TRUNCATE makes void, come to the same without being told."""
    return any(c[0] == "T" for c in changes) or len(changes) > 2


@given(there=st.lists(_KEYS, max_size=3), changes=st.lists(_CHANGES, min_size=1, max_size=8))
def test_tables_without_a_key(there: list[int], changes: list[tuple[str, int, int]]) -> None:
    publisher = Publisher(dict(TYPES), (), ReplicaIdentity.FULL)
    model = [{"k": k, "v": 0} for k in there]
    table = [dict(row) for row in model]
    messages: list[Message] = []
    missing: Counter[str] = Counter()
    for operation, key, to in changes:
        old, new = {"k": key, "v": 0}, {"k": to, "v": 0}
        if operation == "T":
            messages.append(Message(publisher.relation, "T"))
            model.clear()
            missing.clear()
            continue
        if operation == "I":
            messages.append(Message(publisher.relation, "I", new=old))
            model.append(old)
            continue
        if operation == "U":
            messages.append(Message(publisher.relation, "U", new=new, old=old))
        else:
            messages.append(Message(publisher.relation, "D", old=old))
        if old not in model:
            missing[operation] += 1
            continue
        model.remove(old)
        if operation == "U":
            model.append(new)
    found, truncates = batches(messages, TYPES)
    net = _carry_out(fold(found, _schema(()), truncates=truncates), table)
    assert sorted(map(str, table)) == sorted(map(str, model))
    told = net.skipped
    assert (told.update_missing if told else 0) == missing["U"]
    assert (told.delete_missing if told else 0) == missing["D"]


@pytest.mark.parametrize("truncate", [False, True])
def test_many_changes_of_one_row_that_is_not_there(truncate: bool) -> None:
    publisher = Publisher(dict(TYPES), (), ReplicaIdentity.FULL)
    messages = [Message(publisher.relation, "T")] if truncate else []
    for v in range(2000):
        old, new = {"k": 1, "v": v}, {"k": 1, "v": v + 1}
        messages.append(Message(publisher.relation, "U", new=new, old=old))
    found, truncates = batches(messages, TYPES)
    table: Rows = [] if truncate else [{"k": 1, "v": 1500}]
    net = _carry_out(fold(found, _schema(()), truncates=truncates), table)
    assert table == ([] if truncate else [{"k": 1, "v": 2000}])
    assert net.skipped is not None
    assert net.skipped.update_missing == (2000 if truncate else 1500)


@pytest.mark.parametrize("truncate", [False, True])
def test_many_changes_of_the_key_of_a_row_that_is_not_there(truncate: bool) -> None:
    publisher = Publisher(dict(TYPES), ("k",))
    messages = [Message(publisher.relation, "T")] if truncate else []
    for k in range(2000):
        old, new = {"k": k, "v": None}, {"k": k + 1, "v": k + 1}
        messages.append(Message(publisher.relation, "U", new=new, old=old))
    found, truncates = batches(messages, TYPES)
    table: Rows = [] if truncate else [{"k": 1500, "v": 0}]
    net = _carry_out(fold(found, _schema(("k",)), truncates=truncates), table)
    assert table == ([] if truncate else [{"k": 2000, "v": 2000}])
    assert net.skipped is not None
    assert net.skipped.update_missing == (2000 if truncate else 1500)


def test_what_is_told_of_skipped_changes() -> None:
    publisher = Publisher(dict(TYPES), ("k",))
    messages = [
        Message(publisher.relation, "U", new={"k": 1, "v": 5}),
        Message(publisher.relation, "U", new={"k": 3, "v": 6}, old={"k": 2, "v": None}),
        Message(publisher.relation, "U", new={"k": 3, "v": 7}),
        Message(publisher.relation, "D", old={"k": 4, "v": None}),
        Message(publisher.relation, "I", new={"k": 4, "v": 8}),
    ]
    net = fold(batches(messages, TYPES)[0], _schema(("k",)))
    assert net.without is not None
    assert net.removed["k"].to_pylist() == [1, 2, 4]
    net = net.without(np.array([0, 1, 1]))
    assert net.asks and net.without is not None  # whether the row to which 2 did not move is there
    assert net.removed["k"].to_pylist() == [1, 2, 3, 4]
    net = net.without(np.array([0, 1, 1, 1]))
    assert net.skipped is not None
    assert (net.skipped.update_missing, net.skipped.delete_missing) == (2, 1)
    assert net.skipped.updates["k"].to_pylist() == [2, 3]
    assert net.skipped.deletes["k"].to_pylist() == [4]
    assert net.removed["k"].to_pylist() == [1]
    assert net.rows.to_pylist() == [{"k": 1, "v": 5}, {"k": 4, "v": 8}]
    assert net.absent["k"].to_pylist() == [4]


def test_what_is_told_of_a_key_that_is_there() -> None:
    """By the first change that makes it, an INSERT or an UPDATE that changes the key."""
    publisher = Publisher(dict(TYPES), ("k",))
    moves = Message(
        publisher.relation, "U", new={"k": 2, "v": None}, old={"k": 1, "v": None}, unchanged=_V
    )
    inserts = Message(publisher.relation, "I", new={"k": 3, "v": 5})
    net = fold(batches([moves, inserts], TYPES)[0], _schema(("k",)))
    assert net.absent["k"].to_pylist() == [2, 3]
    assert net.exists is not None
    error = net.exists("t", np.array([0, 1]), {0: LocalRow("(2, 0)")})
    assert isinstance(error, UpdateExists)
    told = "existing local row (2, 0); remote row (2, (not sent)); replica identity (k)=(1)."
    line = "Key already exists."
    assert error.detail == f"{line}\nKey (k)=(2); {told} There are more: Key (k)=(3)."
    assert isinstance(error.met, Met)
    assert (error.met.insert_exists, error.met.update_exists) == (1, 1)
    assert error.met.rows.to_pylist() == [{"k": 2, "v": None}, {"k": 3, "v": 5}]
    assert error.met.local == (LocalRow("(2, 0)"), None)
    error = net.exists("t", np.array([1]), {})
    assert isinstance(error, InsertExists)
    line = "Key already exists."
    assert error.detail == f"{line}\nKey (k)=(3); remote row (3, 5)."
    twice = Message(publisher.relation, "U", new={"k": 3, "v": 6}, old={"k": 4, "v": None})
    net = fold(batches([inserts, twice], TYPES)[0], _schema(("k",)))
    assert net.asks and net.without is not None  # of a missing row, the change would meet none
    assert net.removed["k"].to_pylist() == [4]
    assert net.without(np.array([1])).rows.to_pylist() == [{"k": 3, "v": 5}]
    with pytest.raises(UpdateExists, match="conflict=update_exists") as caught:
        net.without(np.array([0]))
    met = caught.value.met
    assert isinstance(met, Met) and met.local == (LocalRow("(3, 5)", of_run=True),)
