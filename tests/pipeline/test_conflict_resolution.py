"""``conflict_resolution``: keys that the target has already, one change after the other.

The model is an apply worker that asks the option at each unique violation: the local row goes, or
the change is left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog.pg_subscription import LakeOptions
from penstock.pipeline import fold as fold_of
from penstock.pipeline.conflict import APPLY_REMOTE, KEEP_LOCAL
from penstock.pipeline.fold import fold
from penstock.pipeline.net_change import KEPT, LocalRow, NetChange
from pipeline.history import Message, Publisher, batches
from pipeline.test_missing_rows import _CHANGES, _KEYS, TYPES, _schema

Table = dict[int, dict[str, Any]]
_SENT_OR_NOT = _CHANGES | st.tuples(st.just("S"), _KEYS, _KEYS)
"""S: a row of the publisher comes or goes, which it does not send."""


def carried_out(net: NetChange, table: Table) -> NetChange:
    """What ``apply`` does, on a dict."""
    searches = 0
    while True:
        searches += 1
        assert searches < KEPT + 5, "each is a job"
        lacking = np.array([key not in table for key in net.removed["k"].to_pylist()], int)
        there = [n for n, key in enumerate(net.absent["k"].to_pylist()) if key in table]
        if net.truncate:
            table.clear()
            there = []
        if lacking.any() or net.asks:
            assert net.without is not None
            net = net.without(lacking)
        elif there:
            assert net.existing is not None
            keys = net.absent["k"].to_pylist()
            local = {n: LocalRow(f"({keys[n]}, {table[keys[n]]['v']})") for n in there}
            net = net.existing(np.array(there), local)
        else:
            break
    for key in net.removed["k"].to_pylist():
        del table[key]
    for row in net.rows.to_pylist():
        assert row["k"] not in table
        table[row["k"]] = row
    return net


@given(
    theirs=st.sets(_KEYS),
    ours=st.sets(_KEYS),
    changes=st.lists(_SENT_OR_NOT, min_size=1, max_size=8),
    resolution=st.sampled_from([APPLY_REMOTE, KEEP_LOCAL]),
    kept=st.sampled_from([1, KEPT]),
)
@settings(max_examples=500)
def test_it_comes_to_what_one_change_after_the_other_does(
    theirs: set[int],
    ours: set[int],
    changes: list[tuple[str, int, int]],
    resolution: str,
    kept: int,
) -> None:
    publisher = Publisher(dict(TYPES), ("k",))
    model = {k: {"k": k, "v": -k} for k in ours}
    table = {k: dict(row) for k, row in model.items()}
    messages: list[Message] = []
    met: Counter[str] = Counter()
    local: Counter[str] = Counter()
    for number, (operation, key, to) in enumerate(changes, 1):
        to = key if operation != "U" else to
        new = {"k": to, "v": number}
        old = {"k": key, "v": None} if operation == "D" or to != key else None
        moves = operation == "U" and to != key
        if operation == "S":
            theirs = theirs ^ {key}
            continue
        if operation == "T":
            theirs, model = set(), {}
            messages.append(Message(publisher.relation, "T"))
            continue
        if (key in theirs) == (operation == "I") or (moves and to in theirs):
            continue  # the publisher cannot do that
        theirs = (theirs - {key}) | ({to} if operation != "D" else set())
        if operation == "D":
            messages.append(Message(publisher.relation, "D", old=old))
            model.pop(key, None)
            continue
        messages.append(Message(publisher.relation, operation, new=new, old=old))
        if operation == "U" and key not in model:
            continue
        if (operation == "I" or moves) and to in model:
            met[operation] += 1
            local[f"({to}, {model[to]['v']})"] += 1
            if resolution == KEEP_LOCAL:
                continue
        if moves:
            del model[key]
        model[to] = new
    found, truncates = batches(messages, TYPES)
    with pytest.MonkeyPatch.context() as told:
        told.setattr(fold_of, "KEPT", kept)
        net = fold(
            found,
            _schema(("k",)),
            truncates=truncates,
            options=LakeOptions(conflict_resolution=resolution),
        )
        net = carried_out(net, table)
    assert table == model
    if net.resolved is not None:
        assert net.resolved.insert_exists <= met["I"]
        assert net.resolved.update_exists <= met["U"]
        if all(operation != "S" for operation, _, _ in changes):  # else a row of the run is shown,
            # even if it met the target's row itself
            assert Counter(row.shown for row in net.resolved.local if row is not None) <= local
            assert None not in net.resolved.local or kept < KEPT
    assert bool(net.resolved) == bool(met) or any(c[0] == "T" for c in changes)


@pytest.mark.parametrize("of_run", [False, True])
def test_rows_that_stay_in_the_way_of_one_another(of_run: bool) -> None:
    """UPDATE ... SET k = k + 1 where the place of the last one is taken: each stays where it is."""
    publisher, count = Publisher(dict(TYPES), ("k",)), 600
    rows = [{"k": k, "v": -k} for k in range(1, count + 2)]
    messages = [Message(publisher.relation, "I", new=row) for row in rows] if of_run else []
    for k in range(count, 0, -1):
        new, old = {"k": k + 1, "v": k}, {"k": k, "v": None}
        messages.append(Message(publisher.relation, "U", new=new, old=old))
    messages.append(Message(publisher.relation, "I", new={"k": 1, "v": 8}))
    messages.append(Message(publisher.relation, "U", new={"k": 1, "v": 9}))
    table = {} if of_run else {row["k"]: row for row in rows}
    net = fold(
        batches(messages, TYPES)[0],
        _schema(("k",)),
        options=LakeOptions(conflict_resolution=KEEP_LOCAL),
    )
    net = carried_out(net, table)
    assert list(table.values()) == [*rows[1:], {"k": 1, "v": 9}]
    assert net.resolved is not None
    assert (net.resolved.update_exists, net.resolved.insert_exists) == (count, 1)
    assert None not in net.resolved.local


@pytest.mark.parametrize("resolution", [APPLY_REMOTE, KEEP_LOCAL])
def test_what_is_told(resolution: str) -> None:
    publisher = Publisher(dict(TYPES), ("k",))
    messages = [
        Message(publisher.relation, "I", new={"k": 1, "v": 5}),
        Message(publisher.relation, "U", new={"k": 3, "v": 6}, old={"k": 2, "v": None}),
        Message(publisher.relation, "I", new={"k": 2, "v": 7}),
    ]
    net = fold(
        batches(messages, TYPES)[0],
        _schema(("k",)),
        options=LakeOptions(conflict_resolution=resolution),
    )
    table = {k: {"k": k, "v": -k} for k in (1, 2, 3)}
    net = carried_out(net, table)
    told = net.resolved
    assert told is not None
    kept = resolution == KEEP_LOCAL  # then the row with 2 is there, too
    assert (told.insert_exists, told.update_exists) == (1 + kept, 1)
    assert told.keys["k"].to_pylist() == [1, 3, 2][: 2 + kept]
    assert told.update.tolist() == [False, True, False][: 2 + kept]
    assert told.old_keys["k"].to_pylist()[1] == 2
    assert told.rows["v"].to_pylist() == [5, 6, 7][: 2 + kept]
    local = [row and row.shown for row in told.local]
    assert local == ["(1, -1)", "(3, -3)", "(2, -2)"][: 2 + kept]
    assert sorted(row["v"] for row in table.values()) == ([-3, -2, -1] if kept else [5, 6, 7])
