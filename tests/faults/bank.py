"""The bank: a workload whose every transaction keeps a set of sums and counts constant.

In: a way to connect to PostgreSQL, a seed, a rate. Out: random transactions over several tables
(transfers between accounts of three kinds, inserts, deletes, key changes, large values that come,
change and stay, TRUNCATE, tables without a key, rolled back work, transactions of some thousand
rows), in threads that outlive restarts of the server. What must hold at every transaction boundary
is in ``invariants.py``.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors, sql

Connection = psycopg.Connection[Any]
Cursor = psycopg.Cursor[Any]

SCHEMA: Final = """
CREATE TABLE checking (
    id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL,
    note text, note_md5 text, changed timestamptz NOT NULL DEFAULT now());
ALTER TABLE checking ALTER COLUMN note SET STORAGE EXTERNAL;
CREATE TABLE savings (
    iban text PRIMARY KEY, balance numeric(18,2) NOT NULL,
    opened date NOT NULL DEFAULT current_date);
CREATE TABLE loans (
    branch integer, number integer, balance bigint NOT NULL, terms jsonb,
    PRIMARY KEY (branch, number));
CREATE TABLE transfers (
    id bigint PRIMARY KEY, source text NOT NULL, target text NOT NULL, amount bigint NOT NULL);
CREATE TABLE scratch (id bigint PRIMARY KEY, word text);
CREATE TABLE scratch_more (id bigint PRIMARY KEY);
CREATE TABLE journal (kind text NOT NULL, amount bigint NOT NULL);
ALTER TABLE journal REPLICA IDENTITY FULL;
CREATE TABLE totals (name text PRIMARY KEY, value bigint NOT NULL);
CREATE SEQUENCE ids START 100000;
INSERT INTO checking SELECT i, 'owner ' || i, 1000,
    CASE WHEN i % 3 = 0 THEN repeat(md5(i::text), 200) END,
    CASE WHEN i % 3 = 0 THEN md5(repeat(md5(i::text), 200)) END FROM generate_series(1, 400) i;
INSERT INTO savings SELECT 'SA' || lpad(i::text, 8, '0'), 1000 FROM generate_series(1, 300) i;
INSERT INTO loans
    SELECT i % 7, i, 1000, jsonb_build_object('rate', i) FROM generate_series(1, 300) i;
INSERT INTO totals VALUES ('checking', 400), ('savings', 300), ('loans', 300), ('transfers', 0),
    ('scratch', 0), ('scratch_more', 0), ('journal', 0), ('journal_amount', 0);
"""

TABLES: Final = (
    "checking",
    "savings",
    "loans",
    "transfers",
    "scratch",
    "scratch_more",
    "journal",
    "totals",
)
BALANCE: Final = 1_000_000
"""Of all accounts together, for ever."""

LATE_ROWS: Final = 30_000


@dataclass(frozen=True)
class Accounts:
    """A table of accounts: its key, and an expression for a new account's key from an id."""

    table: str
    key: str
    fresh: str


KINDS: Final = (
    Accounts("checking", "id", "%s"),
    Accounts("savings", "iban", "'SA' || lpad((%s)::text, 8, '0')"),
    Accounts("loans", "(branch, number)", "ROW(3, (%s)::integer)"),
)


