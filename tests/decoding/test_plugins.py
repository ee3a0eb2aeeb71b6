"""The bundled plugins without a server: both ways of test_decoding, wal2json, arrow."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.values import BARE, ITEM, TWO_PHASE_SLOT, inserts, texts, transaction, written
from penstock.attribute import Attribute
from penstock.decoding import (
    Action,
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    MemoryLimits,
    MessageChange,
    OutputPlugin,
    OutputReader,
    RelationData,
    RowBatch,
    Transaction,
    TransactionKind,
    TruncateChange,
    TupleColumn,
    TupleColumns,
    find_plugin,
)
from penstock.decoding.plugins.test_decoding import TestDecoding
from penstock.decoding.plugins.wal2json import Wal2Json, read_options
from penstock.decoding.publication_rules import AsPublished, PublishedRelation
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder
from penstock.protocol.answers import Notice
from penstock.relation import Relation, ReplicaIdentity

_TYPES = (16, 20, 21, 23, 25, 26, 700, 701, 1043, 1082, 1184, 1560, 1562, 1700, 2950, 3802, 1007)
_TEXTS = st.sampled_from(["t", "f", "1", "-2.50", "NaN", "it's", "", "a\\b", "''", "é\n", "null"])


class RowByRow(TestDecoding):
    """The plugin without its columnar callbacks."""

    change_batch = OutputPlugin.change_batch
    stream_change_batch = OutputPlugin.stream_change_batch


@st.composite
def batches(draw: st.DrawFn) -> RowBatch:
    oids = draw(st.lists(st.sampled_from(_TYPES), min_size=1, max_size=4))
    names = draw(
        st.lists(
            st.sampled_from(["a", "B", "select", 'q"', "ü", "a b", "_x1"]),
            min_size=len(oids),
            max_size=len(oids),
            unique=True,
        )
    )
    attributes = tuple(
        Attribute(n, oid, key=draw(st.booleans())) for n, oid in zip(names, oids, strict=True)
    )
    relation = RelationData.of(Relation(1, "Sch", "t", ReplicaIdentity.DEFAULT, attributes))
    rows = draw(st.integers(8, 12))
    action = draw(st.sampled_from(Action))

    def tuples(old: bool) -> TupleColumns:
        columns: list[TupleColumn | None] = []
        for attribute in attributes:
            cells = draw(st.lists(st.none() | _TEXTS, min_size=rows, max_size=rows))
            mask = np.array(
                [c is None and not old and draw(st.booleans()) for c in cells], dtype=bool
            )
            sent = attribute.key or not old
            text = pa.array(cells, pa.string())
            columns.append(TupleColumn(text=text, unchanged=mask) if sent else None)
        return TupleColumns(relation, columns, rows)

    new = None if action is Action.DELETE else tuples(False)
    has_old = action is not Action.INSERT and draw(st.booleans())
    each = np.arange(100, 100 + rows, dtype=np.uint64)
    lsns = Lsn(100) if draw(st.booleans()) else each  # the lake has one LSN, a server has many
    return RowBatch(relation, action, new, tuples(True) if has_old else None, lsns, rows=rows)


@given(st.lists(batches(), min_size=1, max_size=2), st.booleans(), st.booleans())
def test_columns_and_rows_give_the_same(changes: list[RowBatch], skip: bool, stream: bool) -> None:
    options = [("skip-empty-xacts", str(skip)), ("stream-changes", str(stream))]
    item = transaction(*changes, streamed=stream)
    got = written(TestDecoding(), [item], options=options)
    assert got == written(RowByRow(), [item], options=options)
    assert len(got) == sum(map(len, changes)) + (3 if stream else 2)


class JsonRowByRow(Wal2Json):
    """The plugin without its columnar callback."""

    change_batch = OutputPlugin.change_batch


_JSON: tuple[list[tuple[str, str]], ...] = (
    [("format-version", "2")],
    [("format-version", "2"), ("include-lsn", "1"), ("include-pk", "1"), ("actions", "update")],
    [("include-not-null", "1"), ("pretty-print", "1"), ("numeric-data-types-as-string", "1")],
    [("write-in-chunks", "1"), ("pretty-print", "1"), ("include-xids", "1")],
    [("filter-tables", "Sch.t")],
    [],
)


@given(st.lists(batches(), min_size=1, max_size=2), st.sampled_from(_JSON))
def test_json_of_columns_and_of_rows(
    changes: list[RowBatch], options: list[tuple[str, str]]
) -> None:
    reader = OutputReader(warn=lambda notice: None)
    got = written(Wal2Json(), [transaction(*changes)], options=options, reader=reader)
    wanted = written(JsonRowByRow(), [transaction(*changes)], options=options, reader=reader)
    assert got == wanted


def test_rows_of_many_columns_are_divided() -> None:
    """Short values become long output, with the columns' names."""
    attributes = tuple(Attribute(f"column_{number}", 16) for number in range(350))
    relation = RelationData.of(Relation(1, "public", "wide", ReplicaIdentity.DEFAULT, attributes))
    values = pa.repeat(pa.scalar(True), 3000)
    new = TupleColumns.typed(relation, [values] * len(attributes), len(values))
    batch = RowBatch(relation, Action.INSERT, new, None, Lsn(1))
    limits, options = MemoryLimits(callback=20 << 20), [("format-version", "2")]
    slot = DecodedSlot("wide", "wal2json")
    with LogicalDecodingContext(Wal2Json(), slot, options, limits=limits) as ctx:
        outputs = list(ctx.process([transaction(batch)]))
    assert sum(output.data.nbytes for output in outputs) > 40 << 20


