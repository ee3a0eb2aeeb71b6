"""A random history of a publisher's tables, and what they held after each commit.

In: a database, a number that decides everything (the seed). Out: steps, each from a random number
generator of its own, so that a story without some of its steps keeps the others; the statements
that were run, as text; a state for each commit, with the WAL positions around it. One thread runs
all of it, so that no other commit comes between. What a node makes of it is left to
``test_stateful``.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from end_to_end.compare import Row, publisher_rows
from end_to_end.story_tables import (
    IDENTITIES,
    KEYED,
    WRITERS,
    Table,
    change,
    insert,
    random_column,
    random_table,
)
from fix_postgres import Database
from penstock.embedded import wait_until


@dataclass(frozen=True)
class State:
    """After a commit. ``before``, ``after``: WAL positions; its end is after the one and not after
    the other. ``step``: which one has committed it."""

    before: int
    after: int
    step: int
    tables: Mapping[str, Counter[Row]]


class Story:
    """The publisher's side. ``tables`` are published when it begins, ``late`` join later."""

    def __init__(self, database: Database, seed: int, *, two_phase: bool) -> None:
        self.database = database
        self.seed = seed
        self.two_phase = two_phase
        self.number = 0
        self.told: list[str] = []
        self.done: Counter[str] = Counter()
        self.prepared: dict[str, frozenset[str]] = {}
        self._published: set[str] = set()
        self._interned: dict[Row, Row] = {}
        rng = self.rng()
        self.tables = [
            random_table(rng, f"t{n}", identity) for n, identity in enumerate(IDENTITIES)
        ]
        self.tables += [
            random_table(rng, name, rng.choice(KEYED), True) for name in ("leaves", "root")
        ]
        self.tables[-1].targets = ("root",)
        self.favourites = rng.sample(self.tables, 3)
        """Much happens to a few tables: changes of one row follow one another."""
        self.late = [random_table(rng, f"late{n}", rng.choice([*IDENTITIES])) for n in range(2)]
        database.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        for table in (*self.tables, *self.late):
            database.execute(table.definition())
        names = ", ".join(table.name for table in self.tables[:-1])
        database.execute(
            f"CREATE PUBLICATION p FOR TABLE {names};"
            "CREATE PUBLICATION q FOR TABLE root WITH (publish_via_partition_root = true)"
        )
        self.observer = database.connect()
        self.observer.execute("SET lock_timeout = '20ms'")
        self.states = [State(0, 0, 0, {})]
        for table in self.tables:
            for writer in range(WRITERS):
                self.observer.execute(insert(table, writer, 0, 60, "0"))
        everything = frozenset(t.name for t in (*self.tables, *self.late))
        self.commits(self.observer, "SELECT 'everything before'", everything)
        self.writers = [Writer(self, number) for number in range(WRITERS)]

    def rng(self, what: str = "") -> random.Random:
        """Of this step, whatever was before it."""
        return random.Random(f"{self.seed}/{self.number}/{what}")

    def tell(self, kind: str, text: str) -> None:
        self.done[kind] += 1
        self.told.append(f"{self.number}: {text}")

    def insert_lsn(self) -> int:
        row = self.observer.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        return int(row[0])

    def commits(
        self, connection: psycopg.Connection[Any], statement: str, tables: frozenset[str]
    ) -> None:
        """Run what commits, and note the state after it. ``tables``: those that it may change."""
        before = self.insert_lsn()
        connection.execute(statement)
        after = self.insert_lsn()
        now = dict(self.states[-1].tables)
        for table in (*self.tables, *self.late):
            if table.name in tables:
                # Where another transaction has it locked, this one has rolled its part back.
                with contextlib.suppress(psycopg.errors.LockNotAvailable):
                    now.update({name: self._rows(table, name) for name in table.targets})
        self.states.append(State(before, after, self.number, now))

    def decoded(self) -> None:
        """Wait until the walsender, if there is one, has read all of this: it tells nothing of what
        was rolled back before it came there."""
        statement = "SELECT pg_logical_emit_message(true, 'story', '') - '0/0'"  # flushes the WAL
        lsn = self.database.value(statement)
        unread = (
            "SELECT count(*) FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid"
            f" WHERE database = current_database() AND sent_lsn - '0/0' < {lsn}"
        )
        wait_until(lambda: self.database.value(unread) == 0, "the walsender")

    def candidates(self, lsn: int) -> list[State]:
        """The state at a position; two where it lies within a commit's bounds."""
        found = [state for state in self.states if state.after <= lsn][-1:]
        return found + [state for state in self.states if state.before < lsn < state.after]

    def end_prepared(self, rng: random.Random) -> None:
        gid = rng.choice(sorted(self.prepared))
        how = rng.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        self.tell(f"{how} PREPARED", f"{how} PREPARED '{gid}'")
        self.commits(self.observer, f"{how} PREPARED '{gid}'", self.prepared.pop(gid))

    def add_column(self, rng: random.Random) -> None:
        """By a session of its own; not where somebody has the table."""
        table, column = rng.choice(self.tables), random_column(rng, f"a{self.number}")
        statement = f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type}"
        try:
            self.commits(self.observer, statement, frozenset((table.name,)))
        except psycopg.errors.LockNotAvailable:
            return
        table.columns.append(column)
        self.tell("ADD COLUMN", statement)

    def publish_late(self) -> None:
        """With rows from before where it is copied. No effect where it has been tried before."""
        table = self.late[-1]
        if table.name in self._published:
            return
        self._published.add(table.name)
        if not self.two_phase:
            statement = insert(table, 0, 0, 90, "1")
            self.commits(self.observer, statement, frozenset((table.name,)))
        self.database.execute(f"ALTER PUBLICATION p ADD TABLE {table.name}")
        self.tell("ADD TABLE", f"ALTER PUBLICATION p ADD TABLE {table.name}")

    def late_has_joined(self) -> None:
        """Writers know it from now on."""
        self.tables.append(self.late.pop())
        self.tell("REFRESH", "ALTER SUBSCRIPTION s REFRESH PUBLICATION")

    def end(self) -> None:
        """No transaction is left."""
        for writer in self.writers:
            writer.finish("COMMIT")
        for gid, tables in self.prepared.items():
            self.commits(self.observer, f"COMMIT PREPARED '{gid}'", tables)
        self.prepared.clear()

    def _rows(self, table: Table, target: str) -> Counter[Row]:
        as_text = [column.name for column in table.columns if column.as_text]
        rows = publisher_rows(self.observer, f"public.{target}", as_text=as_text)
        return Counter(self._interned.setdefault(row, row) for row in rows)


