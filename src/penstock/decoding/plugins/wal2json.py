"""wal2json: changes as JSON, in wal2json's formats 1 and 2.

Format 1 has an object for each transaction (in pieces with ``write-in-chunks``), format 2 an object
for each row. The plugin behaves as wal2json 2.6; ``Wal2JsonOptions`` has its options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import print_timestamp
from penstock.decoding.logical import LogicalDecodingContext as Context
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions
from penstock.decoding.plugins.options import boolean, not_parsed, unknown
from penstock.decoding.relation_data import AttributeData, RelationData
from penstock.decoding.reorder_buffer import (
    Action,
    Change,
    ReorderBufferTXN,
    RowBatch,
    TruncateChange,
)
from penstock.decoding.tuple_columns import Tuple, TupleColumns, Unsent
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lsn import Lsn
from penstock.pgtypes.pg_type import BOOL, BYTEA, FLOATS, INTEGERS, NUMERIC, OID, types
from penstock.relation import ReplicaIdentity
from penstock.sqlstate import CharacterNotInRepertoire, InvalidName
from penstock.wire_rows import Column, Part, array_of, rows_of

_LETTERS: Final = {Action.INSERT: "I", Action.UPDATE: "U", Action.DELETE: "D"}
_TOO_LONG: Final = "54000"

Pairs = list[tuple[str, str]]
"""Keys, and values as JSON."""


@dataclass(slots=True)
class _TxnData:
    """The state of a transaction in format 1; ``parts`` wait to be written."""

    changes: int = 0
    size: int = 0
    parts: list[str | bytes] = field(default_factory=list)


class Wal2Json(OutputPlugin):
    """The plugin wal2json."""

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

    def change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        options, relation = self._options, batch.relation
        wanted = batch.action.lower() in options.actions
        if not wanted or not options.wants_table(relation.schema, relation.name):
            return
        whole = options.format_version == 1 and not options.write_in_chunks
        first = int(options.format_version == 1 and not _data(txn).changes)  # without a comma
        by_row = len(batch) if not _alike(batch, options) else first
        for change in islice(batch.changes(), by_row):
            ctx.move_to(change.lsn)
            self.change(ctx, txn, relation, change)
        rest = batch.slice(by_row, len(batch) - by_row)
        if not len(rest):
            return
        parts = _filled(self._template(txn, rest), rest, options)
        if whole:
            self._keep(ctx, txn, rows_of(parts, len(rest))[0].tobytes())
        else:
            ctx.write_batch(array_of(parts, len(rest)), rest.lsn)

    def _template(self, txn: ReorderBufferTXN, batch: RowBatch) -> str:
        """Return the text of a change with marks in place of its values."""
        change = next(batch.changes())
        change.new = None if batch.new is None else _Marked("n", batch.new)
        change.old = None if batch.old is None else _Marked("o", batch.old)
        if self._options.format_version == 1:
            text = self._braces(self._in_format_1(batch.relation, change), 2, ",")
            return text.removeprefix("\n") if self._options.write_in_chunks else text
        return _json_object(self._in_format_2(txn, batch.relation, change))

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        if self._options.format_version == 1 or "truncate" not in self._options.actions:
            return  # format 1 does not write TRUNCATE
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
        """Write a piece; a chunk does not begin with a newline."""
        self._put(ctx, txn, text.removeprefix("\n") if self._options.write_in_chunks else text)

    def _put(self, ctx: Context, txn: ReorderBufferTXN, text: str) -> None:
        if self._options.write_in_chunks:
            _write(ctx, text)
            return
        self._keep(ctx, txn, text)

    def _keep(self, ctx: Context, txn: ReorderBufferTXN, text: str | bytes) -> None:
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
        """Return an object; ``inline``: it follows its key."""
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
        """Return the transaction's fields that the options request. ``txn`` is None for a message
        outside of transactions; ``lsn`` is None for begin and commit."""
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
        _write(ctx, _json_object(pairs))

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


def _json_object(pairs: Pairs) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"


def _write(ctx: Context, *pieces: str | bytes) -> None:
    ctx.prepare_write()
    ctx.out += pieces
    ctx.write()


# Columns and values of wal2json's two formats.
#
# The columns of a tuple are written in the JSON of a change: as lists of names, types and values in
# format 1, as objects in format 2. Types decide whether values are numbers, booleans or strings.
# NaN and infinities, which JSON lacks, become null.

_NUMBERS: Final = INTEGERS | FLOATS | {NUMERIC, OID}
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_BYTEA_MARK: Final = "\\x"

Cell = tuple[AttributeData, str]
"""A column and its value, as JSON."""
Shown = tuple[AttributeData, str | None]
"""A column and its value as JSON, None if the value is not printed."""


def quoted(text: str) -> str:
    """Return text as escape_json quotes it."""
    return json.dumps(text, ensure_ascii=False)


def columns_of(relation: RelationData, row: Tuple, options: Wal2JsonOptions) -> list[Cell]:
    """Return all columns that were sent; an unchanged TOAST value is not sent."""
    return list(_cells(relation, row, options))


def identity_of(
    relation: RelationData, old: Tuple | None, new: Tuple | None, options: Wal2JsonOptions
) -> list[Cell]:
    """Return the replica identity's columns. They are from the new tuple if there is no old tuple,
    since the identity did not change. Format 1 leaves out columns that are NULL."""
    row = new if old is None else old
    if row is None:
        return []
    return [
        (attribute, shown)
        for attribute, shown in _cells(
            relation, row, options, without_null=options.format_version == 1
        )
        if attribute.key
    ]


def type_of(attribute: AttributeData, options: Wal2JsonOptions) -> str:
    """Return a type as format_type prints it, but in format 1 without modifiers its name in
    pg_type. A name that begins with a quote is not quoted again unless it is an array's."""
    if options.include_typmod or options.format_version > 1:
        shown = attribute.type_text
    else:
        known = types().get(attribute.type_oid)
        shown = _typname(attribute.type_name) if known is None else known.name
    return shown if shown.startswith('"') and not shown.endswith("]") else quoted(shown)


