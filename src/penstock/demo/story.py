"""The two stories that the demo tells: the shop with a crash, and the user's own database.

Each step prints what it does. Every process that was started is ended in any case.
"""

from __future__ import annotations

import contextlib
import decimal
import hashlib
import itertools
import random
import secrets
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql
from psycopg.types.json import set_json_loads
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.embedded import EmbeddedPostgres, NodeProcess
from penstock.errors import ConfigurationError, PenstockError
from penstock.lsn import Lsn
from penstock.node import Node, doctor
from penstock.node.status import SubscriptionStatus
from penstock.relation import qualified

SUBSCRIPTION = "demo"
_COPY_SECONDS = 600.0
_OWN_COPY_SECONDS = 24 * 3600.0
_CATCH_UP_SECONDS = 300.0
_DOWN_SECONDS = 3.0
_EXACT_ROWS = 2_000_000
_ATTEMPTS = 3

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Scene:
    """The parts of both stories: a console, a node, its watch and its publisher."""

    console: Console
    node: NodeProcess
    watch: Watch
    connection: Connection
    publication: str
    slot: str

    def step(self, text: str) -> None:
        self.console.print(f"[green]✓[/green] {text}", highlight=False)


def shop(console: Console, folder: Path, *, seconds: float, per_second: float) -> bool:
    """Run PostgreSQL 18 with a shop, live traffic and one SIGKILL of the node. Tell whether all
    tables are equal at the end."""
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        server = stack.enter_context(EmbeddedPostgres(18, fsync=True, notice=console.print))
        server.psql(resources.files(__package__).joinpath("shop.sql").read_text("utf-8"))
        console.print(
            f"[green]✓[/green] PostgreSQL 18 on port {server.port}, a shop with 7 tables,"
            f" CREATE PUBLICATION shop FOR ALL TABLES ({_since(began)})",
            highlight=False,
        )
        traffic = Traffic(server.conninfo(), per_second=per_second)
        scene = stack.enter_context(
            _scene(
                console,
                folder,
                server.conninfo(),
                "shop",
                "demo",
                transactions=lambda: traffic.counts.transactions,
            )
        )
        traffic.start()
        stack.callback(traffic.stop)
        began = time.monotonic()
        _copy(scene, _COPY_SECONDS)
        scene.step(f"penstock start; all tables copied under live traffic ({_since(began)})")
        down = _live_with_a_crash(scene, seconds)
        traffic.stop()
        _catch_up(scene)
        scene.step(
            f"{traffic.counts.transactions:,} transactions in all; the shop has closed,"
            f" the node has caught up (it was away for {down:.0f} s)"
        )
        last = scene.watch.sample().cut
        scene.node.stop()
        results = _compare_once(scene)
        _show(console, results)
        equal = all(result.equal for result in results)
        if equal and last is not None:
            rows = sum(result.delta_rows for result in results)
            console.print(
                f"\n[bold green]Every table is equal[/bold green]: {rows:,} rows,"
                f" {last.count:,} cuts, 1 SIGKILL, nothing lost, nothing doubled.",
                highlight=False,
            )
        return equal


def own_database(
    console: Console, folder: Path, conninfo: str, publication: str, *, seconds: float
) -> bool:
    """Follow a publication of the user for a while, and drop the slot at the end. Tell whether all
    tables are equal."""
    _require_publisher(conninfo, publication)
    slot = f"penstock_demo_{secrets.token_hex(4)}"
    with _scene(console, folder, conninfo, publication, slot) as scene:
        began = time.monotonic()
        try:
            _copy(scene, _OWN_COPY_SECONDS)
            scene.step(f"all tables copied ({_since(began)})")
            console.print(f"  following for {seconds:.0f} s; Ctrl-C ends it now")
            with contextlib.suppress(KeyboardInterrupt):
                scene.watch.look_on(
                    "following", lambda _: False, seconds, scene.node.require_running
                )
            results = _compare_until_equal(scene)
            _show(console, results)
            equal = all(result.equal for result in results)
            if not equal:
                console.print(
                    "\nTables that are written to differ by what happens between the two reads;"
                    " in a quiet moment they would not."
                )
            return equal
        finally:
            scene.node.stop()
            _drop_slot(scene)


