"""Random histories of a stock server, and a node that is disturbed meanwhile: equal at every cut.

``story`` makes the history and knows what each table held at each position. Here is what happens to
the node, and the comparison. Not hypothesis: a step costs a server and a node some tens of
milliseconds, and its shrinking some hundreds of stories. A failed story prints its steps and how to
run it again, whole, shorter, or without some of its steps, which leaves the others as they are::

    PENSTOCK_STORY=18/3/40/7,12 python -m pytest -n0 tests/end_to_end/test_stateful.py -k again

is seed 3 on PostgreSQL 18, 40 steps, without the 7th and the 12th. Several, with blanks between.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from end_to_end.compare import Row, difference, live_rows
from end_to_end.local_node import LocalNode
from end_to_end.story import Story
from faults.heavy import in_make_faults
from fix_postgres import Database, _database
from penstock import Node
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import PublisherError
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_STEPS: Final = 90
_AGAIN: Final = os.environ.get("PENSTOCK_STORY", "").split()


_SEED: Final = 7
"""Finds each of these, put in on purpose: subtransactions of streamed transactions that were rolled
back and are not cut out, a TOASTed value lost by a later UPDATE of the same batch, a TRUNCATE ahead
of the changes before it, a transaction applied at its PREPARE, a cut ahead of a table's commit."""
_IN_IT: Final = frozenset(
    ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "key", "swap", "new TOAST", "ROLLBACK TO", "PREPARE",
     "COMMIT PREPARED", "ALTER", "ADD COLUMN", "restart", "enable", "skip", "REFRESH")
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    """A server with two-phase commit that streams early, and does nothing by itself."""
    settings: dict[str, str | int | bool] = {
        "max_prepared_transactions": 20,
        "logical_decoding_work_mem": "64kB",
        "autovacuum": False,
        "wal_writer_delay": "20ms",
    }
    with contextlib.ExitStack() as stack:
        servers: dict[int, EmbeddedPostgres] = {}

        def of(version: int) -> EmbeddedPostgres:
            if version not in servers:
                servers[version] = stack.enter_context(EmbeddedPostgres(version, settings=settings))
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


class Disturbed:
    """A node that follows a story, and what happens to it. ``checked``: cuts that were equal."""

    def __init__(self, node: LocalNode, story: Story, spark: Any) -> None:
        self.local = node
        self.story = story
        self.spark = spark
        self.enabled = True
        self.checked = 0
        self._last: Cut | None = None
        self._read: dict[tuple[str, int], Counter[Row]] = {}

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
        target = int(self.story.database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

        def reached(status: SubscriptionStatus) -> bool:
            return status.cut_lsn is not None and status.cut_lsn >= target

        self.local.wait_for("s", f"a cut at {target} or after", reached, 90)

    def check(self) -> None:
        """Every cut since the last time holds, in every table, what the publisher had there."""
        cuts = self.local.node.cuts("s")
        for cut in cuts:
            if self._last is not None and cut.cut_time <= self._last.cut_time:
                continue
            wrong = self._unequal(cut)
            assert not wrong, f"{wrong}\n{self.how_to_run_it_again()}"
            lost = set() if self._last is None else set(self._last.tables) - set(cut.tables)
            assert not lost, f"{lost} left the cuts\n{self.how_to_run_it_again()}"
            self._last, self.checked = cut, self.checked + 1

    def _unequal(self, cut: Cut) -> str:
        """How a cut differs from the state at its position; empty where it does not."""
        texts = []
        for state in self.story.candidates(cut.lsn):
            found = [
                str(lack)
                for name, pin in _tables(cut)
                if (lack := _difference(name, state.tables[name], self._rows(pin.uri, pin.version)))
            ]
            if not found:
                return ""
            versions = {name: pin.version for (_, name), pin in cut.tables.items()}
            texts.append(
                f"the cut at {cut.lsn} is not what step {state.step} left (positions"
                f" {state.before} to {state.after}; versions {versions}):\n" + "\n".join(found)
            )
        return "\n".join(texts)

    def _rows(self, uri: str, version: int) -> Counter[Row]:
        if (uri, version) not in self._read:
            self._read[uri, version] = Counter(live_rows(uri, version))
        return self._read[uri, version]

    def how_to_run_it_again(self) -> str:
        story = self.story
        name = f"{story.database.server.version}/{story.seed}/{story.number}"
        return "\n".join([*story.told, f"Run it again: PENSTOCK_STORY={name}"])


def _tables(cut: Cut) -> Iterator[tuple[str, CutTable]]:
    """Without the histories, of which ``test_history`` tells."""
    for (_, name), pin in cut.tables.items():
        if not name.endswith("__history"):
            yield name, pin


def _difference(name: str, wanted: Counter[Row], found: Counter[Row]) -> str:
    """A column that was added after the node's last change of the table is not there yet."""
    width = len(next(iter(wanted), ()))
    padded: Counter[Row] = Counter()
    for row, count in found.items():
        padded[row + (None,) * (width - len(row))] += count
    if padded == wanted:
        return ""
    return str(difference(name, [*wanted.elements()], [*padded.elements()]))


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
) -> Disturbed:
    """A story from its beginning to its end, with all cuts checked."""
    dice = random.Random(seed)
    if database.server.version >= 16 and dice.random() < 0.6:
        database.execute(
            f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = 'immediate'"
        )
    two_phase = seed % 2 == 1 and database.server.version >= 15
    story = Story(database, seed, two_phase=two_phase)
    with LocalNode(folder, spark) as local:
        node = Disturbed(local, story, spark)
        node.restart(dice)
        node.subscribe()
        for number in range(1, steps + 1):
            story.number = number
            if number not in without:
                _step(story, node)
        story.number += 1
        story.end()
        node.enable()
        node.late()
        try:
            local.caught_up("s", database)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{node.how_to_run_it_again()}") from None
        node.check()
        last = local.cut()
        targets = {target for table in story.tables for target in table.targets}
        assert {name for name, _ in _tables(last)} == targets
        return node


def _step(story: Story, node: Disturbed) -> None:
    rng = story.rng()
    kinds = {"writer": 80, "column": 3, "node": 9}
    if story.prepared:
        kinds["prepared"] = 15
    (kind,) = rng.choices([*kinds], [*kinds.values()])
    match kind:
        case "writer":
            rng.choice(story.writers).step(rng)
        case "prepared":
            story.end_prepared(rng)
        case "column":
            story.add_column(rng)
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


@pytest.mark.parametrize("story", _AGAIN)
def test_again(
    tmp_path: Path, spark: Any, publisher: Callable[[int], Database], story: str
) -> None:
    version, seed, steps, *rest = story.split("/")
    without = frozenset(int(number) for number in ",".join(rest).split(",") if number)
    told = (int(seed), int(steps), without)
    node = tell_story(tmp_path / "node", spark, publisher(int(version)), *told)
    print(f"{node.checked} cuts were equal:", dict(node.story.done))