def _typname(shown: str) -> str:
    """Return a type's name in pg_type; ``shown`` is as format_type prints it."""
    element = shown.removesuffix("[]")
    (name,) = re.findall(r'("(?:[^"]|"")*"|[^".]+)$', element) or [element]
    if name.startswith('"'):
        name = name[1:-1].replace('""', '"')
    return name if element == shown else f"_{name}"


def lists(
    prefix: str, cells: list[Cell], options: Wal2JsonOptions, comma: str
) -> Iterator[tuple[str, str]]:
    """Yield keys and arrays of format 1; ``prefix`` is ``column`` or ``key``."""

    def array(of: Callable[[AttributeData], str]) -> str:
        return f"[{comma.join(of(attribute) for attribute, _ in cells)}]"

    is_column = prefix == "column"
    yield f"{prefix}names", array(lambda a: quoted(a.name))
    if options.include_types:
        yield f"{prefix}types", array(lambda a: type_of(a, options))
    if options.include_type_oids:
        yield f"{prefix}typeoids", array(lambda a: str(a.type_oid))
    if is_column and options.include_column_positions:
        yield "columnpositions", array(lambda a: str(a.position))
    if is_column and options.include_not_null:
        # wal2json collects them together with the types, so without types the list is empty.
        optionals = array(lambda a: _boolean(not a.not_null))
        yield "columnoptionals", optionals if options.include_types else "[]"
    yield f"{prefix}values", f"[{comma.join(value for _, value in cells)}]"


def objects(cells: Sequence[Shown], options: Wal2JsonOptions, *, identity: bool) -> str:
    """Return an array of objects of format 2."""
    return f"[{','.join(_object(cell, options, identity) for cell in cells)}]"


def _object(cell: Shown, options: Wal2JsonOptions, identity: bool) -> str:
    attribute, value = cell
    parts = [f'"name":{quoted(attribute.name)}']
    if options.include_types:
        parts.append(f'"type":{type_of(attribute, options)}')
    if options.include_type_oids:
        parts.append(f'"typeoid":{attribute.type_oid}')
    if value is not None:
        parts.append(f'"value":{value}')
    if options.include_not_null and not identity:
        parts.append(f'"optional":{_boolean(not attribute.not_null)}')
    if options.include_column_positions and not identity:
        parts.append(f'"position":{attribute.position}')
    return f"{{{','.join(parts)}}}"


def _cells(
    relation: RelationData, row: Tuple, options: Wal2JsonOptions, *, without_null: bool = False
) -> Iterator[Cell]:
    for index, attribute in enumerate(relation.attributes):
        text = row.text(index)
        if isinstance(text, Unsent) or (text is None and without_null):
            continue
        yield attribute, "null" if text is None else _value(attribute.type_oid, text, options)


def _value(type_oid: int, text: str, options: Wal2JsonOptions) -> str:
    if isinstance(text, _Mark):
        return text
    if type_oid in _NUMBERS:
        if options.numeric_data_types_as_string:
            return quoted(text)
        return "null" if text in _NO_NUMBERS else text
    if type_oid == BOOL:
        return _boolean(text == "t")
    if type_oid == BYTEA:
        return quoted(text.removeprefix(_BYTEA_MARK))
    return quoted(text)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


