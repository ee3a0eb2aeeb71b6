"""A publisher's table in plain Python: random histories, the messages they give, the rows left.

The model knows rows as dicts and one message per change, as pgoutput would send it; it is what the
fold and the apply are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.attribute import Attribute
from penstock.pgoutput.columnar import ChangeBatch
from penstock.relation import Relation, ReplicaIdentity

Row = dict[str, Any]
TEXT = 25


@dataclass(frozen=True)
class Message:
    """One message: ``unchanged`` names the new tuple's cells of kind 'u'."""

    relation: Relation
    operation: str
    new: Row | None = None
    old: Row | None = None
    unchanged: frozenset[str] = frozenset()


@dataclass
class Publisher:
    """A table at the publisher. ``types``: column -> Arrow type, in order."""

    types: dict[str, pa.DataType]
    key: tuple[str, ...]
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    rows: list[Row] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    oid: int = 16384

    @property
    def relation(self) -> Relation:
        full = self.identity is ReplicaIdentity.FULL
        return Relation(
            self.oid,
            "public",
            "t",
            self.identity,
            tuple(Attribute(n, TEXT, key=full or n in self.key) for n in self.types),
        )

    def insert(self, row: Row) -> None:
        row = {name: row.get(name) for name in self.types}
        self.rows.append(row)
        self.messages.append(Message(self.relation, "I", new=dict(row)))

    def update(self, at: int, values: Row, unchanged: frozenset[str] = frozenset()) -> None:
        """``unchanged``: columns whose value is TOASTed, so sent only when ``values`` sets it."""
        old, new = self.rows[at], {**self.rows[at], **values}
        self.rows[at] = new
        sends_old = self.identity is ReplicaIdentity.FULL or any(
            old[name] != new[name] for name in self.key
        )
        self.messages.append(
            Message(
                self.relation,
                "U",
                new=dict(new),
                old=self._old(old) if sends_old else None,
                unchanged=frozenset(unchanged) - set(values) - set(() if sends_old else self.key),
            )
        )

    def delete(self, at: int) -> None:
        self.messages.append(Message(self.relation, "D", old=self._old(self.rows.pop(at))))

    def truncate(self) -> None:
        self.rows.clear()
        self.messages.append(Message(self.relation, "T"))

    def add_column(self, name: str, type: pa.DataType) -> None:
        self.types = {**self.types, name: type}
        self.rows = [{**row, name: None} for row in self.rows]

    def _old(self, row: Row) -> Row:
        if self.identity is ReplicaIdentity.FULL:
            return dict(row)
        return {name: value if name in self.key else None for name, value in row.items()}

    def take_messages(self) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken


def batches(
    messages: Sequence[Message], types: dict[str, pa.DataType]
) -> tuple[list[ChangeBatch], list[int]]:
    """The messages as ColumnarDecoder gives them: batches per relation version, truncates."""
    runs: dict[Relation, list[tuple[int, Message]]] = {}
    truncates = []
    for sequence, message in enumerate(messages):
        if message.operation == "T":
            truncates.append(sequence)
        else:
            runs.setdefault(message.relation, []).append((sequence, message))
    return [_batch(relation, run, types) for relation, run in runs.items()], truncates


def _batch(
    relation: Relation, run: list[tuple[int, Message]], types: dict[str, pa.DataType]
) -> ChangeBatch:
    names = [attribute.name for attribute in relation.attributes]
    changes = [message for _, message in run]
    new = [{k: None if k in m.unchanged else v for k, v in (m.new or {}).items()} for m in changes]
    masks = {name: np.array([name in m.unchanged for m in changes]) for name in names}
    full = relation.replica_identity is ReplicaIdentity.FULL
    kinds = [0 if m.old is None else ord("O" if full else "K") for m in changes]
    return ChangeBatch(
        relation=relation,
        sequence=np.array([sequence for sequence, _ in run], np.int64),
        operation=np.array([ord(m.operation) for m in changes], np.uint8),
        new=record_batch(new, names, types),
        unchanged={name: mask for name, mask in masks.items() if mask.any()},
        old=record_batch([m.old or {} for m in changes], names, types) if any(kinds) else None,
        old_kind=np.array(kinds, np.uint8),
    )


def record_batch(
    rows: Sequence[Row], names: Sequence[str], types: dict[str, pa.DataType]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], types[name]) for name in names], list(names)
    )


def multiset(rows: Sequence[Row]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for row in rows:
        text = repr(sorted((name, _shown(value)) for name, value in row.items()))
        counted[text] = counted.get(text, 0) + 1
    return counted


def _shown(value: Any) -> Any:
    """A time by its text: versions of Arrow have UTC from one library or another."""
    return value.isoformat() if isinstance(value, datetime) else value
