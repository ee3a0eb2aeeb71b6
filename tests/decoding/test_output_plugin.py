"""The interface of output plugins: which callbacks come when, and what happens when they fail."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from decoding.values import (
    BARE,
    ITEM,
    TWO_PHASE_SLOT,
    context,
    inserts,
    texts,
    transaction,
    written,
)
from penstock.decoding import (
    Action,
    Change,
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    MemoryLimits,
    MessageChange,
    OutputPlugin,
    OutputPluginOptions,
    OutputReader,
    OutputType,
    Prepared,
    ReorderBufferTXN,
    RowBatch,
    StreamAbort,
    StreamBlock,
    TransactionKind,
    TruncateChange,
    find_plugin,
)
from penstock.decoding.output_plugin import CALLBACKS
from penstock.decoding.registry import plugin_class
from penstock.errors import ConnectionFailure, InsufficientPrivilege, PenstockError
from penstock.lsn import Lsn

TWO_PHASE = [n for n in CALLBACKS if "prepare" in n and "stream" not in n]
STREAMING = [n for n in CALLBACKS if n.startswith("stream")]
RELATIONS = (ITEM, BARE)


def plugin_of(*names: str, **instead: Any) -> OutputPlugin:
    """A plugin with these callbacks, which write their names."""

    def callback(name: str) -> Any:
        def write(self: OutputPlugin, ctx: LogicalDecodingContext, *arguments: Any) -> bool:
            self.called.append(name)  # type: ignore[attr-defined]
            if name.startswith("filter") or name in ("startup", "shutdown"):
                return False
            ctx.prepare_write()
            ctx.out.append(name)
            ctx.write()
            return False

        return write

    found = {name: callback(name) for name in names} | instead | {"called": []}
    made: OutputPlugin = type("Plugin", (OutputPlugin,), found)()
    return made


BASIC = ("begin", "change", "commit")


def history() -> Iterator[Any]:
    message = MessageChange(True, "p", b"c", Lsn(104))
    truncate = TruncateChange(RELATIONS, Lsn(105))
    yield transaction(inserts(2), message, truncate)
    yield MessageChange(False, "p", b"c", Lsn(210))
    was = Prepared(Lsn(300), Lsn(308), 0)
    prepared = {"gid": "g", "final_lsn": Lsn(300), "end_lsn": Lsn(308)}
    yield transaction(inserts(1), xid=8, kind=TransactionKind.PREPARE, **prepared)
    verdict = {"gid": "g", "prepared": was, "end_lsn": Lsn(400)}
    yield transaction(inserts(1), xid=8, kind=TransactionKind.COMMIT_PREPARED, **verdict)
    yield transaction(xid=9, kind=TransactionKind.PREPARE, **prepared)
    yield transaction(xid=9, kind=TransactionKind.ROLLBACK_PREPARED, **verdict)
    yield StreamBlock(10, Lsn(410), [inserts(1, lsn=410), message, truncate])
    yield StreamAbort(10, 11, Lsn(420), 0)
    yield transaction(inserts(1), xid=10, streamed=True)
    yield transaction(inserts(1), xid=12, kind=TransactionKind.PREPARE, gid="h", streamed=True)
    yield StreamBlock(13, Lsn(500), [inserts(1, lsn=500)])
    yield StreamAbort(13, 13, Lsn(510), 0)


def test_every_callback_is_called() -> None:
    rows = [n for n in CALLBACKS if not n.endswith("_batch")]
    assert len(rows) == 21
    plugin = plugin_of(*rows)
    got = written(plugin, list(history()), slot=TWO_PHASE_SLOT)
    assert {*plugin.called} == {*rows}  # type: ignore[attr-defined]
    expected = (
        "begin change change message truncate commit message"
        " begin_prepare change prepare commit_prepared begin_prepare prepare rollback_prepared"
        " stream_start stream_change stream_message stream_truncate stream_stop stream_abort"
        " stream_start stream_change stream_stop stream_commit"
        " stream_start stream_change stream_stop stream_prepare"
        " stream_start stream_change stream_stop stream_abort"
    )
    assert " ".join(str(data) for _, _, data in got) == expected
    assert got[0] == (100, 7, "begin")
    assert got[5:7] == [(208, 7, "commit"), (210, 0, "message")]
    assert got[10] == (400, 8, "commit_prepared")
    assert got[19] == (420, 11, "stream_abort")


def test_only_what_a_plugin_has() -> None:
    plugin = plugin_of(*BASIC)
    change = "begin change change commit"
    once = "begin change commit"
    got = texts(plugin, [i for i in history() if not isinstance(i, StreamBlock | StreamAbort)])
    assert " ".join(map(str, got)) == f"{change} {once} {once}"
    with pytest.raises(PenstockError, match="block of transaction 10, which is not streamed"):
        texts(plugin_of(*BASIC), list(history()))


@pytest.mark.parametrize("missing", BASIC)
def test_required_callbacks(missing: str) -> None:
    plugin = plugin_of(*(name for name in BASIC if name != missing))
    with pytest.raises(PenstockError) as raised:
        context(plugin)
    assert raised.value.message == f"output plugins have to register a {missing} callback"
    assert raised.value.sqlstate == "XX000"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        *(
            (n, f"logical replication at prepare time requires a {n}_cb callback")
            for n in TWO_PHASE
        ),
        (
            "stream_prepare",
            "logical streaming at prepare time requires a stream_prepare_cb callback",
        ),
        *(
            (f"stream_{n}", f"logical streaming requires a stream_{n}_cb callback")
            for n in ("start", "stop", "abort", "commit", "change")
        ),
    ],
)
def test_groups_of_callbacks(missing: str, message: str) -> None:
    names = [n for n in CALLBACKS if not n.endswith("_batch") and n != missing]
    if missing == "filter_prepare":
        assert texts(plugin_of(*names), list(history()), slot=TWO_PHASE_SLOT)
        return
    with pytest.raises(PenstockError) as raised:
        texts(plugin_of(*names), list(history()), slot=TWO_PHASE_SLOT)
    assert (raised.value.message, raised.value.sqlstate) == (message, "55000")
    assert f"in the {missing} callback, associated LSN 0/" in (raised.value.context or "")


def raising(error: BaseException) -> Any:
    def callback(*arguments: Any) -> None:
        raise error

    return callback


@pytest.mark.parametrize("name", [n for n in CALLBACKS if not n.endswith("_batch")])
def test_a_callback_that_fails(name: str) -> None:
    rows = [n for n in CALLBACKS if not n.endswith("_batch")]
    plugin = plugin_of(*rows, **{name: raising(ZeroDivisionError("ours"))})
    with pytest.raises(PenstockError) as raised:
        texts(plugin, list(history()), slot=DecodedSlot("y", "x", two_phase=True))
    assert (raised.value.message, raised.value.sqlstate) == ("ZeroDivisionError: ours", "XX000")
    context = raised.value.context or ""
    assert context.startswith(f'slot "y", output plugin "x", in the {name} callback')
    without = name in ("startup", "shutdown", "filter_prepare", "filter_by_origin")
    assert ("associated LSN" in context) != without
    if name == "commit":
        assert context.endswith("callback, associated LSN 0/C8")
    assert plugin.called[-1:] == ["shutdown"] or name == "shutdown"  # type: ignore[attr-defined]


def test_errors_keep_their_fields_and_nothing_else_ends_a_node() -> None:
    own = InsufficientPrivilege("no", detail="d", context="inside")
    with pytest.raises(InsufficientPrivilege) as raised:
        texts(plugin_of(*BASIC, begin=raising(own)), [transaction()])
    assert (raised.value.detail, raised.value.sqlstate) == ("d", "42501")
    assert (raised.value.context or "").startswith('inside\nslot "s"')
    for error, message in ((SystemExit(3), "SystemExit: 3"), (MemoryError(), "out of memory")):
        with pytest.raises(PenstockError) as other:
            texts(plugin_of(*BASIC, begin=raising(error)), [transaction()])
        assert other.value.message == message
    with pytest.raises(KeyboardInterrupt):
        texts(plugin_of(*BASIC, begin=raising(KeyboardInterrupt())), [transaction()])


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise GeneratorExit


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit("g"), "GeneratorExit: g"),
        (BaseException("b"), "BaseException: b"),
        (ConnectionFailure("its own"), "its own"),
        (_Unspeakable(), "_Unspeakable"),
        (ValueError("a\0b\ud800"), "ValueError: ab?"),
    ],
)
def test_in_a_session_whatever_is_raised_is_an_error_of_the_call(
    error: BaseException, message: str
) -> None:
    """A session is no main thread, where KeyboardInterrupt is the user's."""

    def failed(plugin: OutputPlugin) -> PenstockError:
        with pytest.raises(PenstockError) as raised:
            texts(plugin, [transaction(inserts(1))])
        return raised.value

    with ThreadPoolExecutor(1) as session:
        for name in ("startup", "begin", "change", "commit", "shutdown"):
            plugin = plugin_of(*BASIC, "shutdown", **{name: raising(error)})
            found = session.submit(failed, plugin).result()
            assert not isinstance(found, ConnectionFailure)
            assert found.message == message
            assert f"in the {name} callback" in (found.context or "")


