"""Random histories of a stock server, and a node that is disturbed meanwhile: equal at every cut.

``story`` makes the history and knows what each table held at each position. Here is what happens to
the node, and the comparison. Where definitions change without a message, the columns that may
differ are left out until the node has settled: by itself, or as its error says.

Not hypothesis: a step costs a server and a node some tens of milliseconds, and its shrinking some
hundreds of stories. A failed story prints its steps and how to run it again, whole, shorter, or
without some of its steps, which leaves the others as they are::

    PENSTOCK_STORY=18/3/40/7,12 python -m pytest -n0 tests/end_to_end/test_stateful.py -k again

is seed 3 on PostgreSQL 18, 40 steps, without the 7th and the 12th; ``18/3/40/definitions`` is one
whose definitions change, ``18/3/40/promotion`` one whose publisher is lost half way, and both can
stand together. Several, with blanks between.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.compare import Row, difference, live_columns, live_rows
from end_to_end.local_node import LocalNode
from end_to_end.story import Rows, State, Story
from end_to_end.story_definitions import Doubt
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database, _database
from penstock import Node
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import PublisherError
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.node.status import SubscriptionStatus
from standby import primary_and_standby, synchronised

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_STEPS: Final = 90
_PATIENCE: Final = 300
"""Seconds until a state must be there. One change of an enum may stop table after table."""
_AGAIN: Final = os.environ.get("PENSTOCK_STORY", "").split()


_SEED: Final = 7
"""Finds each of these, put in on purpose: subtransactions of streamed transactions that were rolled
back and are not cut out, a TOASTed value lost by a later UPDATE of the same batch, a TRUNCATE ahead
of the changes before it, a transaction applied at its PREPARE, a cut ahead of a table's commit."""
_IN_IT: Final = frozenset(
    ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "key", "swap", "new TOAST", "ROLLBACK TO", "PREPARE",
     "COMMIT PREPARED", "ALTER", "ADD COLUMN", "restart", "enable", "skip", "REFRESH")
)  # fmt: skip


_SETTINGS: Final[dict[str, str | int | bool]] = {
    "max_prepared_transactions": 20,
    "logical_decoding_work_mem": "64kB",
    "autovacuum": False,
    "wal_writer_delay": "20ms",
}
"""Two-phase commit, streams that begin early, and nothing that a server does by itself."""


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    with contextlib.ExitStack() as stack:
        servers: dict[int, EmbeddedPostgres] = {}

        def of(version: int) -> EmbeddedPostgres:
            if version not in servers:
                servers[version] = stack.enter_context(
                    EmbeddedPostgres(version, settings=_SETTINGS)
                )
            return servers[version]

        yield of


@pytest.fixture
def publisher(
    server: Callable[[int], EmbeddedPostgres],
) -> Iterator[Callable[[int], Database]]:
    with contextlib.ExitStack() as stack:

        def make(version: int) -> Database:
            database = stack.enter_context(_database(server(version)))
            stack.callback(_end_transactions, database)
            return database

        yield make


def _end_transactions(database: Database) -> None:
    """What a failed story leaves: slots of others would wait for it."""
    database.close()
    for (gid,) in database.rows("SELECT gid FROM pg_prepared_xacts"):
        database.execute(f"ROLLBACK PREPARED '{gid}'")


_LATE_S = 30
"""Rows may be equal before a look has found a change that stops a table: it may come with nothing
but looks, every five seconds, and two of them."""


