"""test_decoding equals the server's, byte for byte, with its LSNs and xids.

Two slots on one server, the one with pgoutput and the other with test_decoding; what the first one
gives is the source of ours (``pgoutput_source`` says where pgoutput tells less).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from decoding.pgoutput_source import PgoutputSource, Rows
from decoding.random_history import IDENTITIES, WITHOUT_IDENTITY, History
from faults.heavy import HEAVY, in_make_faults
from penstock.decoding import (
    Action,
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    OutputPlugin,
    RelationData,
    Tuple,
    find_plugin,
)
from penstock.decoding.plugins.test_decoding import TestDecoding
from penstock.decoding.publication_rules import AsPublished
from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.pgoutput.decoder import Decoder

pytestmark = pytest.mark.postgres

Written = tuple[Lsn, int, str]
_SETTINGS: dict[str, str | int | bool] = {
    "max_prepared_transactions": 5,
    "logical_decoding_work_mem": "64kB",
}
_EMPTY_ARE_TOLD_UNTIL = 15
_TWO_PHASE_SINCE = 15
"""As options of pgoutput."""
_SCHEMAS = (b"R", b"Y")
_TRANSACTIONS = 150 if not HEAVY else 400


class RowByRow(TestDecoding):
    """The plugin without its columnar callbacks."""

    change_batch = OutputPlugin.change_batch
    stream_change_batch = OutputPlugin.stream_change_batch


@pytest.fixture(scope="module", params=[17, *map(in_make_faults, (14, 15))])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(request.param, settings=_SETTINGS) as started:
        yield started


@pytest.fixture
def server_18() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(18, settings=_SETTINGS) as started:
        yield started


class Slots:
    """A database with both slots, and a history in it."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        name: str,
        *,
        two_phase: bool,
        plugins: Sequence[str] = ("pgoutput", "test_decoding"),
    ) -> None:
        with psycopg.connect(server.conninfo(), autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{name}"')
        self.version = server.version
        self.connection = psycopg.connect(server.conninfo(name), autocommit=True)
        self._name = name
        self._two_phase = two_phase
        self._plugins = plugins

    def begin(self, history: History) -> None:
        for statement in history.setup:
            self.connection.execute(statement)
        for plugin in self._plugins:
            self.connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, %s, false, %s)",
                (f"{self._name}_{plugin}", plugin, self._two_phase),
            )

    def run(self, transactions: Iterator[list[str]]) -> None:
        for statements in transactions:
            self.connection.execute(";".join(statements))
        # What was rolled back last is flushed by this commit, before anybody reads.
        self.connection.execute("SELECT pg_logical_emit_message(true, 'end', '')")

    def pgoutput(self, **options: str) -> list[tuple[Lsn, int, bytes]]:
        wanted = {"publication_names": "p,p_inserts", "messages": "true", **options}
        found = self._peek("pgoutput", "binary_changes", wanted)
        return [(Lsn.parse(lsn), int(xid), bytes(data)) for lsn, xid, data in found]

    def test_decoding(self, **options: str) -> list[Written]:
        wanted = {name.replace("_", "-"): value for name, value in options.items()}
        found = self._peek("test_decoding", "changes", wanted)
        return [(Lsn.parse(lsn), int(xid), data) for lsn, xid, data in found]

    def type_names(self) -> dict[int, str]:
        return dict(
            self.connection.execute(
                "SELECT oid, format_type(oid, NULL) FROM pg_type WHERE oid >= 16384"
            ).fetchall()
        )

    def close(self) -> None:
        self.connection.execute("ROLLBACK")
        self.connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        )
        self.connection.close()

    def _peek(self, plugin: str, kind: str, options: dict[str, str]) -> list[Any]:
        return self.connection.execute(
            f"SELECT lsn::text, xid::text, data FROM pg_logical_slot_peek_{kind}"
            "(%s, NULL, NULL, VARIADIC %s::text[])",
            (f"{self._name}_{plugin}", [part for pair in options.items() for part in pair]),
        ).fetchall()


def ours(
    plugin: OutputPlugin, slots: Slots, source: Sequence[Any], **options: str
) -> list[Written]:
    named = [(name.replace("_", "-"), value) for name, value in options.items()]
    with LogicalDecodingContext(
        plugin,
        DecodedSlot("s", "test_decoding", two_phase=True),
        named,
        database=DecodedDatabase(slots.version),
    ) as ctx:
        return [
            (Lsn(lsn), xid, str(data))
            for output in ctx.process(iter(source))
            for lsn, xid, data in output.rows()
        ]


def told_by_pgoutput(written: list[Written], *, skip_empty: bool) -> list[Written]:
    """Without what pgoutput does not tell. ``skip_empty``: a transaction of which nothing is left
    is none, and BEGIN stands at the first change."""
    hidden = f"table public.{WITHOUT_IDENTITY}"
    kept: list[Written] = []
    for row in written:
        text = row[2]
        if text.startswith(hidden) and (": UPDATE:" in text or ": DELETE:" in text):
            continue
        begun = skip_empty and bool(kept) and kept[-1][2].startswith("BEGIN")
        if begun and text.startswith("COMMIT"):
            kept.pop()
            continue
        if begun:
            kept[-1] = (row[0], *kept[-1][1:])
        kept.append(row)
    return kept