async def _async(self: OutputPlugin, *arguments: Any) -> None: ...


async def _async_generator(self: OutputPlugin, *arguments: Any) -> AsyncIterator[None]:
    yield


def _generator(self: OutputPlugin, *arguments: Any) -> Iterator[None]:
    yield


class _Awaited:
    async def __call__(self, *arguments: Any) -> None: ...


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (_generator, "is a generator function"),
        (functools.partialmethod(_generator), "is a generator function"),
        (_async, "is an async function"),
        (_async_generator, "is an async function"),
        (_Awaited(), "is an async function"),
        (3, "is not callable"),
        (lambda self: None, "does not take its arguments: too many positional arguments"),
        (lambda self, *a, more: None, "does not take its arguments: missing a required"),
    ],
)
def test_callbacks_that_could_not_do_their_work(name: str, callback: Any, message: str) -> None:
    with pytest.raises(PenstockError) as raised:
        context(plugin_of(*BASIC, **{name: callback}))
    assert raised.value.message.startswith(f"the {name} callback of the output plugin {message}")


def test_a_callback_that_returns_its_work() -> None:
    for callback, kind in ((_generator, "generator"), (_async_generator, "async_generator")):
        hidden = plugin_of(*BASIC, change=lambda *a, made=callback: made(*a))
        with pytest.raises(PenstockError, match=f"change callback .* has returned a {kind}"):
            texts(hidden, [transaction(inserts(1))])