def _drop_slot(scene: Scene) -> None:
    """Drop the subscription: a slot without a reader would keep WAL on the user's server for
    ever."""
    try:
        scene.node.sql(f"DROP SUBSCRIPTION {SUBSCRIPTION}")
    except ConfigurationError as error:
        error.hint = f"On the publisher: SELECT pg_drop_replication_slot('{scene.slot}');"
        raise
    scene.step(f"the slot {scene.slot} on your server is dropped")


@contextlib.contextmanager
def _scene(
    console: Console,
    folder: Path,
    conninfo: str,
    publication: str,
    slot: str,
    transactions: Callable[[], int] = lambda: 0,
) -> Iterator[Scene]:
    node = NodeProcess(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(node.close)
        connection = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        connection.execute("SET timezone TO 'UTC'")
        node.init()
        statement = sql.SQL(
            "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {} WITH (slot_name = {})"
        ).format(
            sql.Identifier(SUBSCRIPTION),
            sql.Literal(conninfo),
            sql.Identifier(publication),
            sql.Literal(slot),
        )
        node.sql(statement.as_string(connection))
        watch = Watch(console, folder, SUBSCRIPTION, slot, connection, transactions)
        stack.callback(watch.close)
        scene = Scene(console, node, watch, connection, publication, slot)
        scene.step(
            f"penstock init, CREATE SUBSCRIPTION {SUBSCRIPTION} ... PUBLICATION {publication}"
        )
        node.start()
        yield scene


def _require_publisher(conninfo: str, publication: str) -> None:
    findings = [f for f in doctor.check(conninfo) if f.component.startswith("publisher")]
    for finding in findings:
        if finding.status == "fail":
            raise ConfigurationError(
                f"{finding.component}: {finding.found}, wanted {finding.wanted}",
                hint=finding.remedy,
            )
    with psycopg.connect(conninfo) as connection:
        if not published_tables(connection, publication):
            raise ConfigurationError(
                f'publication "{publication}" does not exist or has no tables',
                hint=f"On the publisher: CREATE PUBLICATION {publication} FOR ALL TABLES;",
            )


def _unless_stopped(done: Callable[[Sample], bool]) -> Callable[[Sample], bool]:
    """Return ``done`` with a check: an error that has stopped the subscription ends the demo."""

    def look(sample: Sample) -> bool:
        status = sample.status
        if status is not None and status.stopped:
            raise PenstockError(
                f"the subscription has stopped: {status.error}",
                detail=status.error_detail,
                hint=status.error_hint,
            )
        return done(sample)

    return look


def _never(_: Sample) -> bool:
    return False


def _copy(scene: Scene, seconds: float) -> None:
    ready = _unless_stopped(lambda sample: sample.ready)
    if not scene.watch.look_on("copying the tables", ready, seconds, scene.node.require_running):
        raise ConfigurationError(
            f"the tables were not copied within {seconds:.0f} s",
            hint=f"The node's log: {scene.node.log_path}",
        )


def _live_with_a_crash(scene: Scene, seconds: float) -> float:
    """Show samples, half the time before and half after a SIGKILL. Return the seconds from the kill
    to the next cut."""
    guard = scene.node.require_running
    scene.watch.look_on("live", _unless_stopped(_never), seconds / 2, guard)
    scene.node.kill9()
    killed = time.monotonic()
    before = scene.watch.sample()
    cut = before.cut.lsn if before.cut else Lsn(0)
    scene.step(f"SIGKILL of the node; the newest cut stays at {cut}, readers notice nothing")
    scene.watch.look_on("the node is dead", _never, _DOWN_SECONDS)
    scene.node.start()
    back = scene.watch.look_on(
        "the node starts again",
        _unless_stopped(lambda sample: sample.cut is not None and sample.cut.lsn > cut),
        _CATCH_UP_SECONDS,
        guard,
    )
    if not back:
        raise ConfigurationError(
            "no cut after the crash", hint=f"The node's log: {scene.node.log_path}"
        )
    down = time.monotonic() - killed
    scene.step(f"penstock start again; next cut {down:.0f} s after the kill")
    scene.watch.look_on("live", _unless_stopped(_never), seconds / 2, guard)
    return down


def _catch_up(scene: Scene) -> None:
    """Wait until the node has reported to the publisher that everything up to now is durable."""
    target = scene.watch.sample().publisher_lsn
    done = scene.watch.look_on(
        "catching up",
        _unless_stopped(
            lambda sample: sample.flushed_lsn is not None and sample.flushed_lsn >= target
        ),
        _CATCH_UP_SECONDS,
        scene.node.require_running,
    )
    if not done:
        raise ConfigurationError(
            f"the node did not reach {target} within {_CATCH_UP_SECONDS:.0f} s",
            hint=f"The node's log: {scene.node.log_path}",
        )


def _compare_once(scene: Scene) -> list[Result]:
    cut = newest_cut(scene.node.warehouse, SUBSCRIPTION)
    at = cut.tables if cut else {}
    results = []
    with scene.console.status("comparing every row with the publisher"):
        for table in published_tables(scene.connection, scene.publication):
            if table.full_name not in at:
                results.append(Result(table.full_name, -1, 0))
                continue
            uri, version = at[table.full_name]
            results.append(compare(scene.connection, table, uri, version, limit=_EXACT_ROWS))
    return results


def _compare_until_equal(scene: Scene) -> list[Result]:
    """Compare a few times: in a database in use, changes between the two reads are differences."""
    for _ in range(_ATTEMPTS):
        _catch_up(scene)
        results = _compare_once(scene)
        if all(result.equal for result in results):
            break
    return results


def _show(console: Console, results: list[Result]) -> None:
    table = Table(box=None, padding=(0, 3), header_style="dim")
    table.add_column("table", no_wrap=True)
    table.add_column("publisher", justify="right", no_wrap=True)
    table.add_column("Delta at the cut", justify="right", no_wrap=True)
    table.add_column("")
    for result in results:
        verdict = "[green]equal[/green]" if result.equal else "[red]different[/red]"
        if result.equal and result.counted_only:
            verdict = f"equal number of rows (more than {_EXACT_ROWS:,}: not compared one by one)"
        elif not result.equal:
            verdict += f": {result.missing} missing, {result.extra} too many"
        wanted = "not in the cut" if result.publisher_rows < 0 else f"{result.publisher_rows:,}"
        table.add_row(result.table, wanted, f"{result.delta_rows:,}", verdict)
    console.print()
    console.print(table)
    for result in results:
        for example in result.examples:
            console.print(f"  {result.table}: {example}", markup=False, highlight=False)


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


# Compare Delta tables at a cut with the publisher's: every row, every column, as multisets.
#
# Each side is read by a program that is not ours (libpq, delta-rs). There is one result per table,
# with examples of rows that differ. Memory is a few bytes per row. For tables beyond ``limit``
# rows, only the numbers of rows are compared.

Row = tuple[Any, ...]

_TEXT_TYPES = {"text", "character varying", "character", "name", '"char"'}
_FETCH_ROWS = 5_000
_EXAMPLES = 3


@dataclass(frozen=True)
class ComparedTable:
    """A published table. ``columns``: its column list, (): all; ``where``: its row filter."""

    schema: str
    name: str
    columns: tuple[str, ...] = ()
    where: str | None = None

    @property
    def full_name(self) -> str:
        return qualified(self.schema, self.name)


@dataclass(frozen=True)
class Result:
    """The result for a table. ``missing``: rows that only the publisher has; ``extra``: rows that
    only Delta has."""

    table: str
    publisher_rows: int
    delta_rows: int
    missing: int = 0
    extra: int = 0
    examples: tuple[str, ...] = ()
    counted_only: bool = False

    @property
    def equal(self) -> bool:
        return self.publisher_rows == self.delta_rows and not self.missing and not self.extra


def published_tables(connection: Connection, publication: str) -> list[ComparedTable]:
    """Return the tables of a publication, with their column lists and row filters."""
    # PostgreSQL 14 has neither column lists nor row filters.
    extra = ", attnames, rowfilter" if connection.info.server_version >= 150000 else ""
    query = (
        f"SELECT schemaname, tablename{extra} FROM pg_catalog.pg_publication_tables"
        " WHERE pubname = %s ORDER BY 1, 2"
    )
    rows = connection.execute(query, (publication,)).fetchall()
    return [
        ComparedTable(row[0], row[1], tuple(row[2] or ()), row[3]) if extra else ComparedTable(*row)
        for row in rows
    ]


def compare(
    connection: Connection, table: ComparedTable, uri: str, version: int, *, limit: int
) -> Result:
    """Compare one table with its Delta table at a version."""
    delta = open_at(uri, version)
    condition = sql.SQL(table.where or "true")
    name = sql.Identifier(table.schema, table.name)
    query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(name, condition)
    ((wanted,),) = connection.execute(query).fetchall()
    if wanted > limit:
        found = sum(batch.num_rows for batch in batches(delta))
        return Result(table.full_name, wanted, found, counted_only=True)
    fields = _source_fields(delta, table)
    balance: Counter[bytes] = Counter()
    rows = 0
    for row in _publisher_rows(connection, table, fields):
        balance[_digest(row)] += 1
        rows += 1
    found = 0
    for row in _delta_rows(delta, fields):
        balance[_digest(row)] -= 1
        found += 1
    differing = {digest: count for digest, count in balance.items() if count}
    return Result(
        table.full_name,
        rows,
        found,
        missing=sum(count for count in differing.values() if count > 0),
        extra=-sum(count for count in differing.values() if count < 0),
        examples=tuple(_examples(connection, table, delta, fields, differing)),
    )


@dataclass(frozen=True)
class _Field:
    """A column: its names at both ends, and its type in the lake."""

    source: str
    name: str
    type: pa.DataType


def _source_fields(delta: Any, table: ComparedTable) -> list[_Field]:
    """Return the lake table's columns that the publication still has."""
    sources = {f.name: f.metadata.get("penstock.source", f.name) for f in delta.schema().fields}
    schema = pa.schema(delta.schema().to_arrow())
    fields = [_Field(sources[f.name], f.name, f.type) for f in schema]
    return [f for f in fields if not table.columns or f.source in table.columns]


def _publisher_rows(
    connection: Connection, table: ComparedTable, fields: Iterable[_Field]
) -> Iterator[Row]:
    types = _column_types(connection, table)
    columns = [_expression(field, types.get(field.source, "")) for field in fields]
    query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(", ").join(columns),
        sql.Identifier(table.schema, table.name),
        sql.SQL(table.where or "true"),
    )
    with connection.transaction(), connection.cursor(name="penstock_demo") as cursor:
        set_json_loads(_as_text, cursor)
        cursor.itersize = _FETCH_ROWS
        cursor.execute(query)
        for row in cursor:
            yield tuple(map(_plain, row))