class Bank:
    """Writers that run until ``stop``. ``committed``: transactions whose COMMIT was answered."""

    def __init__(
        self, connect: Callable[[], Connection], *, seed: int, rate: float = 40.0, writers: int = 2
    ) -> None:
        self.rate = rate
        """Transactions per second of all writers together."""
        self.seed = seed
        self.committed = 0
        self.reconnected = 0
        self.truncating = True
        """TRUNCATE is not MVCC-safe: who took a snapshot before it and reads the table after it
        sees an empty table. So no TRUNCATE while somebody reads with an older snapshot."""
        self.two_phase = False
        """Whether some transactions are prepared first; then the server must have two-phase commit.
        Nothing may be copied meanwhile: slots of copies wait for prepared transactions. Nor is
        there TRUNCATE then: a server that decodes it again after ROLLBACK PREPARED cannot ("could
        not map filenumber")."""
        self.late: list[str] = []
        self._connect = connect
        self._writers = writers
        self._stopping = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._threads: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def create(self) -> None:
        """Make the tables with their first rows."""
        with self._connect() as connection:
            connection.execute(SCHEMA)

    def add_late_table(self, rows: int = LATE_ROWS) -> str:
        """One more table, full of rows and written to from now on; its balances sum up to 0."""
        name = f"late_{len(self.late)}"
        with self._connect() as connection:
            connection.execute(
                f"CREATE TABLE {name} (id bigint PRIMARY KEY, balance bigint NOT NULL,"
                " filler text);"
                f"INSERT INTO {name} SELECT i, CASE WHEN i % 2 = 0 THEN 50 ELSE -50 END,"
                f" repeat(md5(i::text), 6) FROM generate_series(1, {rows}) i;"
                f"INSERT INTO totals VALUES ('{name}', {rows})"
            )
        self.late = [*self.late, name]
        return name

    def start(self) -> None:
        """Start the writers."""
        self._stopping.clear()
        for number in range(self._writers):
            rng = random.Random(f"{self.seed}/{number}")
            thread = threading.Thread(target=self._run, args=(rng, number), name=f"writer-{number}")
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop the writers; raises what one of them died of."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._failed:
            raise self._failed[0]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have the writers begin no transaction meanwhile."""
        self._going.clear()
        try:
            yield
        finally:
            self._going.set()

    def _run(self, rng: random.Random, number: int) -> None:
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(psycopg.OperationalError):
                    self._session(rng, number)
                self._stopping.wait(0.1)
        except BaseException as error:
            self._failed.append(error)

    def _session(self, rng: random.Random, number: int) -> None:
        with contextlib.closing(self._connect()) as connection:
            self.reconnected += 1
            if self.two_phase:
                self._finish_prepared(connection, rng, number)
            due = time.monotonic()
            while not self._stopping.is_set():
                if not self._going.wait(0.1):
                    continue
                try:
                    self._transaction(connection, rng, number)
                except (errors.DeadlockDetected, errors.SerializationFailure):
                    connection.rollback()
                due = max(due + self._writers / self.rate, time.monotonic() - 1.0)
                self._stopping.wait(max(0.0, due - time.monotonic()))

    def _transaction(self, connection: Connection, rng: random.Random, number: int) -> None:
        large = rng.random() < 0.02
        counts: Counter[str] = Counter()
        with connection.cursor() as cursor:
            for _ in range(rng.randint(100, 300) if large else rng.randint(1, 4)):
                if rng.random() < 0.05:
                    _undone(cursor, rng)
                work = rng.choices(_WORK, _WEIGHTS)[0]
                if work is not _truncate or (self.truncating and not self.two_phase):
                    work(cursor, rng, counts)
            if self.late and rng.random() < 0.5:
                _late(cursor, rng, counts, rng.choice(self.late))
            # In one order, so that writers seldom meet crosswise on these hot rows.
            for name in sorted(counts):
                cursor.execute(
                    "UPDATE totals SET value = value + %s WHERE name = %s", (counts[name], name)
                )
        if rng.random() < 0.05:
            connection.rollback()
            return
        if self.two_phase and rng.random() < 0.4:
            gid = f"bank {number} {rng.randint(1, 10**9)}"
            connection.execute(f"PREPARE TRANSACTION '{gid}'")
            connection.commit()
            self._stopping.wait(rng.choice((0.0, 0.05, 0.5)))
            self._finish_prepared(connection, rng, number)
            return
        connection.commit()
        self.committed += 1

    def _finish_prepared(self, connection: Connection, rng: random.Random, number: int) -> None:
        """The second phase of a writer's transaction, of before a crash too."""
        connection.autocommit = True
        rows = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"bank {number} %",)
        ).fetchall()
        for (gid,) in rows:
            commits = rng.random() < 0.8
            connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{gid}'")
            self.committed += commits
        connection.autocommit = False


