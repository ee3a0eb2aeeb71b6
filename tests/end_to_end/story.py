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
from typing import Any, Final

import psycopg

from end_to_end.compare import Row, column_names, publisher_rows
from end_to_end.story_definitions import (
    EXTRA,
    TYPES,
    Back,
    Definition,
    Doubt,
    of_late,
    random_definition,
    touches,
    truncated,
)
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

_MET: Final = ("met", "along")
"""Tables of keys that are there already, and of what the same transactions change beside."""

_REFUSED: Final = (
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.CheckViolation,
    psycopg.errors.DependentObjectsStillExist,
)
"""Of DDL that something else depends on; of rows without a partition."""


@dataclass(frozen=True)
class Rows:
    """What a table holds."""

    columns: tuple[str, ...]
    rows: Counter[Row]


@dataclass(frozen=True)
class State:
    """After a commit. ``before``, ``after``: WAL positions; its end is after the one and not after
    the other. ``step``: which one has committed it."""

    before: int
    after: int
    step: int
    tables: Mapping[str, Rows]


class Story:
    """The publisher's side. ``tables`` are published when it begins, ``late`` join later; others
    come to ``met`` before the publisher does. ``definitions``: DDL that no message tells of."""

    def __init__(
        self, database: Database, seed: int, *, two_phase: bool, definitions: bool = False
    ) -> None:
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
        self.met = [Table(name, "primary key", [], (name,)) for name in _MET] if definitions else []
        self.doubts: list[Doubt] = []
        self.away: Back | None = None
        self.local: set[int] = set()
        """Keys that others have put into ``met``; of these: whose conflict is over, and whose
        transaction is skipped."""
        self.ended: set[int] = set()
        self.skipped: set[int] = set()
        if definitions:
            for table in (*self.tables, *self.late):
                table.columns.append(random_column(rng, "own", EXTRA))
        database.execute(TYPES)
        for table in (*self.tables, *self.late, *self.met):
            database.execute(table.definition())
        names = ", ".join(table.name for table in (*self.tables[:-1], *self.met))
        stored = definitions and database.server.version >= 18
        generated = "publish_generated_columns = stored" if stored else ""
        database.execute(
            f"CREATE PUBLICATION p FOR TABLE {names} {generated and f'WITH ({generated})'};"
            "CREATE PUBLICATION q FOR TABLE root WITH (publish_via_partition_root = true"
            f"{generated and f', {generated}'})"
        )
        self.observer = database.connect()
        self.observer.execute("SET lock_timeout = '20ms'")
        self.states = [State(0, 0, 0, {})]
        for table in self.tables:
            for writer in range(WRITERS):
                self.observer.execute(insert(table, writer, 0, 60, "0"))
        everything = frozenset(t.name for t in (*self.tables, *self.late, *self.met))
        self.commits(self.observer, "SELECT 'everything before'", everything)
        self.writers = [Writer(self, number) for number in range(WRITERS)]

    def close(self) -> None:
        """End its sessions."""
        self.database.close()

    def move_to(self, database: Database) -> None:
        """Go on at a standby that has all commits, and was promoted. Open transactions are lost."""
        self.close()
        self.database = database
        self.observer = database.connect()
        self.observer.execute("SET lock_timeout = '20ms'")
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
        for table in (*self.tables, *self.late, *self.met):
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

    def define(self, rng: random.Random) -> None:
        """DDL of a session of its own; not where somebody has the table."""
        version = self.database.server.version
        found = random_definition(rng, version, self.tables, self.number)
        if self.away is not None and rng.random() < 0.5:
            self.bring_back()
            return
        if (self.away is not None and found.alone) or not self._free(found):
            return
        changed = found.changed | {table.name for table in self.late if found.of_type}
        for number, statement in enumerate(found.transactions):
            try:
                self.commits(self.observer, statement, changed)
            except (psycopg.errors.LockNotAvailable, *_REFUSED) as error:
                self.tell("failed", f"{error.sqlstate} {statement}")
                self.observer.execute("ROLLBACK")
                if not number:
                    return
            else:
                self.tell(found.kind, statement)
            if not number:
                self.doubts += found.doubts
                self.doubts += [of_late(table) for table in self.late if found.of_type]
        found.done()
        self.away = self.away or found.back

    def _free(self, found: Definition) -> bool:
        """Whether all of a change can be done, and the rows be read after it: a type is changed
        under the tables of open transactions, too."""
        mode = "ACCESS SHARE" if found.of_type else "SHARE ROW EXCLUSIVE"
        try:
            with self.observer.transaction():
                for name in sorted(found.changed):
                    self.observer.execute(f"LOCK TABLE {name} IN {mode} MODE NOWAIT")
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def bring_back(self) -> None:
        """What was away for a time is there again."""
        back, self.away = self.away, None
        if back is None:
            return
        for statement in (back.statement, back.else_made):
            try:
                self.commits(self.observer, statement, back.changed)
            except psycopg.errors.DatatypeMismatch:  # columns were added meanwhile
                continue
            except psycopg.errors.LockNotAvailable:
                self.away = back  # another time
            else:
                self.tell("back", statement)
            return

    def touch(self) -> None:
        """Change all tables whose definitions may be unknown to the node."""
        doubtful = {target for doubt in self.doubts for target in doubt.targets}
        for table in self.tables:
            if doubtful.intersection(table.targets):
                for statement in touches(table, self.number):
                    self.commits(self.observer, statement, frozenset((table.name,)))

    def meet(self, key: int) -> None:
        """Bring a key that somebody else has put into one of the tables."""
        statement = "; ".join(
            f"INSERT INTO {table.name} VALUES ({key}, 'theirs')" for table in reversed(self.met)
        )
        self.tell("meet", statement)
        self.commits(self.observer, statement, frozenset(_MET))

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

    def finish(self, rng: random.Random) -> None:
        """End what the writers have begun."""
        for writer in self.writers:
            writer.finish(rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]))

    def end(self) -> None:
        """No transaction is left."""
        for writer in self.writers:
            writer.finish("COMMIT")
        self.bring_back()
        for gid, tables in self.prepared.items():
            self.commits(self.observer, f"COMMIT PREPARED '{gid}'", tables)
        self.prepared.clear()

    def _rows(self, table: Table, target: str) -> Rows:
        as_text = [column.name for column in table.columns if column.as_text]
        columns = tuple(column_names(self.observer, f"public.{target}"))
        rows = publisher_rows(self.observer, f"public.{target}", columns=columns, as_text=as_text)
        return Rows(columns, Counter(self._interned.setdefault(row, row) for row in rows))


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
        self.truncated: set[str] = set()

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
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.UniqueViolation,
            *_REFUSED,
        ) as error:
            self.story.tell("failed", f"writer {self.number}: {error.sqlstate} {statements}")
            if guarded:
                self.connection.execute("ROLLBACK TO SAVEPOINT guard; RELEASE SAVEPOINT guard")
            else:
                self.finish("ROLLBACK")
            return
        self.touched |= tables
        self.truncated |= tables if kind == "TRUNCATE" else set()
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
        self.truncated, truncates = set(), self.truncated
        if how == "COMMIT":
            story.tell(how, f"writer {self.number}: COMMIT")
            story.doubts += [truncated(t) for t in story.tables if t.name in truncates]
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
