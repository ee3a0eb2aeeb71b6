"""What a workload gets: how large it shall be, servers, and both sides for what it replicates.

In: the command line's sizes, and where the servers and the node are. Out: subscribers; the sides'
rows and sums compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from budget import Budget
from figure import Figure
from native import NativeSubscriber
from penstock.embedded import EmbeddedPostgres
from penstock_node import BenchNode, PenstockSubscriber
from progress import say
from servers import Server
from side import Side
from subject import Checksum, Subject


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of ``make bench``; each is an option of the same name."""

    rows: int = field(default=5_000_000, metadata={"help": "of pgbench_accounts"})
    updates: int = field(default=1_000_000, metadata={"help": "updates of random accounts"})
    inserts: int = field(default=500_000, metadata={"help": "rows of each backlog of inserts"})
    tpcb: int = field(default=100_000, metadata={"help": "transactions of the TPC-B backlog"})
    uuid_updates: int = field(default=100_000, metadata={"help": "updates by uuid keys"})
    small_rows: int = field(default=500_000, metadata={"help": "of the small table of uuid keys"})
    big_rows: int = field(default=5_000_000, metadata={"help": "of the big table of uuid keys"})
    burst: int = field(default=1000, metadata={"help": "transactions of a burst by uuid keys"})
    bursts: int = field(default=5, metadata={"help": "how many (median)"})
    taxi_rows: int = field(default=2_000_000, metadata={"help": "of taxi, 19 columns"})
    lineitem_rows: int = field(default=2_000_000, metadata={"help": "of lineitem, 16 columns"})
    wide_rows: int = field(default=300_000, metadata={"help": "of wide, 20 columns"})
    wide_updates: int = field(default=200_000, metadata={"help": "updates of one column of wide"})
    wide_inserts: int = field(default=100_000, metadata={"help": "rows inserted into wide"})
    ten_changes: int = field(default=200_000, metadata={"help": "transactions over ten tables"})
    changes: int = field(default=1_000_000, metadata={"help": "changes of the published stream"})
    transactions: int = field(default=20, metadata={"help": "in which they come"})
    seconds: float = field(default=45.0, metadata={"help": "how long steady rates last"})
    repeat: int = field(default=3, metadata={"help": "runs of copies and backlogs (median)"})


QUICK = Sizes(
    rows=300_000,
    updates=100_000,
    inserts=100_000,
    tpcb=10_000,
    uuid_updates=20_000,
    small_rows=100_000,
    big_rows=300_000,
    bursts=3,
    taxi_rows=200_000,
    lineitem_rows=200_000,
    wide_rows=50_000,
    wide_updates=20_000,
    wide_inserts=20_000,
    ten_changes=20_000,
    changes=100_000,
    seconds=5.0,
    repeat=1,
)
"""Of ``make bench-quick``."""

_SHOWN: Final = 12
"""Numbers of a line, where all are equal."""

Sides = tuple[Side, Side]
"""The stock subscriber and ours."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``equal``: all sides had the same rows and sums at the end."""

    figures: Sequence[Figure]
    equal: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """Two subscribers of one publisher: a stock PostgreSQL and a node."""

    sizes: Sizes
    budget: Budget
    cluster: EmbeddedPostgres
    publisher: Server
    subscriber: Server
    running: BenchNode

    @contextmanager
    def subject(self, subject: Subject) -> Iterator[None]:
        """Its tables and publication, while the block lasts."""
        subject.publish(self.publisher)
        subject.create_empty(self.subscriber)
        self.publisher.execute("CHECKPOINT")
        yield
        subject.drop(self.publisher, self.subscriber)

    def sides(self, subject: Subject, *, binary: bool = False) -> Sides:
        return (
            NativeSubscriber(self.publisher, self.subscriber, subject, binary=binary),
            PenstockSubscriber(self.running, subject, binary=binary),
        )

    @contextmanager
    def subscribed(self, subject: Subject, *, binary: bool = False) -> Iterator[Sides]:
        """Both have copied it and are disabled; dropped behind the block."""
        native, ours = self.sides(subject, binary=binary)
        for side in (native, ours):
            side.copy()
            side.disable()
        yield native, ours
        native.drop()
        ours.drop()

    def equal(self, subject: Subject, sides: Sides) -> bool:
        """Whether all three have the same rows and sums; prints them. Both sides have caught up."""
        sums = {"publisher": subject.checksum(self.publisher)}
        for side in sides:
            sums[side.name] = side.checksum()
        return compared(subject.name, sums)


def compared(what: str, sums: dict[str, Checksum]) -> bool:
    """Whether they are equal; prints them."""
    equal = len(set(sums.values())) == 1
    lines = [f"{what}: {'all sides are equal' if equal else 'THE SIDES DIFFER'} (rows, sums)"]
    for name, values in sums.items():
        shown = values if len(values) <= _SHOWN or not equal else (*values[:_SHOWN], "...")
        lines.append(f"  {name:<11} {'  '.join(map(str, shown))}")
    say("\n".join(lines))
    return equal