# Many rows at once: all changes of a batch have one text but for their values.
#
# The text is made for one row whose values are marks; then the columns' values, as JSON, take the
# place of the marks in every row.

_MARKS: Final = re.compile("\0([no])([0-9]+)\0")
_ESCAPED: Final = r'["\\\x00-\x1f]'


class _Mark(str):
    """A mark in place of a value. It has NULs, which no text of PostgreSQL has."""


class _Marked(Tuple):
    """A row of marks. ``side``: n for new rows, o for old ones."""

    def __init__(self, side: str, columns: TupleColumns) -> None:
        super().__init__(columns, 0)
        self._side = side

    def text(self, index: int) -> str | Unsent | None:
        if self._columns.columns[index] is None:
            return Unsent.NOT_SENT
        return _Mark(f"\0{self._side}{index}\0")


def _alike(batch: RowBatch, options: Wal2JsonOptions) -> bool:
    """Tell whether the texts of all rows differ only in values: no row lacks a column that another
    one has."""
    if batch.action is not Action.INSERT and not _has_identity(batch.relation):
        return False
    if options.include_lsn and not isinstance(batch.lsn, Lsn):
        return False
    sides = [side for side in (batch.new, batch.old) if side is not None]
    columns = [column for side in sides for column in side.columns if column is not None]
    if any(column.unchanged is not None for column in columns):
        return False
    if batch.action is Action.INSERT or options.format_version > 1 or not sides:
        return bool(sides)
    identity = zip(batch.relation.attributes, sides[-1].columns, strict=True)
    keys = [column for attribute, column in identity if attribute.key and column is not None]
    return not any(column.text.null_count for column in keys)


def _filled(template: str, batch: RowBatch, options: Wal2JsonOptions) -> list[Part]:
    """Return the parts of the rows: the template's text, and columns in place of its marks."""
    pieces = _MARKS.split(template)
    parts: list[Part] = [pieces[0].encode()]
    for side, index, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        columns = batch.new if side == "n" else batch.old
        assert columns is not None
        column = columns.columns[int(index)]
        assert column is not None
        type_oid = batch.relation.attributes[int(index)].type_oid
        cells = _values(type_oid, column.text, options).cast(pa.binary())
        parts += [Column(cells, null=b"null"), text.encode()]
    return parts