def test_what_test_decoding_prints_of_an_update() -> None:
    new = TupleColumns.typed(
        ITEM,
        [pa.array([2], pa.int32()), pa.array([None], pa.string()), pa.array([None], pa.string())],
        1,
        {"big": np.array([True])},
    )
    old = TupleColumns.typed(ITEM, [pa.array([1], pa.int32()), None, None], 1)
    update = RowBatch(ITEM, Action.UPDATE, new, old, Lsn(1))
    delete = RowBatch(BARE, Action.DELETE, None, None, Lsn(1), rows=1)
    assert texts(TestDecoding(), [transaction(update, delete)])[1:3] == [
        "table public.item: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2"
        " name[character varying]:null big[text]:unchanged-toast-datum",
        'table public."Bare": DELETE: (no-tuple-data)',
    ]


def test_rewritten_tables_are_shown_where_they_are_wanted() -> None:
    relation = replace(BARE, rewrite_of="item")
    batch = RowBatch(relation, Action.DELETE, None, None, Lsn(1), rows=1)
    assert len(texts(TestDecoding(), [transaction(batch)])) == 2
    options = [("include-rewrites", "1")]
    shown = texts(TestDecoding(), [transaction(batch)], options=options)[1]
    assert shown == "table public.item: DELETE: (no-tuple-data)"


def test_a_gid_with_nodecode_is_left_until_its_commit() -> None:
    for gid, wanted in (
        ("it's", ["BEGIN 7", "PREPARE TRANSACTION 'it''s', txid 7"]),
        ("a\\b", ["BEGIN 7", "PREPARE TRANSACTION E'a\\\\b', txid 7"]),
        ("x_nodecode", []),
    ):
        item = transaction(kind=TransactionKind.PREPARE, gid=gid)
        assert texts(TestDecoding(), [item], slot=TWO_PHASE_SLOT) == wanted


@pytest.mark.parametrize("plugin", ["test_decoding", "wal2json", "arrow"])
def test_options_that_there_are_not(plugin: str) -> None:
    for value, shown in ((None, "(null)"), ("x", "x")):
        with pytest.raises(PenstockError) as raised:
            texts(find_plugin(plugin), [], options=[("include-default", value)])
        assert raised.value.message == f'option "include-default" = "{shown}" is unknown'
        assert raised.value.sqlstate == "22023"


def update_and_delete() -> list[RowBatch]:
    new = TupleColumns.typed(
        ITEM,
        [pa.array([1], pa.int32()), pa.array(['q"\n'], pa.string()), pa.nulls(1, pa.string())],
        1,
        {"big": np.array([True])},
    )
    old = TupleColumns.typed(ITEM, [pa.array([1], pa.int32()), None, None], 1)
    return [
        RowBatch(ITEM, Action.UPDATE, new, None, Lsn(101)),
        RowBatch(ITEM, Action.DELETE, None, old, Lsn(102)),
    ]


def as_json(items: list[Any], *options: tuple[str, str | None]) -> list[Any]:
    return [json.loads(text) for text in texts(find_plugin("wal2json"), items, options=options)]


