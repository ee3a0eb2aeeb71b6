"""The world around a node changes: rewritten and renamed tables, an unmounted warehouse, restored
copies of the publisher and of the node.

In: an arena. Out: cycles of it. Where the node must stop, it says why (the report lists what it
said), the change is taken back, and everything goes on: nothing is lost and nothing doubled.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from faults.arena import SUBSCRIPTION, Arena
from penstock import failpoint

REWRITES: Final = {
    "CLUSTER": "CLUSTER {0} USING {0}_pkey",
    "VACUUM FULL": "VACUUM FULL {0}",
    "rewrite": "ALTER TABLE {0} ALTER COLUMN filler TYPE text USING filler || ''",
}
"""Statements that exchange a table's files; a snapshot alone does not protect against them."""


def rewrite_in_copy(arena: Arena, statement: str) -> None:
    """A joining table is rewritten while the node stands still between two units of its copy."""
    arena.new_cut()
    arena.node.kill9()
    arena.draw_limits()
    arena.node.start(f"{failpoint.INSIDE_COPY}:1:stop")
    name = arena.let_a_table_join()
    arena.node.wait_stopped()
    with _in_background(arena, statement.format(name)):
        arena.node.go_on()
        arena.joined(name)
    arena.catch_up()


@contextmanager
def _in_background(arena: Arena, statement: str) -> Iterator[None]:
    """Run a statement that may have to wait for the body; by then it waits or has ended."""
    with arena.connect() as connection:
        pid = connection.info.backend_pid
        failed: list[BaseException] = []

        def run() -> None:
            try:
                connection.execute(statement)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="ddl")
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
        while thread.is_alive() and not arena.value(waits, (pid,)):
            time.sleep(0.05)
        yield
        thread.join()
        assert not failed, failed


def rename_in_transaction(arena: Arena) -> None:
    """A table has another name while rows are written, and its own again when it is committed.

    PostgreSQL's subscriber stops there for ever; here REFRESH copies the table again.
    """
    name, _ = _two_late_tables(arena)
    _write_as(arena, {name: "renamed_for_a_moment"})
    arena.complaint("rename", "does not exist")
    _refresh(arena, name)


def swap_in_transaction(arena: Arena) -> None:
    """Two tables bear each other's names while rows are written to both."""
    one, other = _two_late_tables(arena)
    _write_as(arena, {one: other, other: one})
    arena.complaint("swap", "is the one that was copied as")
    _refresh(arena, one, other)


def _refresh(arena: Arena, *names: str) -> None:
    """The way on that the message names, to the letter."""
    arena.node.forgive()
    arena.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} REFRESH PUBLICATION")
    arena.enable()
    arena.catch_up()
    for name in names:
        arena.joined(name)


def _two_late_tables(arena: Arena) -> tuple[str, str]:
    arena.new_cut()
    while len(arena.bank.late) < 2:
        arena.joined(arena.let_a_table_join())
    one, other = arena.rng.sample(arena.bank.late, 2)
    arena.joined(one)
    arena.joined(other)
    return one, other


def _write_as(arena: Arena, names: dict[str, str]) -> None:
    """Rename, write a row to each table under its passing name, rename back: one transaction."""
    with arena.connect() as connection, connection.transaction():
        for name in sorted(names):
            connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        _rename(connection, names)
        for passing in names.values():
            connection.execute(
                f"INSERT INTO {passing} VALUES (nextval('ids'), 0, 'under another name')"
            )
        _rename(connection, {passing: name for name, passing in names.items()})
        for name in sorted(names):
            connection.execute("UPDATE totals SET value = value + 1 WHERE name = %s", (name,))


def _rename(connection: psycopg.Connection[object], names: dict[str, str]) -> None:
    for name in names:
        connection.execute(f"ALTER TABLE {name} RENAME TO {name}_passing")
    for name, to in names.items():
        connection.execute(f"ALTER TABLE {name}_passing RENAME TO {to}")


def unmount_warehouse(arena: Arena) -> None:
    """An empty mount point in the warehouse's place, while the node runs; then the warehouse."""
    arena.new_cut()
    warehouse = arena.node.warehouse
    away = warehouse.with_name("warehouse.away")
    warehouse.rename(away)
    warehouse.mkdir()
    arena.complaint("warehouse unmounted", "warehouse")
    made = [path for path in warehouse.rglob("*.json") if "_delta_log" in path.parts]
    assert not made, f"tables were made in an empty mount point: {made}"
    shutil.rmtree(warehouse)
    away.rename(warehouse)
    arena.enable()
    arena.catch_up()