def test_lsns_in_errors_are_padded_from_19_on() -> None:
    with pytest.raises(PenstockError, match="ValueError") as raised:
        texts(
            plugin_of(*BASIC, begin=raising(ValueError())),
            [transaction()],
            database=DecodedDatabase(19),
        )
    assert (raised.value.context or "").endswith("associated LSN 0/00000064")


def test_writes_where_none_are_accepted() -> None:
    def writes(plugin: OutputPlugin, ctx: LogicalDecodingContext, *arguments: Any) -> bool:
        ctx.prepare_write()
        return False

    def unprepared(plugin: OutputPlugin, ctx: LogicalDecodingContext, *arguments: Any) -> None:
        ctx.write()

    for name in ("startup", "shutdown", "filter_by_origin"):
        with pytest.raises(PenstockError) as raised:
            texts(plugin_of(*BASIC, **{name: writes}), [transaction()])
        message = "writes are only accepted in commit, begin and change callbacks"
        assert raised.value.message == message
    with pytest.raises(PenstockError) as raised:
        texts(plugin_of(*BASIC, begin=unprepared), [transaction()])
    message = "OutputPluginPrepareWrite needs to be called before OutputPluginWrite"
    assert raised.value.message == message
    plugin = plugin_of(*BASIC)
    with context(plugin) as ctx, pytest.raises(PenstockError, match="writes are only accepted"):
        ctx.write_batch(pa.array(["x"]))