def test_wal2json_format_1() -> None:
    message = MessageChange(True, "p", b"c", Lsn(103))
    item = transaction(inserts(1), *update_and_delete(), message)
    kinds = {"columntypes": ["integer", "character varying(30)", "text"]}
    names = {"columnnames": ["id", "name", "big"]}
    table = {"schema": "public", "table": "item"}
    key = {"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [1]}
    wanted = {
        "change": [
            {"kind": "insert", **table, **names, **kinds, "columnvalues": [1, "n'1", "b"]},
            {
                "kind": "update",
                **table,
                "columnnames": ["id", "name"],
                "columntypes": kinds["columntypes"][:2],
                "columnvalues": [1, 'q"\n'],
                "oldkeys": key,
            },
            {"kind": "delete", **table, "oldkeys": key},
            {"kind": "message", "transactional": True, "prefix": "p", "content": "c"},
        ]
    }
    assert as_json([item]) == [wanted]
    pretty = texts(find_plugin("wal2json"), [item], options=[("pretty-print", "1")])
    assert json.loads(str(pretty[0])) == wanted
    chunks = texts(find_plugin("wal2json"), [item], options=[("write-in-chunks", None)])
    assert len(chunks) == 6
    assert json.loads("".join(map(str, chunks))) == wanted
    given = [("include-xids", "1"), ("include-lsn", "1"), ("include-timestamp", "1")]
    (facts,) = as_json([item], *given, ("include-types", "0"), ("include-schemas", "0"))
    assert [*facts] == ["xid", "nextlsn", "timestamp", "change"]
    assert (facts["xid"], facts["nextlsn"]) == (7, "0/D0")
    assert [*facts["change"][0]] == ["kind", "table", "columnnames", "columnvalues"]


def test_wal2json_as_its_documentation_shows_it() -> None:
    wanted = (
        '{\n\t"change": [\n\t\t{\n\t\t\t"kind": "insert",\n\t\t\t"schema": "public",\n'
        '\t\t\t"table": "item",\n\t\t\t"columnnames": ["id", "name", "big"],\n'
        '\t\t\t"columntypes": ["integer", "character varying(30)", "text"],\n'
        '\t\t\t"columnvalues": [1, "n\'1", "b"]\n\t\t}\n\t\t,{\n\t\t\t"kind": "delete",\n'
        '\t\t\t"schema": "public",\n\t\t\t"table": "item",\n\t\t\t"oldkeys": {\n'
        '\t\t\t\t"keynames": ["id"],\n\t\t\t\t"keytypes": ["integer"],\n'
        '\t\t\t\t"keyvalues": [1]\n\t\t\t}\n\t\t}\n\t]\n}'
    )
    items = [transaction(inserts(1), update_and_delete()[1]), transaction()]
    got = texts(find_plugin("wal2json"), items, options=[("pretty-print", "1")])
    assert got == [wanted, '{\n\t"change": [\n\t]\n}']


def test_wal2json_format_2() -> None:
    truncate = TruncateChange((ITEM, BARE), Lsn(103))
    item = transaction(inserts(1), *update_and_delete(), truncate)
    got = texts(find_plugin("wal2json"), [item], options=[("format-version", "2")])
    table = '"schema":"public","table":"item"'
    identity = '"identity":[{"name":"id","type":"integer","value":1}]'
    column = (
        '{"name":"id","type":"integer","value":1},{"name":"name","type":"character varying(30)"'
    )
    assert got == [
        '{"action":"B"}',
        f'{{"action":"I",{table},"columns":[{column},"value":"n\'1"}},'
        '{"name":"big","type":"text","value":"b"}]}',
        f'{{"action":"U",{table},"columns":[{column},"value":"q\\"\\n"}}],{identity}}}',
        f'{{"action":"D",{table},{identity}}}',
        f'{{"action":"T",{table}}}',
        '{"action":"T","schema":"public","table":"Bare"}',
        '{"action":"C"}',
    ]
    only = [("format-version", "2"), ("include-transaction", "0"), ("actions", "delete,truncate")]
    some = as_json([item], *only, ("filter-tables", "*.Bare"), ("include-lsn", "1"))
    assert [(o["action"], o["lsn"]) for o in some] == [("D", "0/66"), ("T", "0/67")]
    assert as_json([item], *only, ("add-tables", "public.Ba\\re"))[0]["table"] == "Bare"


def test_wal2json_warns_of_tables_without_identity() -> None:
    warned: list[Notice] = []
    batch = RowBatch(BARE, Action.DELETE, None, None, Lsn(1), rows=1)
    options = [("format-version", "2"), ("include-transaction", "0")]
    plugin = find_plugin("wal2json")
    reader = OutputReader(warn=warned.append)
    assert texts(plugin, [transaction(batch)], options=options, reader=reader) == []
    assert [notice.message for notice in warned] == [
        'no tuple identifier for DELETE in table "public"."Bare"'
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format-version", "3", "client sent format_version=3 but we only support format 2 or low"),
        ("format-version", "x", 'could not parse value "x" for parameter "format-version"'),
        ("pretty-print", "x", 'could not parse value "x" for parameter "pretty-print"'),
        ("add-tables", "a", 'could not parse value "a" for parameter "add-tables"'),
        ("actions", "merge", 'could not parse value "merge" for parameter "actions"'),
        ("actions", "insert,", 'could not parse value "insert," for parameter "actions"'),
        ("include-unchanged-toast", "1", 'parameter "include-unchanged-toast" was deprecated'),
        ("include-origin", "1", 'option "include-origin" = "1" is unknown'),
    ],
)
def test_wal2json_options(name: str, value: str, message: str) -> None:
    with pytest.raises(PenstockError) as raised:
        read_options([(name, value)])
    assert raised.value.message.startswith(message)