def _column_types(connection: Connection, table: ComparedTable) -> Mapping[str, str]:
    query = (
        "SELECT attname, pg_catalog.format_type(atttypid, NULL) FROM pg_catalog.pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    )
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    return dict(connection.execute(query, (name,)).fetchall())


def _expression(field: _Field, type_name: str) -> sql.Composable:
    """Return the SQL that reads the column: as text if the lake holds PostgreSQL's text, and real
    without rounding."""
    column = sql.Identifier(field.source)
    element = type_name.removesuffix("[]")
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        kept, dimensions = field.type.value_type, "[]"
    else:
        kept, dimensions = field.type, ""
    if _is_string(kept) and element not in _TEXT_TYPES:
        if not dimensions:
            # format() uses the type's output function; a cast to text differs, as for inet.
            output = "CASE WHEN {0} IS NOT NULL THEN pg_catalog.format('%s', {0}) END"
            return sql.SQL(output).format(column)
        return sql.SQL("{}::text[]").format(column)
    if pa.types.is_float32(kept):
        return sql.SQL("{}::float8" + dimensions).format(column)
    return column


def _is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _delta_rows(delta: Any, fields: Iterable[_Field]) -> Iterator[Row]:
    for batch in batches(delta):
        columns = [batch.column(field.name).to_pylist() for field in fields]
        for row in zip(*columns, strict=True):
            yield tuple(map(_plain, row))


def _plain(value: Any) -> Any:
    """Return a value in one form, whichever driver has read it."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value


def _as_text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode()


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _examples(
    connection: Connection,
    table: ComparedTable,
    delta: Any,
    fields: Iterable[_Field],
    differing: Mapping[bytes, int],
) -> Iterator[str]:
    if not differing:
        return
    sides = (
        ("only at the publisher", _publisher_rows(connection, table, fields), 1),
        ("only in Delta", _delta_rows(delta, fields), -1),
    )
    for side, rows, sign in sides:
        shown = 0
        for row in rows:
            if shown < _EXAMPLES and differing.get(_digest(row), 0) * sign > 0:
                yield f"{side}: {repr(row)[:200]}"
                shown += 1


# The view of the demo, about once a second: the node's status, the newest cut, the publisher's
# position, the traffic's counter. The view is a live table on a terminal, otherwise a plain line
# every few seconds. It only reads; the story decides how long it runs.

_INTERVAL = 1.0
_PLAIN_INTERVAL = 5.0
_WINDOW = 8
_STATES = {"i": "waiting", "d": "copying", "f": "copied", "s": "catching up", "r": "following"}


@dataclass(frozen=True)
class Sample:
    """The state of node, publisher and traffic at one moment."""

    at: float
    transactions: int
    status: SubscriptionStatus | None
    cut: NewestCut | None
    publisher_lsn: Lsn
    flushed_lsn: Lsn | None

    @property
    def ready(self) -> bool:
        """Tell whether every table is copied and in a cut."""
        tables = self.status.tables if self.status else ()
        return self.cut is not None and bool(tables) and all(t.state == "r" for t in tables)

    @property
    def behind(self) -> int | None:
        """The bytes of WAL between the newest cut and the publisher."""
        return None if self.cut is None else max(0, self.publisher_lsn - self.cut.lsn)


class Watch:
    """The view that takes and shows samples. ``transactions`` returns the traffic's counter."""

    def __init__(
        self,
        console: Console,
        node_folder: Path,
        subscription: str,
        slot: str,
        connection: psycopg.Connection[tuple[Any, ...]],
        transactions: Callable[[], int] = lambda: 0,
    ) -> None:
        self._console = console
        self._node = Node(node_folder)
        self._warehouse = node_folder / "warehouse"
        self._subscription = subscription
        self._slot = slot
        self._connection = connection
        self._transactions = transactions
        self._before: Sample | None = None
        self._applied: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._began = time.monotonic()

    def close(self) -> None:
        self._node.close()

    def look_on(
        self,
        headline: str,
        until: Callable[[Sample], bool],
        seconds: float,
        guard: Callable[[], None] = lambda: None,
    ) -> bool:
        """Show samples until ``until`` holds, for at most ``seconds``. Tell whether it held.
        ``guard`` is called each time and raises when waiting has become pointless.
        """
        deadline = time.monotonic() + seconds
        if not self._console.is_terminal:
            return self._look_on_plainly(headline, until, deadline, guard)
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                sample = self.sample()
                live.update(self._picture(headline, sample), refresh=True)
                if until(sample):
                    return True
                if time.monotonic() >= deadline:
                    return False
                guard()
                self._pause(sample)

    def _look_on_plainly(
        self,
        headline: str,
        until: Callable[[Sample], bool],
        deadline: float,
        guard: Callable[[], None],
    ) -> bool:
        shown = time.monotonic()
        while True:
            sample = self.sample()
            if until(sample):
                return True
            if time.monotonic() >= deadline:
                return False
            if time.monotonic() - shown >= _PLAIN_INTERVAL:
                shown = time.monotonic()
                print(f"  {headline}: {self._line(sample)}", file=sys.stdout, flush=True)
                self._before = sample
            guard()
            self._pause(sample)

    def _pause(self, sample: Sample) -> None:
        time.sleep(max(0.05, _INTERVAL - (time.monotonic() - sample.at)))

    def sample(self) -> Sample:
        ((publisher, flushed),) = self._connection.execute(
            "SELECT pg_current_wal_lsn()::text, (SELECT confirmed_flush_lsn::text"
            " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)",
            (self._slot,),
        ).fetchall()
        status = [s for s in self._node.status() if s.name == self._subscription]
        return Sample(
            at=time.monotonic(),
            transactions=self._transactions(),
            status=status[0] if status else None,
            cut=newest_cut(self._warehouse, self._subscription),
            publisher_lsn=Lsn.parse(publisher),
            flushed_lsn=Lsn.parse(flushed) if flushed else None,
        )

    # How it looks

    def _line(self, sample: Sample) -> str:
        status = sample.status
        parts = []
        if sample.transactions:
            parts.append(f"{sample.transactions:,} transactions made")
        if sample.cut is None or (status and not sample.ready):
            tables = status.tables if status else ()
            done = sum(t.state in ("s", "r") for t in tables)
            parts.append(f"{done} of {len(tables)} tables copied")
        if status:
            parts.append(f"{status.rows_applied:,} changes applied")
        if sample.cut is not None:
            parts.append(f"{sample.cut.count:,} cuts, newest {sample.cut.lsn}")
            parts.append(f"{(sample.behind or 0) / 1024:,.0f} kB behind")
        return ", ".join(parts)

    def _picture(self, headline: str, sample: Sample) -> Group:
        before = self._before
        self._before = sample
        self._applied.append((sample.at, sample.status.rows_applied if sample.status else 0))
        facts = Table.grid(padding=(0, 3))
        for label, value in self._facts(before, sample):
            facts.add_row(Text(label, style="dim"), value)
        tables = Table(box=None, padding=(0, 3), header_style="dim")
        for column in ("table", "state", "rows copied", "changes applied", "Delta version"):
            left = column in ("table", "state")
            tables.add_column(column, justify="left" if left else "right", no_wrap=True)
        for table in sample.status.tables if sample.status else ():
            version = sample.cut.tables.get(table.name, ("", ""))[1] if sample.cut else ""
            tables.add_row(
                table.name,
                _STATES.get(table.state, table.state),
                f"{table.rows_copied:,}" if table.rows_copied else "",
                f"{table.rows_applied:,}" if table.rows_applied else "",
                str(version),
            )
        elapsed = f"{time.monotonic() - self._began:5.0f} s"
        return Group(Text(f"{elapsed}  {headline}", style="bold"), Text(), facts, Text(), tables)

    def _facts(self, before: Sample | None, sample: Sample) -> list[tuple[str, str]]:
        facts = []
        if sample.transactions and before is not None:
            rate = (sample.transactions - before.transactions) / (sample.at - before.at)
            facts.append(("shop", f"{sample.transactions:,} transactions, {rate:,.0f}/s"))
        if sample.status is not None:
            facts.append(
                ("node", f"{sample.status.state}, {self._applied_per_second():,.0f} rows/s")
            )
        if sample.cut is not None:
            facts.append(("cuts", f"{sample.cut.count:,}, newest at {sample.cut.lsn}"))
            behind = f"{(sample.behind or 0) / 1024:,.0f} kB of WAL"
            facts.append(("lag", f"{behind}, {_age(sample.cut):.1f} s"))
        return facts

    def _applied_per_second(self) -> float:
        """Return the rate over the last samples, since batches come in lumps. It is never negative,
        although a new process counts from 0 again."""
        (began, before), (ended, after) = self._applied[0], self._applied[-1]
        return max(0, after - before) / (ended - began) if ended > began else 0.0


def _age(cut: NewestCut) -> float:
    """Return the seconds since the newest transaction in the cut was committed."""
    if cut.commit_time is None:
        return 0.0
    return max(0.0, (datetime.now(UTC) - cut.commit_time).total_seconds())


# Live traffic of the shop: many small transactions, some large ones, every kind of change. It runs
# in threads at a given pace, counts transactions, and when stopped ends between two of them.

Cursor = psycopg.Cursor[tuple[object, ...]]


class Rollback(Exception):
    """The rollback of a transaction about which the shop has changed its mind."""


def place_order(cursor: Cursor, chance: random.Random) -> None:
    """Place an order in one transaction: its items, the customer's balance, an event."""
    customer = chance.randint(1, 20_000)
    cursor.execute(
        "INSERT INTO orders (id, customer_id, note)"
        " SELECT gen_random_uuid(), id, nullif(%s, '') FROM customers WHERE id = %s RETURNING id",
        (chance.choice(["", "", "leave at the door", "Überraschung 🎁"]), customer),
    )
    row = cursor.fetchone()
    if row is None:
        return
    cursor.execute(
        "INSERT INTO order_items SELECT %s, row_number() OVER (), sku, 1 + %s, price,"
        " CASE WHEN price > 100 THEN 0.05 END FROM products"
        " WHERE sku IN (SELECT 'SKU-' || lpad((random(1, 2000))::text, 6, '0')"
        " FROM generate_series(1, %s))",
        (row[0], chance.randint(0, 4), chance.randint(1, 5)),
    )
    cursor.execute(
        "WITH sums AS (SELECT sum(quantity * price) AS total FROM order_items WHERE order_id = %s)"
        " UPDATE orders SET total = coalesce(sums.total, 0) FROM sums WHERE id = %s",
        (row[0], row[0]),
    )
    cursor.execute(
        "UPDATE customers SET balance = balance - 1.25, updated_at = now() WHERE id = %s",
        (customer,),
    )
    log_event(cursor, chance)


def log_event(cursor: Cursor, chance: random.Random) -> None:
    cursor.execute(
        "INSERT INTO events (session, kind, payload, peer, took)"
        " VALUES (gen_random_uuid(), 'view', jsonb_build_object('n', %s::int), '10.1.2.3', '1 ms')",
        (chance.randint(1, 10**9),),
    )


def pay(cursor: Cursor, chance: random.Random) -> None:
    cursor.execute(
        "WITH due AS (SELECT id, total FROM orders WHERE status = 'new'"
        " ORDER BY ordered_at DESC LIMIT 1 OFFSET %s),"
        " payment AS (INSERT INTO payments (order_id, amount, details)"
        ' SELECT id, total, \'{"method":  "bank"}\' FROM due)'
        " UPDATE orders SET status = 'paid' FROM due WHERE orders.id = due.id",
        (chance.randint(0, 50),),
    )


def cancel_order(cursor: Cursor, chance: random.Random) -> None:
    """Delete an order; its items and payments are deleted with it."""
    cursor.execute(
        "DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE customer_id = %s LIMIT 1)",
        (chance.randint(1, 20_000),),
    )


def change_price(cursor: Cursor, chance: random.Random) -> None:
    """Update a product without its long columns: they are not sent."""
    cursor.execute(
        "UPDATE products SET price = price + 0.01, updated_at = now() WHERE sku = %s",
        (_sku(chance),),
    )


def change_picture(cursor: Cursor, chance: random.Random) -> None:
    """Change one long column; the other is not sent."""
    cursor.execute(
        "UPDATE products SET picture = %s WHERE sku = %s", (chance.randbytes(4000), _sku(chance))
    )


def rename_product(cursor: Cursor, chance: random.Random) -> None:
    """Change a key, and rows that refer to it. The long columns are not sent."""
    cursor.execute(
        "UPDATE products SET sku = CASE WHEN sku LIKE 'SKU-%%' THEN replace(sku, 'SKU-', 'NEW-')"
        " ELSE replace(sku, 'NEW-', 'SKU-') END WHERE sku IN (%s, %s)",
        (sku := _sku(chance), sku.replace("SKU-", "NEW-")),
    )


def edit_customer(cursor: Cursor, chance: random.Random) -> None:
    cursor.execute(
        "UPDATE customers SET tags = tags || ARRAY[%s, NULL],"
        " address = jsonb_set(address, '{street}', to_jsonb(%s::text)) WHERE id = %s",
        (
            chance.choice(["vip", "", "{braces}", 'a "quoted" one']),
            f"Gata {chance.random()}",
            chance.randint(1, 20_000),
        ),
    )
    cursor.execute(
        "UPDATE customers SET tags = tags[1:3] WHERE cardinality(tags) > 8 AND id < %s",
        (chance.randint(1, 2_000),),
    )


def fill_cart(cursor: Cursor, chance: random.Random) -> None:
    """Insert and delete equal rows in a table without a key."""
    customer = chance.randint(1, 900)
    cursor.execute(
        "INSERT INTO carts VALUES (%s, %s, 1), (%s, 'SKU-000007', 1)",
        (customer, _sku(chance), customer),
    )
    cursor.execute(
        "DELETE FROM carts WHERE ctid IN (SELECT ctid FROM carts WHERE customer_id = %s LIMIT 2)",
        (chance.randint(1, 900),),
    )


def import_events(cursor: Cursor, chance: random.Random) -> None:
    """Insert many events in one large transaction."""
    cursor.execute(
        "INSERT INTO events (session, kind, payload)"
        " SELECT gen_random_uuid(), 'import', jsonb_build_object('n', n)"
        " FROM generate_series(1, %s) AS n",
        (chance.randint(1_000, 4_000),),
    )


def reprice_all(cursor: Cursor, chance: random.Random) -> None:
    cursor.execute(
        "UPDATE products SET price = round(price * %s::numeric, 2)",
        (chance.choice(["0.9", "1.1"]),),
    )


def clear_carts(cursor: Cursor, chance: random.Random) -> None:
    cursor.execute("TRUNCATE carts")


def change_mind(cursor: Cursor, chance: random.Random) -> None:
    """Change rows and roll back: nobody may see these changes."""
    cursor.execute("DELETE FROM payments WHERE id %% 100 = %s", (chance.randint(0, 99),))
    raise Rollback


Work = Callable[[Cursor, random.Random], None]

MIX: dict[Work, int] = {
    place_order: 300,
    log_event: 200,
    pay: 150,
    change_price: 100,
    fill_cart: 100,
    edit_customer: 60,
    cancel_order: 40,
    change_picture: 20,
    rename_product: 20,
    change_mind: 2,
    import_events: 2,
    reprice_all: 1,
    clear_carts: 1,
}
"""The kinds of transactions, with their relative frequencies."""


@dataclass
class Counts:
    """The traffic's counters. Its threads write them, the view reads them."""

    transactions: int = 0


class Traffic:
    """Threads that run transactions, at a given pace, until ``stop``."""

    def __init__(self, conninfo: str, *, per_second: float, threads: int = 2) -> None:
        self.counts = Counts()
        self._conninfo = conninfo
        self._pause = threads / per_second
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._seeds = itertools.count(1)
        self._threads = [
            threading.Thread(target=self._run, name=f"traffic {n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every thread after its current transaction. Raises the error of a thread that
        failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            chance = random.Random(next(self._seeds))
            with psycopg.connect(self._conninfo, autocommit=True) as connection:
                due = time.monotonic()
                while not self._stop.wait(max(0.0, due - time.monotonic())):
                    self._one(connection, chance)
                    # On a slow machine, catch up with at most one second of due transactions.
                    due = max(due + self._pause, time.monotonic() - 1.0)
        except BaseException as error:
            self._failure = error

    def _one(
        self, connection: psycopg.Connection[tuple[object, ...]], chance: random.Random
    ) -> None:
        (work,) = chance.choices(list(MIX), weights=list(MIX.values()))
        try:
            with connection.transaction(), connection.cursor() as cursor:
                work(cursor, chance)
        except (Rollback, psycopg.errors.DeadlockDetected):
            return
        with self._lock:
            self.counts.transactions += 1


def rows_written(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """Return the number of rows that PostgreSQL has inserted, updated and deleted in user tables so
    far."""
    query = sql.SQL(
        "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint"
        " FROM pg_catalog.pg_stat_user_tables"
    )
    row = connection.execute(query).fetchone()
    return int(str(row[0])) if row else 0


def _sku(chance: random.Random) -> str:
    return f"SKU-{chance.randint(1, 2_000):06d}"


# The newest cut of a subscription, and rows of a table at its version, read without Penstock: with
# delta-rs alone, as anybody can.

_NEWEST = """
SELECT lsn, commit_time, table_schema, table_name, uri, version,
       (SELECT count(DISTINCT cut_time) FROM cuts WHERE subscription = '{0}') AS cuts
FROM cuts
WHERE subscription = '{0}'
  AND cut_time = (SELECT max(cut_time) FROM cuts WHERE subscription = '{0}')
"""


@dataclass(frozen=True)
class NewestCut:
    """The newest cut. ``tables``: (uri, version) by ``schema.table``. ``count``: the number of cuts
    so far."""

    lsn: Lsn
    commit_time: datetime | None
    count: int
    tables: Mapping[str, tuple[str, int]]


def newest_cut(warehouse: Path, subscription: str) -> NewestCut | None:
    """Return the newest cut, or None while there is none."""
    uri = warehouse / "_penstock" / "cuts"
    if not DeltaTable.is_deltatable(str(uri)):
        return None
    builder = QueryBuilder().register("cuts", DeltaTable(str(uri)))
    rows = pa.table(builder.execute(_NEWEST.format(subscription)).read_all()).to_pylist()
    if not rows:
        return None
    return NewestCut(
        lsn=Lsn(rows[0]["lsn"]),
        commit_time=rows[0]["commit_time"],
        count=rows[0]["cuts"],
        tables={
            qualified(row["table_schema"], row["table_name"]): (row["uri"], row["version"])
            for row in rows
            if row["uri"] is not None
        },
    )


def open_at(uri: str, version: int) -> DeltaTable:
    return DeltaTable(uri, version=version)


def batches(table: DeltaTable) -> Iterator[pa.RecordBatch]:
    """Yield all live rows, with deletion vectors applied."""
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    for batch in found:
        yield pa.record_batch(batch)