def _values(type_oid: int, text: pa.Array, options: Wal2JsonOptions) -> pa.Array:
    """Do what ``_value`` does, for a column."""
    if type_oid == BOOL:
        return pc.if_else(pc.equal(text, "t"), "true", "false")
    if type_oid in _NUMBERS and not options.numeric_data_types_as_string:
        odd = pc.is_in(text, pa.array(_NO_NUMBERS))
        return pc.if_else(odd, None, text) if pc.any(odd).as_py() else text
    if type_oid == BYTEA:
        text = pc.utf8_slice_codeunits(text, len(_BYTEA_MARK))
    if pc.any(pc.match_substring_regex(text, _ESCAPED)).as_py():
        return pa.array([None if t is None else quoted(t) for t in text.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', text, '"', "")


# The options of wal2json, and the tables, actions and messages that they let pass.
#
# Parsing returns frozen values, or raises wal2json's errors (22023, 42602, 0A000).

_NEWEST_FORMAT: Final = 2
_FLAGS: Final = {
    name.replace("_", "-"): name
    for name in (
        *("include_xids", "include_timestamp", "include_schemas", "include_types"),
        *("include_typmod", "include_type_oids", "include_column_positions", "include_not_null"),
        *("include_pk", "include_lsn", "include_transaction", "pretty_print", "write_in_chunks"),
        "numeric_data_types_as_string",
    )
}
_ACTIONS: Final = frozenset({"insert", "update", "delete", "truncate"})
_SPACE: Final = " \t\n\r\v\f"
_ITEM: Final = r"(?:\\.|[^\\,\s])+"
_FLAGS_OF_LISTS: Final = re.ASCII | re.DOTALL
_T = TypeVar("_T")

TablePattern = tuple[str | None, str | None]
"""A schema and a table; None stands for all."""


@dataclass(frozen=True, slots=True)
class Wal2JsonOptions:
    """The options, with wal2json's defaults; ``actions`` are those that are sent."""

    format_version: int = 1
    include_xids: bool = False
    include_timestamp: bool = False
    include_schemas: bool = True
    include_types: bool = True
    include_typmod: bool = True
    include_type_oids: bool = False
    include_column_positions: bool = False
    include_not_null: bool = False
    include_pk: bool = False
    include_lsn: bool = False
    include_transaction: bool = True
    numeric_data_types_as_string: bool = False
    pretty_print: bool = False
    write_in_chunks: bool = False
    actions: frozenset[str] = _ACTIONS
    add_tables: tuple[TablePattern, ...] | None = None
    filter_tables: tuple[TablePattern, ...] = ()
    add_msg_prefixes: tuple[str, ...] = ()
    filter_msg_prefixes: tuple[str, ...] = ()

    def wants_table(self, schema: str, table: str) -> bool:
        """Tell whether a table is sent: by ``filter-tables`` first, then by ``add-tables``."""
        if any(_matches(pattern, schema, table) for pattern in self.filter_tables):
            return False
        added = self.add_tables
        return added is None or any(_matches(pattern, schema, table) for pattern in added)

    def wants_message(self, prefix: str) -> bool:
        """Tell whether a message is sent: by ``filter-msg-prefixes`` first, then by
        ``add-msg-prefixes``."""
        if prefix in self.filter_msg_prefixes:
            return False
        return not self.add_msg_prefixes or prefix in self.add_msg_prefixes


def read_options(options: Sequence[tuple[str, str | None]]) -> Wal2JsonOptions:
    """Read options in their order. Raises wal2json's errors for an invalid value, and
    InvalidParameterValue for an option that is not supported here or unknown to wal2json."""
    read = Wal2JsonOptions()
    for name, value in options:
        if name in _FLAGS:
            read = replace(read, **{_FLAGS[name]: boolean(name, value)})  # type: ignore[arg-type]
            continue
        match name:
            case "format-version":
                read = replace(read, format_version=_format_version(name, value))
            case "actions" if value is not None:
                read = replace(read, actions=_actions(name, value))
            case "add-tables":
                read = replace(read, add_tables=_tables(name, value or ""))
            case "filter-tables":
                read = replace(read, filter_tables=_more(read.filter_tables, name, value, _tables))
            case "add-msg-prefixes":
                read = replace(
                    read, add_msg_prefixes=_more(read.add_msg_prefixes, name, value, _items)
                )
            case "filter-msg-prefixes":
                found = _more(read.filter_msg_prefixes, name, value, _items)
                read = replace(read, filter_msg_prefixes=found)
            case "actions":
                continue
            case "include-unchanged-toast":
                raise InvalidName(f'parameter "{name}" was deprecated')
            case _:
                raise unknown(name, value)
    return read


def _format_version(name: str, value: str | None) -> int:
    """Return the format's version, the newest without a value."""
    if value is None:
        return _NEWEST_FORMAT
    if not re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value, re.ASCII):
        raise not_parsed(name, value)
    version = int(value)
    if version > _NEWEST_FORMAT:
        raise FeatureNotSupported(
            f"client sent format_version={version} but we only support format {_NEWEST_FORMAT}"
            " or lower"
        )
    if version < 1:
        raise FeatureNotSupported(
            f"client sent format_version={version} but we only support format 1 or higher"
        )
    return version


def _actions(name: str, value: str) -> frozenset[str]:
    """Return the actions of a list; if it is empty, only messages are sent."""
    wanted = _items(name, value)
    for action in wanted:
        if action not in _ACTIONS:
            raise not_parsed(name, action)
    return frozenset(wanted)


def _more(
    before: tuple[_T, ...],
    name: str,
    value: str | None,
    read: Callable[[str, str], tuple[_T, ...]],
) -> tuple[_T, ...]:
    """Append a repeated list to the list before it; without a value, empty the list."""
    return () if value is None else before + read(name, value)


def _tables(name: str, value: str) -> tuple[TablePattern, ...]:
    """Return the tables of a list; all after the first dot is the table's name."""
    found: list[TablePattern] = []
    for item in _items(name, value):
        parts = re.fullmatch(r"((?:\\.|[^\\.])*)\.(.*)", item, re.DOTALL)
        if parts is None:
            raise _no_list(name, value)
        found.append((_name(parts[1]), _name(parts[2])))
    return tuple(found)


def _name(text: str) -> str | None:
    return None if text == "*" else re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _items(name: str, value: str) -> tuple[str, ...]:
    """split_string_to_list: split at commas and strip the white space around items. A backslash
    escapes a comma or a space, and is kept."""
    if not value.strip(_SPACE):
        return ()
    if not re.fullmatch(rf"\s*{_ITEM}(\s*,\s*{_ITEM})*\s*", value, _FLAGS_OF_LISTS):
        raise _no_list(name, value)
    return tuple(re.findall(_ITEM, value, _FLAGS_OF_LISTS))


def _no_list(name: str, value: str) -> InvalidName:
    return InvalidName(f'could not parse value "{value}" for parameter "{name}"')


def _matches(pattern: TablePattern, schema: str, table: str) -> bool:
    return pattern[0] in (None, schema) and pattern[1] in (None, table)
