"""Random messages of every kind, and random relations with rows as a server may send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar import MessageChunk
from penstock.pgoutput.messages import NULL, UNCHANGED, Binary, Cell, Text, TupleData
from penstock.relation import Relation, ReplicaIdentity
from pgtypes.values import KINDS, OTHER, Kind, array_out, array_send


def chunk_of(messages: Sequence[bytes]) -> MessageChunk:
    """Messages without the headers of their frames."""
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(sizes)
    return MessageChunk(b"".join(messages), ends - sizes, ends)


lsns = st.integers(1, 2**63 - 1).map(Lsn)
times = st.integers(-(2**62), 2**62)
xids = st.integers(0, 2**32 - 1)
oids = st.integers(1, 2**32 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
raws = st.binary(max_size=8)
cells: st.SearchStrategy[Cell] = st.one_of(
    st.just(NULL), st.just(UNCHANGED), raws.map(Text), raws.map(Binary)
)
old_cells: st.SearchStrategy[Cell] = st.one_of(st.just(NULL), raws.map(Text), raws.map(Binary))
tuples = st.lists(cells, max_size=4).map(tuple)
old_tuples = st.lists(old_cells, max_size=4).map(tuple)
old_kinds = st.sampled_from(m.OldTuple)
relations = st.builds(
    Relation,
    oids,
    names.filter(bool),
    names,
    st.sampled_from(ReplicaIdentity),
    st.lists(
        st.builds(Attribute, names, oids, st.integers(-1, 2**31 - 1), key=st.booleans()), max_size=4
    ).map(tuple),
)

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "R": st.builds(m.RelationMessage, relations),
    "Y": st.builds(m.TypeMessage, oids, names.filter(bool), names),
    "I": st.builds(m.Insert, oids, tuples),
    "U": st.one_of(
        st.builds(m.Update, oids, tuples),
        st.builds(m.Update, oids, tuples, old_tuples, old_kinds),
    ),
    "D": st.builds(m.Delete, oids, old_tuples, old_kinds),
    "T": st.builds(m.Truncate, st.lists(oids, max_size=4).map(tuple), st.booleans(), st.booleans()),
    "M": st.builds(m.LogicalMessage, st.booleans(), lsns, names, raws),
}
"""Messages that begin with an xid within a streamed block."""

_prepared = (lsns, lsns, times, xids, names)

OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "B": st.builds(m.Begin, lsns, times, xids),
    "C": st.builds(m.Commit, lsns, lsns, times),
    "O": st.builds(m.Origin, lsns, names),
    "S": st.builds(m.StreamStart, xids, st.booleans()),
    "c": st.builds(m.StreamCommit, xids, lsns, lsns, times),
    "A": st.builds(m.StreamAbort, xids, xids, lsns, times),
    "b": st.builds(m.BeginPrepare, *_prepared),
    "P": st.builds(m.Prepare, *_prepared),
    "K": st.builds(m.CommitPrepared, *_prepared),
    "r": st.builds(m.RollbackPrepared, lsns, lsns, times, times, xids, names),
    "p": st.builds(m.StreamPrepare, *_prepared),
}


@dataclass(frozen=True)
class ColumnKind:
    """A column type with its cells: ``kind`` of one value, or of the elements of an array."""

    kind: Kind
    array: bool

    @property
    def oid(self) -> int:
        return self.kind.array_oid if self.array else self.kind.oid

    def text(self, value: Any) -> bytes:
        if not self.array:
            return self.kind.text(value)
        return array_out([None if v is None else self.kind.text(v) for v in value])

    def binary(self, value: Any) -> bytes | None:
        encode = self.kind.binary
        if encode is None or not self.array:
            return None if encode is None else encode(value)
        return array_send(self.kind.oid, [None if v is None else encode(v) for v in value])

    def cells(self) -> st.SearchStrategy[Cell]:
        """NULL, text, or binary where the type has it, mixed as a server may mix them."""
        values = self.kind.values
        if self.array:
            values = st.lists(st.one_of(st.none(), values), max_size=3)
        return st.one_of(st.just(NULL), st.builds(self._cell, values, st.booleans()))

    def _cell(self, value: Any, binary: bool) -> Cell:
        raw = self.binary(value) if binary else None
        return Text(self.text(value)) if raw is None else Binary(raw)


_scalars = [ColumnKind(kind, False) for kind in (*KINDS.values(), OTHER)]
_arrays = [ColumnKind(kind, True) for kind in KINDS.values()]
column_kinds = st.sampled_from([*_scalars, *_arrays])


@st.composite
def chunks(draw: st.DrawFn) -> list[m.Message]:
    """A few relations, redefined now and then, and changes of them with everything in between."""
    layouts: dict[int, list[ColumnKind]] = {}
    out: list[m.Message] = []
    for _ in range(draw(st.integers(0, 14))):
        step = draw(st.sampled_from("RRIIIUUDDTBCOYM"))
        if step == "R" or (step in "IUDT" and not layouts):
            relation, layout = draw(_relation())
            layouts[relation.oid] = layout
            out.append(m.RelationMessage(relation))
        elif step in "IUD":
            oid = draw(st.sampled_from(sorted(layouts)))
            out.append(draw(_change(step, oid, layouts[oid])))
        elif step == "T":
            some = draw(st.lists(st.sampled_from(sorted(layouts)), max_size=2))
            out.append(m.Truncate(tuple(some), draw(st.booleans()), draw(st.booleans())))
        else:
            out.append(draw({**OTHERS, **CHANGES}[step]))
    return out


@st.composite
def _relation(draw: st.DrawFn) -> tuple[Relation, list[ColumnKind]]:
    layout = draw(st.lists(column_kinds, max_size=4))
    attributes = tuple(
        Attribute(f"c{i}", column.oid, column.kind.typmod, key=draw(st.booleans()))
        for i, column in enumerate(layout)
    )
    oid = draw(st.sampled_from([16384, 16385, 4_000_000_000]))
    identity = draw(st.sampled_from(ReplicaIdentity))
    return Relation(oid, "public", f"t{oid}", identity, attributes), layout


@st.composite
def _change(draw: st.DrawFn, step: str, oid: int, layout: list[ColumnKind]) -> m.Message:
    new = draw(_row(layout, unchanged=step == "U"))
    old = draw(_row(layout, unchanged=False))
    kind = draw(old_kinds)
    if step == "I":
        return m.Insert(oid, new)
    if step == "D":
        return m.Delete(oid, old, kind)
    return m.Update(oid, new, old, kind) if draw(st.booleans()) else m.Update(oid, new)


@st.composite
def _row(draw: st.DrawFn, layout: list[ColumnKind], unchanged: bool) -> TupleData:
    def cell(column: ColumnKind) -> st.SearchStrategy[Cell]:
        return st.one_of(column.cells(), st.just(UNCHANGED)) if unchanged else column.cells()

    return tuple(draw(cell(column)) for column in layout)