def test_text_has_to_be_text() -> None:
    def bytes_of(raw: bytes) -> Any:
        def begin(plugin: OutputPlugin, ctx: LogicalDecodingContext, txn: Any) -> None:
            ctx.prepare_write()
            ctx.out.append(raw)
            ctx.write()
            ctx.write_batch(pa.array([raw], pa.binary()))

        return begin

    for raw in (b"\xff", b"a\0b"):
        with pytest.raises(PenstockError, match='invalid byte sequence for encoding "UTF8": 0x'):
            texts(plugin_of("change", "commit", begin=bytes_of(raw)), [transaction()])
        got = texts(
            plugin_of(*BASIC, begin=bytes_of(raw)),
            [transaction()],
            reader=OutputReader(as_bytes=True),
        )
        assert got == [raw, raw, b"commit"]


def test_memory_is_bounded() -> None:
    """By pieces between callbacks, by a limit within one."""
    piece = 1 << 16

    class Wide(OutputPlugin):
        written = 0

        def begin(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN) -> None: ...

        def commit(self, ctx: LogicalDecodingContext, txn: Any, commit_lsn: Lsn) -> None: ...

        def change(
            self, ctx: LogicalDecodingContext, txn: Any, relation: Any, change: Change
        ) -> None:
            ctx.prepare_write()
            ctx.out.append("x" * 1000)
            ctx.write()
            self.written += 1000

    plugin, taken = Wide(), 0
    with context(plugin, limits=MemoryLimits(piece=piece)) as ctx:
        for output in ctx.process([transaction(inserts(5000))]):
            taken += sum(len(data) for _, _, data in output.rows())
            assert plugin.written - taken <= piece
    assert taken == plugin.written == 5_000_000

    class Endless(Wide):
        def begin(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN) -> None:
            while True:
                super().change(ctx, txn, None, None)  # type: ignore[arg-type]

    with pytest.raises(PenstockError, match="wrote more than 1000000 bytes in one") as raised:
        texts(Endless(), [transaction()], limits=MemoryLimits(callback=1_000_000))
    assert raised.value.sqlstate == "54000"


def test_changes_are_read_when_it_is_their_turn() -> None:
    """A slow plugin holds its source back, one that is filtered is not read, and a reader who has
    enough ends the call."""
    read: list[int] = []

    def changes() -> Iterator[RowBatch]:
        for number in range(100):
            read.append(number)
            yield inserts(10)

    plugin = plugin_of(*BASIC, "shutdown")
    with context(plugin, limits=MemoryLimits(piece=1)) as ctx:
        outputs = ctx.process([transaction(), replace(transaction(), changes=changes())])
        for _ in range(5):
            next(outputs)
        assert read == [0]
        outputs.close()
    assert plugin.called[-1] == "shutdown"  # type: ignore[attr-defined]
    read.clear()
    only_local = plugin_of(*BASIC, filter_by_origin=lambda self, ctx, origin: origin is not None)
    assert texts(only_local, [replace(transaction(), changes=changes(), origin="east")]) == []
    assert read == []


def test_interrupts_come_between_callbacks() -> None:
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise PenstockError("canceling statement due to user request", sqlstate="57014")

    plugin = plugin_of(*BASIC)
    with pytest.raises(PenstockError, match="canceling") as raised:
        list(
            context(plugin, reader=OutputReader(interrupt=interrupt)).process(
                [transaction(inserts(100))]
            )
        )
    assert raised.value.context is None
    assert plugin.called == ["begin", "change", "change"]  # type: ignore[attr-defined]


