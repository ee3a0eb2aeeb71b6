"""What a subscription has to follow while its node is killed: new columns, keys that somebody else
has written, and a publisher whose standby takes over.

In: an arena. Out: cycles of it.
"""

from __future__ import annotations

from typing import Final

from faults.arena import SERVER, SUBSCRIPTION, Arena
from faults.foreign import run_spark
from penstock import failpoint
from penstock.embedded import wait_until
from standby import PHYSICAL_SLOT, standby_of, synchronised

_STREAMING: Final = (
    failpoint.AFTER_RECEIVE,
    failpoint.BETWEEN_COMMITS,
    failpoint.BEFORE_CUT,
    failpoint.AFTER_CUT,
)
_EXISTS: Final = "conflict=insert_exists"


def add_column(arena: Arena) -> None:
    """A table gets a column with values in old and new rows; the node dies around it."""
    name = _joined_table(arena)
    (number,) = (arena.value("SELECT nextval('ids')"),)
    with arena.connect() as connection, connection.transaction():
        connection.execute("SET LOCAL lock_timeout = 0")
        connection.execute(f"ALTER TABLE {name} ADD COLUMN more_{number} text")
        connection.execute(f"UPDATE {name} SET more_{number} = md5(id::text) WHERE id % 100 = 7")
    _die_somewhere(arena)
    arena.execute(f"UPDATE {name} SET more_{number} = 'later' WHERE id % 500 = 8")
    arena.catch_up()


def existing_key(arena: Arena) -> None:
    """Somebody else has written a row with the key of one that the publisher inserts; the node dies
    before the subscription stops there, or after."""
    name = _joined_table(arena)
    arena.bank.stop()
    arena.catch_up()
    arena.node.kill9()
    arena.kills += 1
    key = arena.value("SELECT nextval('ids')")
    uri = arena.node.warehouse / "public" / name
    run_spark(f"INSERT INTO delta.`{uri}` (id, balance, filler) VALUES ({key}, 0, 'foreign')")
    with arena.connect() as connection, connection.transaction():
        connection.execute(f"INSERT INTO {name} VALUES ({key}, 0, 'new')")
        connection.execute("UPDATE totals SET value = value + 1 WHERE name = %s", (name,))
    arena.bank.start()
    arena.start()
    arena.complaint("existing key", _EXISTS)
    if arena.rng.random() < 0.5:
        arena.node.kill9()
        arena.kills += 1
        arena.start()
        arena.node.forgive()
    resolution = arena.rng.random() < 0.5
    if resolution:
        _set(arena, "conflict_resolution = apply_remote")
    else:
        run_spark(f"DELETE FROM delta.`{uri}` WHERE id = {key}")
    arena.enable()
    arena.catch_up()
    if resolution:
        _set(arena, "conflict_resolution = error")


def fail_over(arena: Arena) -> None:
    """The publisher dies, its standby takes over, and the node dies before, meanwhile or after."""
    arena.new_cut()
    first = arena.server
    second = arena.also(standby_of(first, dict(SERVER)))
    first.psql(f"ALTER SYSTEM SET synchronized_standby_slots = '{PHYSICAL_SLOT}'")
    first.psql("SELECT pg_reload_conf()")
    # A node that is far behind a busy publisher keeps the slot's restart_lsn back.
    arena.bank.stop()
    arena.catch_up()
    synchronised(first, second, SUBSCRIPTION, timeout=300)
    arena.bank.start()
    arena.new_cut()
    moment = arena.rng.choice(("before", "meanwhile", "after", "never"))
    if moment == "before":
        arena.kill_somewhere()
    first.kill9()
    if moment == "meanwhile":
        arena.node.kill9()
        arena.kills += 1
    second.psql("SELECT pg_promote()")
    second.psql("ALTER SYSTEM RESET synchronized_standby_slots")
    second.psql("SELECT pg_reload_conf()")
    arena.server, arena.proxy.target = second, second.port
    arena.proxy.cut()
    wait_until(lambda: not arena.value("SELECT pg_is_in_recovery()::integer"), "the promotion")
    if moment == "after":
        _die_somewhere(arena)
    arena.catch_up()


def _joined_table(arena: Arena) -> str:
    arena.new_cut()
    name = arena.rng.choice(arena.bank.late) if arena.bank.late else arena.let_a_table_join()
    arena.joined(name)
    return name


def _die_somewhere(arena: Arena) -> None:
    """At a place of the stream, or at any time."""
    if arena.rng.random() < 0.5:
        arena.kill_at(arena.rng.choice(_STREAMING))
    else:
        arena.kill_somewhere()


def _set(arena: Arena, option: str) -> None:
    arena.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} SET ({option})")