def same(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=False)):
        near = slice(max(0, number - 3), number + 3)
        assert mine == theirs, f"{got[near]}\nis not\n{wanted[near]}"
    assert len(got) == len(wanted)


def compare(slots: Slots, rows: Rows, wanted: list[Written], proto: int, **options: str) -> None:
    for plugin, typed in ((TestDecoding(), False), (RowByRow(), False), (TestDecoding(), True)):
        source = PgoutputSource(Decoder(proto), slots.type_names(), typed=typed)
        got = ours(plugin, slots, list(source.items(rows)), **options)
        same(got, wanted)


def test_random_transactions(server: EmbeddedPostgres) -> None:
    slots = Slots(server, "random", two_phase=False)
    try:
        history = History(17 + HEAVY)
        slots.begin(history)
        slots.run(history.transactions(_TRANSACTIONS))
        options = {"skip_empty_xacts": "1", "include_timestamp": "1"}
        wanted = told_by_pgoutput(slots.test_decoding(**options), skip_empty=True)
        assert len(wanted) > 2_000
        compare(slots, slots.pgoutput(proto_version="1"), wanted, 1, **options)
        if server.version < _EMPTY_ARE_TOLD_UNTIL:
            options = {"include_xids": "false"}
            wanted = told_by_pgoutput(slots.test_decoding(**options), skip_empty=False)
            compare(slots, slots.pgoutput(proto_version="1"), wanted, 1, **options)
    finally:
        slots.close()


def test_prepared_and_streamed_transactions(server: EmbeddedPostgres) -> None:
    two_phase = server.version >= _TWO_PHASE_SINCE
    slots = Slots(server, "streamed", two_phase=two_phase)
    try:
        history = History(5 + HEAVY, identities=IDENTITIES[:3])
        slots.begin(history)
        count = _TRANSACTIONS // 3
        slots.run(history.warm())
        slots.run(history.transactions(count, prepare=two_phase, ddl=False))
        slots.run(history.transactions(count, prepare=two_phase, undo=False))
        prepared = {"two_phase": "on"} if two_phase else {}
        proto = 3 if two_phase else 2
        options = {"skip_empty_xacts": "1", "stream_changes": "1", "include_timestamp": "on"}
        rows = slots.pgoutput(proto_version=str(proto), streaming="on", **prepared)
        wanted = slots.test_decoding(**options)
        kinds = {text.split(" TXN")[0] for _, _, text in wanted if " TXN" in text}
        assert "committing streamed transaction" in kinds
        assert "aborting streamed (sub)transaction" in kinds
        compare(slots, rows, wanted, proto, **options)
        slots.run(history.warm())
        slots.run(history.transactions(count, prepare=two_phase, nodecode=True, ddl=False))
        options = {"skip_empty_xacts": "1"}
        rows = slots.pgoutput(proto_version=str(proto), **prepared)
        compare(slots, rows, slots.test_decoding(**options), proto, **options)
    finally:
        slots.close()


class EvenKeys(AsPublished):
    """The row filter ``id % 2 = 0``."""

    def matches(self, relation: RelationData, action: Action, row: Tuple) -> bool:
        return int(str(row.text(0))) % 2 == 0


def pgoutput_again(
    slots: Slots,
    rows: Rows,
    proto: int,
    options: dict[str, str],
    rules: type[AsPublished] = AsPublished,
) -> list[Any]:
    """What our pgoutput makes of what the server's has made."""
    types = slots.connection.execute(
        "SELECT t.oid, nspname, coalesce(b.typname, t.typname) FROM pg_type t"
        " LEFT JOIN pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd'"
        " JOIN pg_namespace n ON n.oid = coalesce(b.typnamespace, t.typnamespace)"
        " WHERE t.oid >= 10000"
    ).fetchall()
    names = {oid: (schema, name) for oid, schema, name in types}
    parallel = options.get("streaming") == "parallel"
    source = PgoutputSource(Decoder(proto, parallel=parallel), slots.type_names())
    with LogicalDecodingContext(
        find_plugin("pgoutput"),
        DecodedSlot("s", "pgoutput", two_phase=True),
        [("publication_names", "p"), ("messages", "true"), *options.items()],
        database=DecodedDatabase(slots.version, lambda _: rules(names.get)),
    ) as ctx:
        outputs = list(ctx.process(list(source.items(rows))))
    return [(Lsn(lsn), xid, data) for output in outputs for lsn, xid, data in output.rows()]


def without_schemas(rows: Rows) -> list[Any]:
    """The server tells of a relation again when its caches have been invalidated."""
    return [row for row in rows if row[2][:1] not in _SCHEMAS]