def _pick(cursor: Cursor, rng: random.Random, kind: Accounts) -> Any:
    """A random account that nobody has locked, locked."""
    cursor.execute(
        f"SELECT {kind.key} FROM {kind.table} WHERE random() < 0.2 LIMIT 1 FOR UPDATE SKIP LOCKED"
    )
    row = cursor.fetchone()
    return None if row is None else row[0]


def _move(cursor: Cursor, kind: Accounts, key: Any, amount: int) -> None:
    cursor.execute(
        f"UPDATE {kind.table} SET balance = balance + %s WHERE {kind.key} = {_same(kind)}",
        (amount, *_key(key)),
    )
    assert cursor.rowcount == 1


def _same(kind: Accounts) -> str:
    return "(%s::integer, %s::integer)" if kind.table == "loans" else "%s"


def _key(key: Any) -> tuple[Any, ...]:
    return tuple(key) if isinstance(key, tuple) else (key,)


def _fresh_id(cursor: Cursor) -> int:
    cursor.execute("SELECT nextval('ids')")
    ((number,),) = cursor.fetchall()
    return int(number)


def _transfer(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    source, target = rng.choice(KINDS), rng.choice(KINDS)
    giver, taker = _pick(cursor, rng, source), _pick(cursor, rng, target)
    if giver is None or taker is None:
        return
    amount = rng.randint(1, 100)
    _move(cursor, source, giver, -amount)
    _move(cursor, target, taker, amount)
    cursor.execute(
        "INSERT INTO transfers VALUES (%s, %s, %s, %s)",
        (_fresh_id(cursor), source.table, target.table, amount),
    )
    counts["transfers"] += 1


def _open(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    """A new account, with money from another one; often touched again in the same transaction."""
    kind, other = rng.choice(KINDS), rng.choice(KINDS)
    giver = _pick(cursor, rng, other)
    if giver is None:
        return
    number, amount = _fresh_id(cursor), rng.randint(0, 50)
    if kind.table == "checking":
        note = rng.randbytes(6000).hex() if rng.random() < 0.5 else None
        cursor.execute(
            "INSERT INTO checking VALUES (%s, %s, %s, %s, md5(%s))",
            (number, f"owner {number}", amount, note, note),
        )
        if rng.random() < 0.5:  # an insert, then an update that does not send the note again
            cursor.execute("UPDATE checking SET owner = owner || '!' WHERE id = %s", (number,))
    elif kind.table == "savings":
        cursor.execute(f"INSERT INTO savings VALUES ({kind.fresh}, %s)", (number, amount))
    else:
        cursor.execute(
            "INSERT INTO loans VALUES (3, %s, %s, %s)", (number, amount, '{"rate": [1, null]}')
        )
    _move(cursor, other, giver, -amount)
    counts[kind.table] += 1


def _close(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    """Delete an account; what it held goes to another one."""
    kind, other = rng.choice(KINDS), rng.choice(KINDS)
    key, heir = _pick(cursor, rng, kind), _pick(cursor, rng, other)
    if key is None or heir is None or (kind is other and key == heir):
        return
    cursor.execute(
        f"DELETE FROM {kind.table} WHERE {kind.key} = {_same(kind)} RETURNING balance::bigint",
        _key(key),
    )
    ((balance,),) = cursor.fetchall()
    _move(cursor, other, heir, balance)
    counts[kind.table] -= 1


def _change_key(cursor: Cursor, rng: random.Random, _counts: Counter[str]) -> None:
    kind = rng.choice(KINDS)
    key = _pick(cursor, rng, kind)
    if key is None:
        return
    cursor.execute(
        f"UPDATE {kind.table} SET {kind.key} = {kind.fresh} WHERE {kind.key} = {_same(kind)}",
        (_fresh_id(cursor), *_key(key)),
    )


def _reopen(cursor: Cursor, rng: random.Random, _counts: Counter[str]) -> None:
    """Delete a row and insert the same key again."""
    key = _pick(cursor, rng, KINDS[0])
    if key is None:
        return
    cursor.execute("DELETE FROM checking WHERE id = %s RETURNING owner, balance", (key,))
    ((owner, balance),) = cursor.fetchall()
    cursor.execute(
        "INSERT INTO checking (id, owner, balance) VALUES (%s, %s, %s)", (key, owner, balance)
    )


def _write_note(cursor: Cursor, rng: random.Random, _counts: Counter[str]) -> None:
    key = _pick(cursor, rng, KINDS[0])
    note = rng.randbytes(rng.choice((10, 3000, 20_000))).hex()
    cursor.execute(
        "UPDATE checking SET note = %s, note_md5 = md5(%s) WHERE id = %s", (note, note, key)
    )


def _scratch(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    for table in ("scratch", "scratch_more"):
        for _ in range(rng.randint(0, 5)):
            cursor.execute(f"INSERT INTO {table} (id) VALUES (%s)", (_fresh_id(cursor),))
            counts[table] += 1


def _truncate(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    cursor.execute("TRUNCATE scratch, scratch_more")
    # The truncated tables are locked until the end, so their counts are ours alone.
    for name in ("scratch", "scratch_more"):
        counts.pop(name, None)
        cursor.execute("UPDATE totals SET value = 0 WHERE name = %s", (name,))
    _scratch(cursor, rng, counts)


def _write_journal(cursor: Cursor, rng: random.Random, counts: Counter[str]) -> None:
    """Equal rows without a key: some come, or one of them goes or changes."""
    amount, what = rng.randint(1, 3), rng.random()
    one = "ctid = (SELECT ctid FROM journal LIMIT 1 FOR UPDATE SKIP LOCKED)"
    if what < 0.5:
        copies = rng.randint(1, 3)
        for _ in range(copies):
            cursor.execute("INSERT INTO journal VALUES ('fee', %s)", (amount,))
        counts["journal"] += copies
        counts["journal_amount"] += copies * amount
        return
    if what < 0.8:
        cursor.execute(f"DELETE FROM journal WHERE {one} RETURNING amount")
        for (gone,) in cursor.fetchall():
            counts["journal"] -= 1
            counts["journal_amount"] -= gone
        return
    cursor.execute(f"UPDATE journal SET amount = amount + 1 WHERE {one}")
    counts["journal_amount"] += cursor.rowcount


def _undone(cursor: Cursor, rng: random.Random) -> None:
    """Work inside a subtransaction that is rolled back."""
    cursor.execute("SAVEPOINT undone")
    _transfer(cursor, rng, Counter())
    _scratch(cursor, rng, Counter())
    cursor.execute("ROLLBACK TO undone")


def _late(cursor: Cursor, rng: random.Random, counts: Counter[str], table: str) -> None:
    name = sql.Identifier(table)
    amount = rng.randint(1, 9)
    pair = [rng.randint(1, LATE_ROWS), rng.randint(1, LATE_ROWS)]
    if pair[0] == pair[1]:
        return
    for key in sorted(pair):
        cursor.execute(
            sql.SQL("UPDATE {} SET balance = balance + %s WHERE id = %s").format(name),
            (amount if key == pair[0] else -amount, key),
        )
        assert cursor.rowcount == 1
    cursor.execute(
        sql.SQL("INSERT INTO {} VALUES (%s, 0, 'new')").format(name), (_fresh_id(cursor),)
    )
    counts[table] += 1
    if rng.random() < 0.3:
        cursor.execute(
            sql.SQL(
                "DELETE FROM {0} WHERE id = (SELECT id FROM {0} WHERE filler = 'new'"
                " ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)"
            ).format(name)
        )
        counts[table] -= cursor.rowcount


Work = Callable[[Cursor, random.Random, "Counter[str]"], None]
_WORK: Final[tuple[Work, ...]] = (
    _transfer,
    _open,
    _close,
    _change_key,
    _reopen,
    _write_note,
    _scratch,
    _truncate,
    _write_journal,
)
_WEIGHTS: Final = (30, 6, 6, 6, 3, 8, 6, 2, 8)