def start_without_warehouse(arena: Arena) -> None:
    """The node is started before its warehouse is mounted: it does not start."""
    arena.new_cut()
    arena.node.kill9()
    arena.kills += 1
    warehouse = arena.node.warehouse
    away = warehouse.with_name("warehouse.away")
    warehouse.rename(away)
    warehouse.mkdir()
    arena.node.start()
    arena.complaint("start without the warehouse", "warehouse")
    assert arena.node.wait_end(60) == 1, arena.node.log_tail()
    made = [path for path in warehouse.rglob("*") if path.is_file()]
    assert not made, f"files were made in an empty mount point: {made}"
    shutil.rmtree(warehouse)
    away.rename(warehouse)
    arena.start()
    arena.catch_up()


def restore_publisher(arena: Arena) -> None:
    """The publisher is put back to a copy of an hour ago; then the right one comes back."""
    arena.new_cut()
    arena.bank.stop()
    data = arena.server.data_dir
    older, newer = data.with_name("older"), data.with_name("newer")
    arena.server.stop("fast")
    _copy(data, older)
    arena.server.start()
    arena.bank.start()
    arena.new_cut()
    arena.pause(2.0)
    arena.bank.stop()
    arena.catch_up()
    arena.server.stop("fast")
    data.rename(newer)
    older.rename(data)
    arena.server.start()
    arena.execute("UPDATE totals SET value = value WHERE name = 'checking'")
    arena.complaint("publisher restored", "of subscription .* went back to")
    arena.server.stop("fast")
    shutil.rmtree(data)
    newer.rename(data)
    arena.server.start()
    arena.bank.start()
    arena.enable()
    arena.catch_up()


def restore_node(arena: Arena) -> None:
    """The node's folder and its warehouse are put back to a copy of an hour ago."""
    arena.new_cut()
    assert arena.node.stop() == 0, arena.node.log_tail()
    folders = (arena.node.folder, arena.node.warehouse)
    for folder in folders:
        _copy(folder, folder.with_name(f"{folder.name}.older"))
    older = arena.cuts.last_lsn()
    arena.new_cut()
    arena.pause(2.0)
    arena.bank.stop()
    arena.catch_up()
    # A slot that has not moved would send everything again, and nothing would be wrong.
    arena.acknowledged(older)
    assert arena.node.stop() == 0, arena.node.log_tail()
    arena.bank.start()
    for folder in folders:
        folder.rename(folder.with_name(f"{folder.name}.newer"))
        folder.with_name(f"{folder.name}.older").rename(folder)
    arena.node.start()
    arena.complaint("node restored", "the slot of subscription")
    arena.node.close()  # with Spark's JVM, which has files in the folder
    for folder in folders:
        shutil.rmtree(folder)
        folder.with_name(f"{folder.name}.newer").rename(folder)
    arena.catch_up()


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def leave_and_come_back(arena: Arena) -> None:
    """A table leaves the subscription with its copy, and joins again, now and then while the node
    is away."""
    arena.new_cut()
    name = arena.let_a_table_join()
    arena.joined(name)
    # Between the publication's change and REFRESH the table is in the cuts and gets no changes.
    arena.bank.stop()
    arena.catch_up()
    arena.let_leave(name)
    arena.left(name)
    arena.bank.start()
    if arena.rng.random() < 0.5:
        arena.kill_somewhere()
    arena.let_join(name)
    arena.joined(name)
    arena.catch_up()


def drop_while_copying(arena: Arena) -> None:
    """A table leaves the subscription while it is copied, and joins again."""
    arena.new_cut()
    arena.node.kill9()
    arena.draw_limits()
    arena.node.start(f"{failpoint.INSIDE_COPY}:1:stop")
    name = arena.let_a_table_join()
    arena.node.wait_stopped()
    # REFRESH before the node goes on: the copy would be finished by the time that it is heard of.
    arena.let_leave(name)
    arena.node.go_on()
    arena.new_cut()
    arena.let_join(name)
    arena.joined(name)
    arena.catch_up()