class Writer:
    """A session of the story."""

    def __init__(self, story: Story, number: int) -> None:
        self.story = story
        self.number = number
        self.connection = story.database.connect()
        self.connection.execute("SET lock_timeout = '20ms'")
        self.open = False
        self.savepoints: list[str] = []
        self.touched: set[str] = set()

    def step(self, rng: random.Random) -> None:
        if not self.open:
            self.change(rng)
            return
        kinds = {"change": 50, "undone": 10, "savepoint": 8, "COMMIT": 25, "ROLLBACK": 3}
        if self.savepoints:
            kinds |= {"ROLLBACK TO": 15, "RELEASE": 3}
        if self.story.two_phase:
            kinds["PREPARE"] = 8
        (kind,) = rng.choices([*kinds], [*kinds.values()])
        match kind:
            case "change":
                self.change(rng)
            case "undone":
                self._run("savepoint", "SAVEPOINT undone")
                self.change(rng, within=True)
                if self.open:
                    self._run("ROLLBACK TO", "ROLLBACK TO SAVEPOINT undone")
                    self._run("RELEASE", "RELEASE SAVEPOINT undone")
            case "savepoint":
                self.savepoints.append(f"s{self.story.number}")
                self._run("savepoint", f"SAVEPOINT {self.savepoints[-1]}")
            case "ROLLBACK TO" | "RELEASE":
                at = rng.randrange(len(self.savepoints))
                name = self.savepoints[at]
                self.savepoints = self.savepoints[:at]
                self._run(kind, f"{kind} SAVEPOINT {name}")
            case _:
                self.finish(kind)

    def change(self, rng: random.Random, *, within: bool = False) -> None:
        """Begins a transaction where none is open; one that fails leaves as if it had not been.
        ``within``: more follows."""
        story = self.story
        table = rng.choice(story.favourites if rng.random() < 0.6 else story.tables)
        kind, statements, tables = change(rng, story.tables, table, self.number, story.number)
        alone = not within and not self.open and rng.random() < 0.25
        if not self.open:
            self.connection.execute("BEGIN")
            self.open = True
        guarded = rng.random() < 0.4 or bool(self.story.prepared) or kind in ("TRUNCATE", "ALTER")
        try:
            if guarded:
                self.connection.execute("SAVEPOINT guard")
            for statement in statements:
                self.connection.execute(statement)
            if guarded:
                self.connection.execute("RELEASE SAVEPOINT guard")
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation) as error:
            self.story.tell("failed", f"writer {self.number}: {error.sqlstate} {statements}")
            if guarded:
                self.connection.execute("ROLLBACK TO SAVEPOINT guard; RELEASE SAVEPOINT guard")
            else:
                self.finish("ROLLBACK")
            return
        self.touched |= tables
        mark = " (in a subtransaction)" if guarded else ""
        self.story.tell(kind, f"writer {self.number}{mark}: {'; '.join(statements)}")
        if alone:
            self.finish("COMMIT")
        elif within or rng.random() < 0.2:
            story.decoded()

    def finish(self, how: str) -> None:
        if not self.open:
            return
        story, tables = self.story, frozenset(self.touched)
        self.open, self.touched, self.savepoints = False, set(), []
        if how == "COMMIT":
            story.tell(how, f"writer {self.number}: COMMIT")
            story.commits(self.connection, "COMMIT", tables)
        elif how == "PREPARE":
            gid = f"g{story.number}"
            self._run(how, f"PREPARE TRANSACTION '{gid}'")
            story.prepared[gid] = tables
        else:
            self._run(how, how)

    def _run(self, kind: str, statement: str) -> None:
        self.story.tell(kind, f"writer {self.number}: {statement}")
        self.connection.execute(statement)
