"""The two stories that the demo tells: the shop with a crash, and the user's own database.

In: a console, a folder, a publisher. Out: whether every table was equal at the end. Each step says
what it does; whatever was started is ended, in any case.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table

from penstock.demo import compare, cuts
from penstock.demo.compare import Result
from penstock.demo.traffic import Traffic
from penstock.demo.watch import Sample, Watch
from penstock.embedded import EmbeddedPostgres, NodeProcess
from penstock.errors import ConfigurationError, PenstockError
from penstock.lsn import Lsn
from penstock.node import doctor

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
    """What both stories stand on."""

    console: Console
    node: NodeProcess
    watch: Watch
    connection: Connection
    publication: str
    slot: str

    def step(self, text: str) -> None:
        self.console.print(f"[green]✓[/green] {text}", highlight=False)


def shop(console: Console, folder: Path, *, seconds: float, per_second: float) -> bool:
    """PostgreSQL 18 with a shop, live traffic, one SIGKILL of the node; compares at the end."""
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
    """Follows a publication of the user's own for a while; drops its slot at the end."""
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
    """A slot that nobody reads would keep WAL on the user's server for ever."""
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
        if not compare.published_tables(connection, publication):
            raise ConfigurationError(
                f'publication "{publication}" does not exist or has no tables',
                hint=f"On the publisher: CREATE PUBLICATION {publication} FOR ALL TABLES;",
            )


def _unless_stopped(done: Callable[[Sample], bool]) -> Callable[[Sample], bool]:
    """``done``, but a subscription that an error has stopped ends the demo with that error."""

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
    """Half the time before and half after a SIGKILL; seconds until the next cut after the kill."""
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
    """Waits until the publisher has heard that everything up to now is durable."""
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
    cut = cuts.newest_cut(scene.node.warehouse, SUBSCRIPTION)
    at = cut.tables if cut else {}
    results = []
    with scene.console.status("comparing every row with the publisher"):
        for table in compare.published_tables(scene.connection, scene.publication):
            if table.full_name not in at:
                results.append(Result(table.full_name, -1, 0))
                continue
            uri, version = at[table.full_name]
            results.append(
                compare.compare(scene.connection, table, uri, version, limit=_EXACT_ROWS)
            )
    return results


def _compare_until_equal(scene: Scene) -> list[Result]:
    """A database in use differs by what happens between the two reads; a few tries may hit."""
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