class Disturbed:
    """A node that follows a story, and what happens to it. ``checked``: cuts that were equal."""

    def __init__(
        self, node: LocalNode, story: Story, spark: Any, standby: EmbeddedPostgres | None
    ) -> None:
        self.local = node
        self.standby = standby
        self.story = story
        self.spark = spark
        self.enabled = True
        self.checked = 0
        self.options: dict[str, str] = {}
        self.stops: Counter[str] = Counter()
        self._settled: list[tuple[float, Doubt]] = []
        """Doubts that rows have ended, and when."""
        self._last: Cut | None = None
        self._read: dict[tuple[str, int], Rows] = {}

    def subscribe(self) -> None:
        story, rng = self.story, self.story.rng("options")
        options = {
            "streaming": rng.choice(["parallel", "parallel", "on", "off"]),
            "binary": rng.choice(["true", "false"]),
            "two_phase": str(story.two_phase).lower(),
            "soft_delete": str(story.seed % 5 == 4).lower(),
            "metadata_columns": str(story.seed % 5 in (3, 4)).lower(),
            "history": str(story.seed % 5 == 1).lower(),
            "conflict_resolution": rng.choice(["error", "apply_remote", "keep_local"]),
            "jsonb_as": rng.choice(["text", "variant", "variant"]),
        }
        if self.standby is not None:
            options["failover"] = "true"
        if story.met:
            options["schema_change"] = rng.choice(["add", "add", "follow", "widen"])
            options["on_table_error"] = rng.choice(["stop", "stop", "park"])
            options["conflict_resolution"] = rng.choice(["error", "error", "apply_remote"])
        self.options = options
        text = ", ".join(f"{name} = {value}" for name, value in options.items())
        story.tell("subscribe", text)
        self.local.subscribe("s", story.database, "p, q", text)
        self.local.caught_up("s", story.database)
        if story.two_phase:
            state = "SELECT subtwophasestate FROM pg_subscription"
            wait_until(lambda: self.local.node.sql(state).rows == (("e",),), "two-phase commit")

    def step(self, rng: random.Random) -> None:
        kinds = {"catch up": 30, "enable": 20, "end the walsender": 15, "restart": 10, "skip": 10,
                 "late": 15}  # fmt: skip
        (kind,) = rng.choices([*kinds], [*kinds.values()])
        if kind == "late":
            self.late()
            return
        self.story.tell(kind, kind)
        match kind:
            case "catch up":
                self.catch_up()
                self.check()
            case "enable" if self.enabled:
                self.local.node.sql("ALTER SUBSCRIPTION s DISABLE")
                self.local.no_worker()
                self.enabled = False
            case "enable":
                self.enable()
            case "end the walsender":
                self.story.database.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE active AND database = current_database()"
                )
            case "restart":
                self.restart(rng)
            case "skip":
                # no transaction ends at a position that is no multiple of 8
                lsn = self.story.insert_lsn() + 1
                text = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
                self.local.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{text}')")

    def late(self) -> None:
        """Another table joins; its first rows come after REFRESH where it is not copied. That
        waits for whoever has locked a table, which here would be for ever: another time."""
        if not self.story.late:
            return
        self.enable()
        self.story.publish_late()
        copy = " WITH (copy_data = false)" if self.story.two_phase else ""
        try:
            self.local.node.sql(f"ALTER SUBSCRIPTION s REFRESH PUBLICATION{copy}")
        except PublisherError as error:
            if "lock timeout" not in error.message:
                raise
            self.story.tell("locked", error.message)
        else:
            self.story.late_has_joined()

    def enable(self) -> None:
        if not self.enabled:
            self.local.node.sql("ALTER SUBSCRIPTION s ENABLE")
            self.enabled = True

    def restart(self, rng: random.Random) -> None:
        """With other parameters."""
        self.local.node.close()
        write_parameters(self.local, rng)
        self.local.node = Node(self.local.folder, spark=self.spark)
        self.local.node.start()

    def catch_up(self) -> None:
        """Until a cut has everything that is committed; copies may go on."""
        self.enable()
        target = self._end()

        def reached(status: SubscriptionStatus) -> bool:
            return status.cut_lsn is not None and status.cut_lsn >= target

        self._wait_for(f"a cut at {target} or after", reached)

    def _end(self) -> int:
        return int(self.story.database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def _wait_for(self, what: str, state: Callable[[SubscriptionStatus], bool]) -> None:
        """Wait for a state, and go on as an error says that the story knows the reason of."""

        def look() -> bool:
            status = self.local.status("s")
            if status.stopped and (self.story.met or self.story.doubts):
                self._go_on(status)
                return False
            assert not status.stopped, f"waiting for {what}: {status}"
            return state(status)

        try:
            wait_until(look, what, _PATIENCE, state=lambda: self.local.status("s"))
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{self.how_to_run_it_again()}") from None

    def _go_on(self, status: SubscriptionStatus) -> None:
        """By the statements of the hint, once the error is known to be right."""
        text, hint = f"{status.error}. {status.error_detail}", f"{status.error_hint}"
        self.check()
        met = self.story.met and f'"public.{self.story.met[0].name}"' in text
        if "conflict detected" in text and met:
            self._end_conflict(hint)
            return
        self._expect(text)
        self.story.tell("stopped", text)
        if not self._move_history(hint):
            self._run_hint("REFRESH PUBLICATION", hint)
        self._run_hint("ENABLE", hint)

    def _move_history(self, hint: str) -> bool:
        """Where it cannot hold a column of another type."""
        found = re.search(r'Move "file://(.+?)"', hint)
        if found is not None:
            place = Path(found[1])
            place.rename(place.with_name(f"{place.name}_{self.story.number}"))
        return found is not None

    def _run_hint(self, what: str, hint: str) -> None:
        found = re.search(rf"ALTER SUBSCRIPTION s {what}", hint)
        assert found is not None, f"no {what} in {hint}"
        self.story.finish(self.story.rng("finish"))  # a copy waits for who is at work
        self.local.node.sql(found[0])

    def _expect(self, text: str) -> None:
        """An error names a table, and a change of it."""
        named = re.search(r'(?:relation|table) "public\.(\w+)"', text)
        assert named is not None, f"no table in {text}\n{self.how_to_run_it_again()}"
        doubts = [doubt for doubt in self._doubts() if named[1] in doubt.targets]
        why = [doubt.reasons for doubt in doubts if re.search(doubt.reasons, text)]
        assert why, f"no such change: {text}; {doubts}\n{self.how_to_run_it_again()}"
        self.stops[why[0]] += 1

    def _doubts(self) -> list[Doubt]:
        """All that the node may still tell of."""
        since = time.monotonic() - _LATE_S
        late = [doubt for settled, doubt in self._settled if settled >= since]
        return [*self.story.doubts, *late]

    def settle(self) -> None:
        """Every change of definitions has had its effect here, or stops the subscription or the
        table, which goes on as the error says. Then all rows are as at the publisher."""
        story = self.story
        story.finish(story.rng("settle"))
        story.bring_back()
        story.touch()
        story.tell("settle", "settle")
        self.enable()
        target = self._end()

        def settled(status: SubscriptionStatus) -> bool:
            self.check()
            parked = [table for table in status.tables if table.parked]
            for table in parked:
                if table.name == f"public.{story.met[0].name}":
                    story.ended |= story.local  # by its copy
                    continue
                self._expect(f"{table.error}. {table.error_detail}")
                story.tell("parked", f"{table.error} {table.error_detail}")
                self._move_history(f"{table.error_hint}")
            names = {table.name.removeprefix("public.") for table in status.tables}
            if parked or not {name for t in story.tables for name in t.targets} <= names:
                self.local.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
                return False
            joined = all(table.ready for table in status.tables)
            if not joined or status.cut_lsn is None or status.cut_lsn < target:
                return False
            return not self._unequal(self.local.cut(), settled=True)

        try:
            self._wait_for("rows as at the publisher", settled)
        except (AssertionError, TimeoutError) as error:
            found = self._unequal(self.local.cut(), settled=True)
            end = self.how_to_run_it_again()
            raise AssertionError(f"{error}\n{found}\n{end}") from None
        self.check()
        self._settled += [(time.monotonic(), doubt) for doubt in story.doubts]
        story.doubts.clear()

    def promote(self, standby: EmbeddedPostgres) -> None:
        """The publisher's standby takes over, with a slot that is behind."""
        story, rng = self.story, self.story.rng("promotion")
        self.catch_up()
        synchronised(story.database.server, standby, "s")
        for _ in range(rng.randrange(9)):
            rng.choice(story.writers).step(rng)
        database = Database(standby, story.database.name)
        reached = f"SELECT pg_last_wal_replay_lsn() - '0/0' >= {self._end()}"
        wait_until(lambda: bool(database.value(reached)), "the standby's replay")
        story.tell("promotion", "the standby is promoted")
        story.database.server.kill9()
        standby.psql("SELECT pg_promote()")
        story.move_to(database)
        self.local.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{database.conninfo}'")

    def meet(self) -> None:
        """Somebody else has put a key into a table before the publisher's transaction brings it."""
        story, key = self.story, 10_000 + self.story.number
        self.catch_up()
        name = self.story.met[0].name
        at = self.local.cut().tables.get(("public", name))
        if at is None:  # parked by the conflict before
            return
        row = {"id": [key], "kind": ["local"]}
        table = DeltaTable(at.uri)
        schema = pa.schema(table.schema().to_arrow())
        lacking = {f.name: pa.nulls(1, f.type) for f in schema if f.name not in row}
        write_deltalake(table, pa.table({**row, **lacking}).select(schema.names).cast(schema),
                        mode="append")  # fmt: skip
        story.local.add(key)
        story.tell("local", f"{name} gets ({key}, 'local') from somebody else")
        story.meet(key)

    def _end_conflict(self, hint: str) -> None:
        """What comes first in the WAL stops first. None of its transaction is in any table."""
        story = self.story
        met, along = (self.local.cut().tables["public", table.name].uri for table in story.met)
        key = min(story.local - story.ended)
        kept = {row[0] for row in live_rows(along)}
        assert key not in kept, f"{key} of the failed transaction is in a table"
        story.ended.add(key)
        found = re.search(r"ALTER SUBSCRIPTION s SKIP \(lsn = '[0-9A-F/]+'\)", hint)
        assert found is not None, hint
        if story.rng("conflict").random() < 0.5:
            story.tell("conflict: SKIP", found[0])
            story.skipped.add(key)
            self.local.node.sql(found[0])
        else:
            story.tell("conflict: DELETE", f"the local row of {key} is deleted")
            DeltaTable(met).delete(f"id = {key}")
        self.local.node.sql("ALTER SUBSCRIPTION s ENABLE")

    def check(self) -> None:
        """Every cut since the last time holds, in every table, what the publisher had there."""
        cuts = self.local.node.cuts("s")
        for cut in cuts:
            if self._last is not None and cut.cut_time <= self._last.cut_time:
                continue
            wrong = self._unequal(cut)
            assert not wrong, f"{wrong}\n{self.how_to_run_it_again()}"
            lost = set() if self._last is None else set(self._last.tables) - set(cut.tables)
            doubtful = {target for doubt in self._doubts() for target in doubt.targets}
            if self.story.local:  # a REFRESH after the conflict has copied it again
                doubtful.add(self.story.met[0].name)
            lost = {(schema, name) for schema, name in lost
                    if name.removesuffix("__history") not in doubtful}  # fmt: skip
            assert not lost, f"{lost} left the cuts\n{self.how_to_run_it_again()}"
            self._last, self.checked = cut, self.checked + 1

    def _unequal(self, cut: Cut, *, settled: bool = False) -> str:
        """How a cut differs from the state at its position; empty where it does not. ``settled``:
        in what was in doubt, too."""
        texts = []
        for state in self.story.candidates(cut.lsn):
            found = [
                str(lack)
                for name, pin in _tables(cut)
                if (lack := self._unequal_table(state, name, pin, settled=settled))
            ]
            if not found:
                return ""
            versions = {name: pin.version for (_, name), pin in cut.tables.items()}
            texts.append(
                f"the cut at {cut.lsn} is not what step {state.step} left (positions"
                f" {state.before} to {state.after}; versions {versions}):\n" + "\n".join(found)
            )
        return "\n".join(texts)

    def _unequal_table(self, state: State, name: str, pin: CutTable, *, settled: bool) -> str:
        doubts = [doubt for doubt in self.story.doubts if name in doubt.targets and not settled]
        if any(doubt.columns is None for doubt in doubts):
            return ""
        without = {column for doubt in doubts for column in doubt.columns or ()}
        wanted, found = state.tables[name], self._rows(pin.uri, pin.version)
        if name in (table.name for table in self.story.met):
            wanted = self._met(name, wanted, settled, found if settled else None)
            found = found if settled else self._met(name, found, settled)
        return _difference(name, wanted, found, without)

    def _met(self, name: str, rows: Rows, settled: bool, found: Rows | None = None) -> Rows:
        """Without the keys that others have put there, as long as it is open how that ends. Of a
        transaction that is skipped nothing is here, unless a REFRESH for another table has copied
        the table that had stopped."""
        at = rows.columns.index("id")
        left = self.story.skipped if settled else self.story.local
        if found is not None and name == self.story.met[0].name:
            left = left - {row[at] for row in found.rows.keys() & rows.rows.keys()}
        kept = Counter({row: n for row, n in rows.rows.items() if row[at] not in left})
        if settled and name == self.story.met[0].name:
            kept.update((key, "local", None, None) for key in left)
        return Rows(rows.columns, kept)

    def _rows(self, uri: str, version: int) -> Rows:
        if (uri, version) not in self._read:
            columns = live_columns(uri, version)
            self._read[uri, version] = Rows(columns, Counter(live_rows(uri, version)))
        return self._read[uri, version]

    def how_to_run_it_again(self) -> str:
        story = self.story
        which = "/definitions" if story.met else ""
        which += "" if self.standby is None else "/promotion"
        name = f"{story.database.server.version}/{story.seed}/{story.number}{which}"
        return "\n".join([*story.told, f"Run it again: PENSTOCK_STORY={name}"])


def _tables(cut: Cut) -> Iterator[tuple[str, CutTable]]:
    """Without the histories, of which ``test_history`` tells."""
    for (_, name), pin in cut.tables.items():
        if not name.endswith("__history"):
            yield name, pin


def _difference(name: str, wanted: Rows, found: Rows, without: Collection[str] = ()) -> str:
    """A column that was added after the node's last change of the table is not there yet; one that
    was dropped stays."""
    columns = [column for column in wanted.columns if column not in without]
    rows = (_columns(each, columns) for each in (wanted, found))
    return str(difference(name, *rows) or "")


def _columns(rows: Rows, columns: Sequence[str]) -> list[Row]:
    places = [rows.columns.index(c) if c in rows.columns else None for c in columns]
    return [tuple(None if at is None else row[at] for at in places) for row in rows.rows.elements()]


def write_parameters(node: LocalNode, rng: random.Random) -> None:
    """Small pieces, small batches, or what is usual."""
    values = {
        "warehouse": str(node.warehouse),
        "wal_receiver_status_interval": "1s",
        "wal_retrieve_retry_interval": "50ms",
        "logical_decoding_work_mem": rng.choice(["64kB", "64kB", "64MB"]),
        "apply_batch_rows": rng.choice([1, 20, 200, 1_000_000]),
        "apply_batch_delay": rng.choice(["0ms", "50ms", "200ms"]),
        "apply_queue_mem": rng.choice(["128kB", "256MB"]),
        "compact_small_files": rng.choice([4, 32]),
        "checkpoint_commits": rng.choice([5, 100]),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    (node.folder / "penstock.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def tell_story(
    folder: Path,
    spark: Any,
    database: Database,
    seed: int,
    steps: int = _STEPS,
    without: frozenset[int] = frozenset(),
    *,
    definitions: bool = False,
    standby: EmbeddedPostgres | None = None,
) -> Disturbed:
    """A story from its beginning to its end, with all cuts checked. ``standby``: is promoted when
    half of it is told."""
    # why a partition counts as emptied, for the report of a story that fails
    logging.getLogger("penstock.subscription.definition_watch").setLevel(logging.INFO)
    dice = random.Random(seed)
    if database.server.version >= 16 and dice.random() < 0.6:
        database.execute(
            f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = 'immediate'"
        )
    two_phase = seed % 2 == 1 and database.server.version >= 15 and not definitions
    two_phase = two_phase and standby is None
    story = Story(database, seed, two_phase=two_phase, definitions=definitions)
    with LocalNode(folder, spark) as local, contextlib.closing(story):
        node = Disturbed(local, story, spark, standby)
        node.restart(dice)
        node.subscribe()
        for number in range(1, steps + 1):
            story.number = number
            if number not in without:
                _step(story, node)
            if standby is not None and number == steps // 2:
                node.promote(standby)
        story.number += 1
        story.end()
        node.enable()
        node.late()
        if definitions or story.doubts:
            node.settle()
        try:
            local.caught_up("s", story.database)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{node.how_to_run_it_again()}") from None
        node.check()
        last = local.cut()
        targets = {target for t in (*story.tables, *story.met) for target in t.targets}
        assert {name for name, _ in _tables(last)} == targets
        return node


def _step(story: Story, node: Disturbed) -> None:
    rng = story.rng()
    kinds = {"writer": 80, "column": 3, "node": 9}
    if story.prepared:
        kinds["prepared"] = 15
    if story.met:
        kinds |= {"define": 14, "settle": 4, "meet": 2}
    (kind,) = rng.choices([*kinds], [*kinds.values()])
    match kind:
        case "writer":
            rng.choice(story.writers).step(rng)
        case "prepared":
            story.end_prepared(rng)
        case "column":
            story.add_column(rng)
        case "define":
            story.define(rng)
        case "settle":
            node.settle()
        case "meet":
            node.meet()
        case "node":
            node.step(rng)


@pytest.mark.parametrize(
    ("version", "seed"),
    [
        (18, _SEED),
        *(in_make_faults(18, seed) for seed in (2, 3, 4, 8, 9, 11)),
        *(in_make_faults(14, seed) for seed in (20, 22)),
    ],
)
def test_every_cut_is_a_state_of_the_publisher(
    tmp_path: Path, spark: Any, publisher: Callable[[int], Database], version: int, seed: int
) -> None:
    database = publisher(version)
    node = tell_story(tmp_path / "node", spark, database, seed)
    assert node.checked > 5
    if seed == _SEED:
        assert not (lacking := _IN_IT - set(node.story.done)), lacking
        assert database.value("SELECT max(stream_txns) FROM pg_stat_replication_slots") > 5


@pytest.mark.parametrize(
    ("version", "seed"),
    [
        (18, 10),
        *(in_make_faults(18, seed) for seed in (1, 2, 3, 5, 9, 12, 15)),
        *(in_make_faults(*each) for each in ((17, 4), (16, 11), (15, 7), (14, 13))),
    ],
)
def test_definitions_change_amid(
    tmp_path: Path, spark: Any, publisher: Callable[[int], Database], version: int, seed: int
) -> None:
    """Equal at every cut but for what no message has told yet, or stopped with an error that names
    the change, and equal after what the error says."""
    node = tell_story(tmp_path / "node", spark, publisher(version), seed, definitions=True)
    assert node.checked > 5


@part_of_make_faults
@pytest.mark.parametrize(
    ("version", "seed", "definitions"), [(18, 31, False), (17, 32, True), (18, 33, True)]
)
def test_a_promotion_amid(
    tmp_path: Path, spark: Any, version: int, seed: int, definitions: bool
) -> None:
    """The slot at the standby is behind the node, and transactions that were open are lost."""
    with primary_and_standby(version, _SETTINGS) as (primary, standby):
        database = Database(primary, "postgres")
        node = tell_story(
            tmp_path / "node", spark, database, seed, definitions=definitions, standby=standby
        )
        assert node.checked > 5


@pytest.mark.parametrize("story", _AGAIN)
def test_again(
    tmp_path: Path, spark: Any, publisher: Callable[[int], Database], story: str
) -> None:
    version, seed, steps, *rest = story.split("/")
    kinds = {"definitions", "promotion"}.intersection(rest)
    numbers = ",".join(each for each in rest if each not in kinds).split(",")
    told = (int(seed), int(steps), frozenset(int(number) for number in numbers if number))
    with contextlib.ExitStack() as stack:
        if "promotion" in kinds:
            servers = primary_and_standby(int(version), _SETTINGS)
            primary, standby = stack.enter_context(servers)
            made = Database(primary, "postgres")
        else:
            made, standby = publisher(int(version)), None
        definitions = "definitions" in kinds
        node = tell_story(
            tmp_path / "node", spark, made, *told, definitions=definitions, standby=standby
        )
    print(f"{node.checked} cuts were equal:", dict(node.story.done), node.options, node.stops)