def test_progress_is_told() -> None:
    told: list[tuple[int, int, bool]] = []

    def skip(plugin: OutputPlugin, ctx: LogicalDecodingContext, *arguments: Any) -> None:
        ctx.update_progress(True)

    plugin = plugin_of(*BASIC, commit=skip)
    with context(plugin) as ctx:
        ctx.tell_progress = lambda *p: told.append(p)
        list(ctx.process([transaction(inserts(1))]))
        assert told == [(100, 7, False), (208, 7, True)]
        told.clear()
        list(ctx.process([transaction(inserts(250))]))
        assert len(told) == 251  # after each change, too: a plugin may be slow


def test_what_was_prepared_before_goes_out_with_its_verdict() -> None:
    names = [n for n in CALLBACKS if "stream" not in n and not n.endswith("_batch")]
    was = Prepared(Lsn(300), Lsn(308), 5, sent=False)
    facts: dict[str, Any] = {"gid": "g", "prepared": was, "kind": TransactionKind.COMMIT_PREPARED}
    item = transaction(inserts(1), **facts)
    got = written(plugin_of(*names), [item], slot=TWO_PHASE_SLOT)
    assert [(lsn, str(data)) for lsn, _, data in got] == [
        (100, "begin_prepare"),
        (100, "change"),
        (308, "prepare"),
        (208, "commit_prepared"),
    ]
    assert texts(plugin_of(*names), [item]) == ["begin", "change", "commit"]


def test_blocks_of_a_streamed_transaction_are_bounded() -> None:
    names = [*BASIC, *(n for n in STREAMING if not n.endswith("_batch"))]
    item = transaction(inserts(100), inserts(100), inserts(100), streamed=True)
    for work_mem, blocks in ((1, 300), (1 << 20, 1)):
        got = texts(plugin_of(*names), [item], limits=MemoryLimits(work_mem=work_mem))
        assert got.count("stream_start") == got.count("stream_stop") == blocks
        assert got[-2:] == ["stream_stop", "stream_commit"]


def test_rows_without_any_tuple() -> None:
    batch = RowBatch(BARE, Action.DELETE, None, None, Lsn(100), rows=3)
    assert texts(plugin_of(*BASIC), [transaction(batch)]).count("change") == 3
    assert len(batch.slice(1, 5)) == 2


def test_plugins_by_name() -> None:
    assert find_plugin("test_decoding") is not find_plugin("test_decoding")
    with pytest.raises(PenstockError) as raised:
        find_plugin("nothing")
    message = 'could not access file "nothing": No such file or directory'
    assert (raised.value.message, raised.value.sqlstate) == (message, "58P01")
    with pytest.raises(InsufficientPrivilege, match="may not be used as an output plugin"):
        find_plugin("wal2json", ["pgoutput"])
    for name in ("pgoutput", "test_decoding", "wal2json", "arrow"):
        assert issubclass(plugin_class(name), OutputPlugin)


def test_startup_says_what_the_output_is() -> None:
    class Binary(OutputPlugin):
        def startup(
            self, ctx: LogicalDecodingContext, options: OutputPluginOptions, is_init: bool
        ) -> None:
            options.output_type = OutputType.BINARY

        def begin(self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN) -> None:
            ctx.write_batch(pa.array(["text", "é"]))

        def change_batch(
            self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN, batch: RowBatch
        ) -> None: ...

        def commit(
            self, ctx: LogicalDecodingContext, txn: ReorderBufferTXN, commit_lsn: Lsn
        ) -> None: ...

    with context(Binary()) as ctx:
        (output,) = ctx.process([transaction(inserts(1))])
        assert ctx.output_type is OutputType.BINARY
    assert output.data.type == pa.binary()
    assert [data for _, _, data in output.rows()] == [b"text", "é".encode()]