@pytest.mark.parametrize("version", [18, *map(in_make_faults, (14, 15, 16, 17))])
def test_pgoutput_again(version: int) -> None:
    two_phase = version >= _TWO_PHASE_SINCE
    proto = {14: 2, 15: 3}.get(version, 4)
    streaming = "parallel" if proto == 4 else "on"
    with EmbeddedPostgres(version, settings=_SETTINGS) as server:
        slots = Slots(server, "again", two_phase=two_phase, plugins=("pgoutput",))
        try:
            history = History(3 + HEAVY, without="xml")  # 16 and 18 here have no libxml
            slots.begin(history)
            slots.run(history.transactions(_TRANSACTIONS // 2, prepare=two_phase))
            options = {"proto_version": str(proto), "streaming": streaming}
            options |= {"two_phase": "on"} if two_phase else {}
            # A slot with two-phase sends prepared transactions whatever the client says.
            plain = {"proto_version": str(3 if two_phase else 1)}
            for given in (plain, options):
                rows = slots.pgoutput(**given)
                got = pgoutput_again(slots, rows, int(given["proto_version"]), given)
                wanted = without_schemas(rows)
                same(without_schemas(got), wanted)
                if given is plain:  # in blocks they begin with an xid, the first that needs them
                    schemas = {row[2] for row in rows if row[2][:1] in _SCHEMAS}
                    assert {row[2] for row in got if row[2][:1] in _SCHEMAS} == schemas
        finally:
            slots.close()


_FILTERED = """
CREATE TABLE whole (id int, n int, big text);
ALTER TABLE whole REPLICA IDENTITY FULL, ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyed (id int PRIMARY KEY, n int, big text);
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR TABLE whole, keyed;
CREATE PUBLICATION p_even FOR TABLE whole WHERE (id % 2 = 0), keyed WHERE (id % 2 = 0)
"""


def test_pgoutput_filters_rows_as_the_server_does(server_18: EmbeddedPostgres) -> None:
    """An UPDATE becomes an INSERT or a DELETE, with what is stored out of line."""
    slots = Slots(server_18, "filtered", two_phase=False, plugins=())
    try:
        run = slots.connection.execute
        for statement in _FILTERED.split(";"):
            run(statement)
        run("SELECT pg_create_logical_replication_slot('filtered_pgoutput', 'pgoutput')")
        for table in ("whole", "keyed"):
            big = "repeat(md5(g::text), 200)"
            run(f"INSERT INTO {table} SELECT g * 1000, g, {big} FROM generate_series(1, 9) g")
            run(f"INSERT INTO {table} SELECT g * 1000 + 301, g, {big} FROM generate_series(1, 9) g")
            run(f"INSERT INTO {table} SELECT g * 1000 + 603, g, NULL FROM generate_series(1, 9) g")
            for change in ("id = id + 5", "n = n + 1", "id = id + 2", "id = id + 5, big = 'x'"):
                run(f"UPDATE {table} SET {change} WHERE n % 3 <> 2")
            run(f"DELETE FROM {table} WHERE n > 4")
        rows = slots.pgoutput(proto_version="1", publication_names="p")
        wanted = slots.pgoutput(proto_version="1", publication_names="p_even")
        got = pgoutput_again(slots, rows, 1, {"proto_version": "1"}, EvenKeys)
        same(without_schemas(got), without_schemas(wanted))
        assert {row[2][:1] for row in wanted} >= {b"I", b"U", b"D"} and len(wanted) < len(rows)
    finally:
        slots.close()


def test_errors_tell_the_callback(server: EmbeddedPostgres) -> None:
    slots = Slots(server, "errors", two_phase=False)
    try:
        slots.begin(History(1, tables=4, identities=IDENTITIES[:3]))
        with pytest.raises(psycopg.Error) as told:
            slots.test_decoding(wrong="1")
        with pytest.raises(PenstockError) as raised:
            ours(TestDecoding(), slots, [], wrong="1")
        same_error(raised.value, told.value)
        with pytest.raises(psycopg.Error) as told:
            slots.test_decoding(include_xids="maybe")
        with pytest.raises(PenstockError) as raised:
            ours(TestDecoding(), slots, [], include_xids="maybe")
        same_error(raised.value, told.value)
        slots.connection.execute('INSERT INTO public."default 0" (id, k2) VALUES (1, 1)')
        rows = slots.pgoutput(proto_version="1")
        with pytest.raises(psycopg.Error) as told:
            slots.pgoutput(proto_version="1", publication_names="missing")
        with pytest.raises(PenstockError) as raised:
            ours(Failing(), slots, list(PgoutputSource(Decoder(1), {}).items(rows)))
        context = (raised.value.context or "").replace("test_decoding", "pgoutput")
        assert context.replace('"s"', '"errors_pgoutput"') == told.value.diag.context
    finally:
        slots.close()


class Failing(TestDecoding):
    """Fails where pgoutput does that has no such publication."""

    def change(self, *arguments: object) -> None:
        raise ValueError


def same_error(mine: PenstockError, theirs: psycopg.Error) -> None:
    assert (mine.message, mine.sqlstate) == (theirs.diag.message_primary, theirs.sqlstate)
    context = (mine.context or "").replace('"s"', '"errors_test_decoding"')
    assert context == theirs.diag.context
