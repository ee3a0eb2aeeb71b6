"""Live traffic of the shop: many small transactions, some large ones, every kind of change.

In: a connection string. Out: transactions at a pace, counted. Runs in threads of its own until it
is told to stop, and ends between two transactions.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import sql

Cursor = psycopg.Cursor[tuple[object, ...]]


class Rollback(Exception):
    """Ends a transaction that the shop changed its mind about."""


def place_order(cursor: Cursor, chance: random.Random) -> None:
    """An order with its items, the customer's balance, an event: one transaction."""
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
    """Deletes an order; its items and payments go with it."""
    cursor.execute(
        "DELETE FROM orders WHERE id = (SELECT id FROM orders WHERE customer_id = %s LIMIT 1)",
        (chance.randint(1, 20_000),),
    )


def change_price(cursor: Cursor, chance: random.Random) -> None:
    """An update that leaves the long columns alone: they are not sent."""
    cursor.execute(
        "UPDATE products SET price = price + 0.01, updated_at = now() WHERE sku = %s",
        (_sku(chance),),
    )


def change_picture(cursor: Cursor, chance: random.Random) -> None:
    """A new value for one long column, the other one stays."""
    cursor.execute(
        "UPDATE products SET picture = %s WHERE sku = %s", (chance.randbytes(4000), _sku(chance))
    )


def rename_product(cursor: Cursor, chance: random.Random) -> None:
    """A change of the key, with long columns that are not sent, and of rows that refer to it."""
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
    """Equal rows come and go in a table without a key."""
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
    """One large transaction."""
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
    """Work that nobody may ever see."""
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
"""What happens, and how often in relation to each other."""


@dataclass
class Counts:
    """What the traffic has done so far; written by its threads, read by the view."""

    transactions: int = 0


class Traffic:
    """Threads that run transactions at a pace until ``stop``."""

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
        """Ends every thread after its current transaction; raises what one of them failed with."""
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
                    # A pace that slowness of the machine does not pile up.
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
    """Rows that PostgreSQL has inserted, updated and deleted in user tables so far."""
    query = sql.SQL(
        "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint"
        " FROM pg_catalog.pg_stat_user_tables"
    )
    row = connection.execute(query).fetchone()
    return int(str(row[0])) if row else 0


def _sku(chance: random.Random) -> str:
    return f"SKU-{chance.randint(1, 2_000):06d}"