def test_arrow() -> None:
    item = transaction(inserts(20), *update_and_delete(), TruncateChange((BARE,), Lsn(103)))
    streams = []
    for data in texts(find_plugin("arrow"), [item], options=[("include-types", None)]):
        assert isinstance(data, bytes)
        with pa.ipc.open_stream(data) as stream:
            streams.append((stream.schema, stream.read_all()))
    kinds = [schema.metadata[b"kind"].decode() for schema, _ in streams]
    assert kinds == ["begin", "change", "change", "change", "truncate", "commit"]
    schema, rows = streams[1]
    assert (schema.metadata[b"table"], schema.metadata[b"action"]) == (b"item", b"INSERT")
    assert rows["new"].type.field("name").metadata == {b"type": b"character varying(30)"}
    assert rows["new"].to_pylist()[1] == {"id": 2, "name": "n'2", "big": "b"}
    assert rows["lsn"].to_pylist() == [100] * 20
    assert streams[2][1]["unchanged"].to_pylist() == [["big"]]
    assert streams[3][1]["old"].to_pylist() == [{"id": 1}]


def test_pgoutput_says_what_it_lacks() -> None:
    options = [("proto_version", "1"), ("publication_names", "p")]
    with pytest.raises(PenstockError, match="there are no publications here") as raised:
        texts(find_plugin("pgoutput"), [transaction()], options=options)
    assert raised.value.sqlstate == "0A000"
    with pytest.raises(PenstockError, match='option "proto_version" missing'):
        texts(find_plugin("pgoutput"), [])


def pgoutput(item: Transaction, rules: type[AsPublished] = AsPublished) -> list[m.Message]:
    options = [("proto_version", "4"), ("publication_names", "p"), ("streaming", "on")]
    database = DecodedDatabase(publications=lambda names: rules(lambda oid: None))
    found = texts(find_plugin("pgoutput"), [item], options=options, database=database)
    decoder = Decoder(4)
    return [decoder.decode(bytes(data)) for data in found if isinstance(data, bytes)]


def test_pgoutput_knows_no_position_at_the_origin_while_it_streams() -> None:
    """send_repl_origin of pgoutput_stream_start: InvalidXLogRecPtr"""
    came: dict[str, Any] = {"origin": "east", "origin_lsn": Lsn(77)}
    begun = pgoutput(transaction(inserts(1), **came))
    assert begun[1] == m.Origin(Lsn(77), "east")
    streamed = pgoutput(transaction(inserts(1), streamed=True, **came))
    assert streamed[:2] == [m.StreamStart(7, True), m.Origin(Lsn(0), "east")]
    assert isinstance(streamed[-1], m.StreamCommit)


def test_a_streamed_transaction_of_which_nothing_is_left() -> None:
    assert pgoutput(transaction(streamed=True)) == []
    stream = [("stream-changes", "1")]
    got = texts(TestDecoding(), [transaction(streamed=True)], options=stream)
    assert got == ["BEGIN 7", "COMMIT 7"]


def test_truncate_of_a_partition_is_none_of_its_root() -> None:
    class AsItem(AsPublished):
        """Everything goes out under the name of ``ITEM``."""

        def published(self, relation: RelationData) -> PublishedRelation | None:
            return super().published(ITEM)

    alone, whole = TruncateChange((BARE,), Lsn(1)), TruncateChange((ITEM, BARE), Lsn(1))
    assert pgoutput(transaction(alone), rules=AsItem) == []
    sent = pgoutput(transaction(whole), rules=AsItem)
    assert [type(message) for message in sent][1:-1] == [m.RelationMessage, m.Truncate]
    assert sent[-2] == m.Truncate((ITEM.oid,))
