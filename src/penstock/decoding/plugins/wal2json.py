"""wal2json: changes as JSON, in wal2json's formats 1 and 2.

In: transactions. Out: in format 1 an object for each transaction (``write-in-chunks``: in pieces),
in format 2 one for each row. It follows what wal2json 2.6 does; the file of its options says which
there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.civil import print_timestamp
from penstock.decoding.logical import LogicalDecodingContext as Context
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions
from penstock.decoding.plugins.wal2json_columns import (
    columns_of,
    identity_of,
    lists,
    objects,
    quoted,
    type_of,
)
from penstock.decoding.plugins.wal2json_options import Wal2JsonOptions, read_options
from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import Action, Change, ReorderBufferTXN, TruncateChange
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.relation import ReplicaIdentity
from penstock.sqlstate import CharacterNotInRepertoire

_LETTERS: Final = {Action.INSERT: "I", Action.UPDATE: "U", Action.DELETE: "D"}
_TOO_LONG: Final = "54000"

Pairs = list[tuple[str, str]]
"""Keys, and values as JSON."""


@dataclass(slots=True)
class _TxnData:
    """Of format 1. ``parts``: what is not written yet."""

    changes: int = 0
    size: int = 0
    parts: list[str] = field(default_factory=list)


class Wal2Json(OutputPlugin):
    """The plugin."""

    def __init__(self) -> None:
        self._options = Wal2JsonOptions()

    def startup(self, ctx: Context, options: OutputPluginOptions, is_init: bool) -> None:
        self._options = read_options(ctx.options)

    def begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        if self._options.format_version == 1:
            txn.output_plugin_private = _TxnData()
            self._put(ctx, txn, self._opening(txn))
        elif self._options.include_transaction:
            self._object(ctx, [("action", '"B"'), *self._facts(txn)])

    def commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        if self._options.format_version == 1:
            self._piece(ctx, txn, self._indented("]", 1) + self._indented("}", 0))
            if not self._options.write_in_chunks:
                _write(ctx, *_data(txn).parts)
            txn.output_plugin_private = None
        elif self._options.include_transaction:
            self._object(ctx, [("action", '"C"'), *self._facts(txn)])

    def change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        options = self._options
        wanted = change.action.lower() in options.actions
        if not wanted or not options.wants_table(relation.schema, relation.name):
            return
        if change.action is not Action.INSERT and not _has_identity(relation):
            self._not_sent(ctx, relation, change)
            return
        if options.format_version == 1:
            self._change_of_1(ctx, txn, self._in_format_1(relation, change))
        else:
            self._object(ctx, self._in_format_2(txn, relation, change))

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        if self._options.format_version == 1 or "truncate" not in self._options.actions:
            return  # format 1 has none
        for relation in relations:
            if self._options.wants_table(relation.schema, relation.name):
                self._object(ctx, self._head("T", txn, change.lsn, relation))

    def message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        if not self._options.wants_message(prefix):
            return
        said: Pairs = [
            ("transactional", "true" if transactional else "false"),
            ("prefix", quoted(prefix)),
            ("content", quoted(_text(content.partition(b"\0")[0]))),
        ]
        if self._options.format_version == 1:
            pairs = [("kind", '"message"'), *said]
            if transactional and txn is not None:
                self._change_of_1(ctx, txn, pairs)
                return
            ends = self._indented("]", 1) + self._indented("}", 0)
            _write(ctx, "{", self._key("change", "[", 1), self._braces(pairs, 2), ends)
            return
        facts = self._facts(txn if transactional else None, lsn)
        self._object(ctx, [("action", '"M"'), *facts, *said])

    # Format 1.

    def _opening(self, txn: ReorderBufferTXN) -> str:
        options, facts = self._options, []
        if options.include_xids:
            facts.append(self._key("xid", str(txn.xid), 1))
        if options.include_lsn:
            facts.append(self._key("nextlsn", f'"{txn.end_lsn}"', 1))
        if options.include_timestamp:
            facts.append(self._key("timestamp", quoted(_timestamp(txn)), 1))
        return "{" + ",".join([*facts, self._key("change", "[", 1)])

    def _change_of_1(self, ctx: Context, txn: ReorderBufferTXN, pairs: Pairs) -> None:
        data = _data(txn)
        self._piece(ctx, txn, self._braces(pairs, 2, "," if data.changes else ""))
        data.changes += 1

    def _piece(self, ctx: Context, txn: ReorderBufferTXN, text: str) -> None:
        """Chunks do not begin with the line's end."""
        self._put(ctx, txn, text.removeprefix("\n") if self._options.write_in_chunks else text)

    def _put(self, ctx: Context, txn: ReorderBufferTXN, text: str) -> None:
        if self._options.write_in_chunks:
            _write(ctx, text)
            return
        data = _data(txn)
        data.parts.append(text)
        data.size += len(text)
        if data.size > ctx.output_limit:
            raise PenstockError(
                f"the object of transaction {txn.xid} is longer than {ctx.output_limit} bytes",
                hint="Use write-in-chunks, or format-version 2.",
                sqlstate=_TOO_LONG,
            )

    def _in_format_1(self, relation: RelationData, change: Change) -> Pairs:
        options, comma = self._options, ", " if self._options.pretty_print else ","
        pairs: Pairs = [("kind", f'"{change.action.lower()}"')]
        if options.include_schemas:
            pairs.append(("schema", quoted(relation.schema)))
        pairs.append(("table", quoted(relation.name)))
        if change.new is not None:
            cells = columns_of(relation, change.new, options)
            pairs += lists("column", cells, options, comma)
        key = [a for a in relation.attributes if a.primary_key]
        if options.include_pk and key:
            names = comma.join(quoted(a.name) for a in key)
            kinds = comma.join(type_of(a, options) for a in key if options.include_types)
            inner: Pairs = [("pknames", f"[{names}]"), ("pktypes", f"[{kinds}]")]
            pairs.append(("pk", self._braces(inner, 3, inline=True)))
        if change.action is not Action.INSERT:
            identity = identity_of(relation, change.old, change.new, options)
            keys = list(lists("key", identity, options, comma))
            pairs.append(("oldkeys", self._braces(keys, 3, inline=True)))
        return pairs

    def _braces(self, pairs: Pairs, depth: int, before: str = "", *, inline: bool = False) -> str:
        """An object. ``inline``: behind its key."""
        inside = ",".join(self._key(key, value, depth + 1) for key, value in pairs)
        opening = before + "{"
        start = opening if inline else self._indented(opening, depth)
        return start + inside + self._indented("}", depth)

    def _key(self, key: str, value: str, depth: int) -> str:
        space = " " if self._options.pretty_print else ""
        return self._indented(f'"{key}":{space}{value}', depth)

    def _indented(self, text: str, depth: int) -> str:
        return "\n" + "\t" * depth + text if self._options.pretty_print else text

    # Format 2.

    def _in_format_2(self, txn: ReorderBufferTXN, relation: RelationData, change: Change) -> Pairs:
        options = self._options
        pairs = self._head(_LETTERS[change.action], txn, change.lsn, relation)
        if change.new is not None:
            cells = columns_of(relation, change.new, options)
            pairs.append(("columns", objects(cells, options, identity=False)))
        if change.action is not Action.INSERT:
            identity = identity_of(relation, change.old, change.new, options)
            pairs.append(("identity", objects(identity, options, identity=True)))
        if options.include_pk:
            key = [a for a in relation.attributes if a.primary_key]
            pairs.append(("pk", objects([(a, None) for a in key], options, identity=True)))
        return pairs

    def _head(self, action: str, txn: ReorderBufferTXN, lsn: Lsn, relation: RelationData) -> Pairs:
        pairs: Pairs = [("action", f'"{action}"'), *self._facts(txn, lsn)]
        if self._options.include_schemas:
            pairs.append(("schema", quoted(relation.schema)))
        return [*pairs, ("table", quoted(relation.name))]

    def _facts(self, txn: ReorderBufferTXN | None, lsn: Lsn | None = None) -> Pairs:
        """``txn``: None for a message outside of one; ``lsn``: None for begin and commit."""
        options, pairs = self._options, []
        if options.include_xids:
            pairs.append(("xid", "null" if txn is None else str(txn.xid)))
        if options.include_timestamp:
            pairs.append(("timestamp", "null" if txn is None else quoted(_timestamp(txn))))
        if options.include_lsn and lsn is not None:
            pairs.append(("lsn", f'"{lsn}"'))
        elif options.include_lsn and txn is not None:
            pairs += [("lsn", f'"{txn.final_lsn}"'), ("nextlsn", f'"{txn.end_lsn}"')]
        return pairs

    def _object(self, ctx: Context, pairs: Pairs) -> None:
        _write(ctx, "{", ",".join(f'"{key}":{value}' for key, value in pairs), "}")

    def _not_sent(self, ctx: Context, relation: RelationData, change: Change) -> None:
        if self._options.format_version == 1:
            ctx.warning(
                f'table "{relation.name}" without primary key or replica identity is nothing'
            )
        else:
            name = f'"{relation.schema}"."{relation.name}"'
            ctx.warning(f"no tuple identifier for {change.action} in table {name}")


def _has_identity(relation: RelationData) -> bool:
    if relation.replica_identity is ReplicaIdentity.FULL:
        return True
    return relation.replica_identity is not ReplicaIdentity.NOTHING and any(
        attribute.key for attribute in relation.attributes
    )


def _data(txn: ReorderBufferTXN) -> _TxnData:
    data = txn.output_plugin_private
    if not isinstance(data, _TxnData):
        raise TypeError("a change outside of begin and commit")
    return data


def _timestamp(txn: ReorderBufferTXN) -> str:
    return print_timestamp(txn.commit_time, zone=True)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CharacterNotInRepertoire(
            f'invalid byte sequence for encoding "UTF8": 0x{content[error.start]:02x}'
        ) from None


def _write(ctx: Context, *pieces: str) -> None:
    ctx.prepare_write()
    ctx.out += pieces
    ctx.write()
