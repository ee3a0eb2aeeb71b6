"""Make the rows of a table's history, which describe every change of the table.

``fold`` supplies the changes. Their rows in the table's columns are ``Versions``, from which the
rows of the history table are made. Some are complete; others get unchanged TOASTed values when old
rows are located. An UPDATE with an old tuple makes two rows, any other change one.
``lakehouse.history_table`` defines the columns that describe a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import ReplicationConflict, StorageError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.history_table import (
    ABOUT,
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_LSN,
    COMMIT_TIMESTAMP,
    COPY,
    DELETE,
    INSERT,
    POSITION,
    POSTIMAGE,
    PREIMAGE,
    TRUNCATE,
    XID,
)
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_writer import TableWriter
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import DecodedChunk
from penstock.pipeline import changes as row_changes
from penstock.pipeline.changes import Changes
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.job import HERE_SECONDS, run_job
from penstock.pipeline.key_events import CREATE, kind
from penstock.pipeline.lineage import Lineage
from penstock.pipeline.net_change import Incomplete
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, run_rewrite
from penstock.pipeline.routed_writer import Destination
from penstock.pipeline.tasks import Failed, Written
from penstock.pipeline.versions import Versions


@dataclass(frozen=True)
class OldRows:
    """The search for unchanged values in old rows. ``found``: the first events of the old rows'
    keys, in the order of the rows' numbers; ``not_sent``: makes the error for a column whose value
    is in no old row."""

    trace: Callable[[Integers, Mapping[str, Mask]], Lineage]
    found: Integers
    not_sent: Callable[[str], ReplicationConflict]


def versions(changes: Changes, old_rows: OldRows | None = None) -> Versions:
    """Return the rows that ``changes`` made and ended, in order. ``old_rows``: None if every change
    has all of its values. Raises the error that ``not_sent`` makes."""
    count = len(changes)
    updates = changes.operation == row_changes.UPDATE
    both = updates & (changes.old_kind != 0)
    at = np.repeat(np.arange(count), 1 + both)
    begins = np.append(True, at[1:] != at[:-1])[: len(at)]
    pre = both[at] & begins
    of_old = pre | (changes.operation[at] == row_changes.DELETE)
    type = np.select([pre, of_old, updates[at]], [PREIMAGE, DELETE, POSTIMAGE], INSERT)
    given = changes.new if changes.old is None else pa.concat_tables([changes.new, changes.old])
    row = at + np.where(of_old, count, 0)
    sent, old = _cells(changes, old_rows)
    cells = {name: np.where(of_old, row, source[at]) for name, source in sent.items()}
    return Versions(changes.sequence[at], type, given, row, cells, old[at])


def _cells(changes: Changes, old_rows: OldRows | None) -> tuple[Mapping[str, Integers], Integers]:
    """Return, for each column with unchanged values and each change, the change that sent its
    value, or -1; and, for each change, the number of the old row that has the other values."""
    count = len(changes)
    gaps = {name: mask for name, mask in changes.unchanged.items() if mask.any()}
    old = np.full(count, -1, np.int64)
    if not gaps or old_rows is None:
        return {}, old
    asked = np.flatnonzero(np.logical_or.reduce(list(gaps.values())))
    lineage = old_rows.trace(asked, gaps)
    cells = {}
    for name, sent in lineage.sent.items():
        if np.any(kind(lineage.origin[sent < 0]) == CREATE):
            raise old_rows.not_sent(name)
        cells[name] = np.arange(count)
        cells[name][asked] = sent
    old[asked] = np.searchsorted(old_rows.found, lineage.origin)
    return cells, old


@dataclass(frozen=True)
class Stamps:
    """The transactions of a chunk's messages. ``end``, ``time``: end LSN and commit time, in us
    since 1970, of the transaction that is open after the chunk's last commit; ``xid``, ``finish``,
    ``messages``: number and finish LSN of the transaction that is open before the chunk's first
    Begin, and how many of its messages came in earlier chunks."""

    chunk: DecodedChunk
    size: int
    end: Lsn
    time: int
    xid: int = 0
    finish: Lsn = INVALID
    messages: int = 0

    def columns(self, sequence: Integers) -> dict[str, pa.Array]:
        """Return the columns of the history that describe these messages."""
        chunk = self.chunk
        commit = np.searchsorted(chunk.commit_sequence, sequence)
        begin = np.searchsorted(chunk.begin_sequence, sequence, side="right")
        since = np.append(-self.messages, chunk.begin_sequence)[begin]
        return {
            COMMIT_LSN: pa.array(np.append(chunk.end_lsn, int(self.end))[commit]),
            COMMIT_TIMESTAMP: pa.array(np.append(chunk.commit_time, self.time)[commit]),
            XID: pa.array(self.xids(sequence)),
            POSITION: pa.array(sequence - since),
        }

    def xids(self, sequence: Integers) -> Integers:
        """Return the transaction numbers of these messages."""
        begin = np.searchsorted(self.chunk.begin_sequence, sequence, side="right")
        found: Integers = np.append(self.xid, self.chunk.xid)[begin]
        return found

    def finish_lsns(self, sequence: Integers) -> Integers:
        """Return, for each of these messages, the LSN at which the commit record of its transaction
        begins: SKIP takes this LSN."""
        begin = np.searchsorted(self.chunk.begin_sequence, sequence, side="right")
        found: Integers = np.append(int(self.finish), self.chunk.final_lsn)[begin]
        return found

    def transactions(self) -> Integers:
        """Return the numbers of all transactions that have messages in the chunk."""
        every = np.append(self.chunk.xid, self.xid)
        found: Integers = every[every != 0]
        return found

    def last(self) -> tuple[int, Lsn, int]:
        """Return ``xid``, ``finish`` and ``messages`` for the chunk that follows."""
        chunk = self.chunk
        if not len(chunk.begin_sequence):
            return self.xid, self.finish, self.messages + self.size
        since = self.size - int(chunk.begin_sequence[-1])
        return int(chunk.xid[-1]), Lsn(int(chunk.final_lsn[-1])), since


@dataclass(frozen=True)
class HistoryWork:
    """The part of a work that writes to the history of its table. ``first``: the first message that
    the history does not have yet; ``truncate``: the TRUNCATE's message, which precedes all changes.
    """

    table: DeltaTable
    stamps: Stamps
    first: int
    truncate: int | None = None

    def complete(self, made: Versions, max_bytes: int) -> Iterator[pa.Table]:
        """Yield the complete rows in the history's columns, ``max_bytes`` at a time."""
        first = None
        if self.truncate is not None and self.truncate >= self.first:
            first = self._truncate(self.truncate)
        for part in made.take(~made.incomplete & (made.sequence >= self.first)).parts(max_bytes):
            rows = self._rows(part)
            yield rows if first is None else pa.concat_tables([first, rows])
            first = None
        if first is not None:
            yield first

    def incomplete(self, made: Versions, max_bytes: int) -> Iterator[Incomplete]:
        """Yield the rows that need values of old rows, ``max_bytes`` at a time."""
        for part in made.take(self._which_incomplete(made)).parts(max_bytes):
            missing = {name: mask for name, mask in part.missing.items() if mask.any()}
            if missing:
                yield Incomplete(self._rows(part), missing, part.old)

    def incomplete_count(self, made: Versions) -> int:
        """Count the rows that need values of old rows."""
        return int(self._which_incomplete(made).sum())

    def _which_incomplete(self, made: Versions) -> Mask:
        return made.incomplete & (made.sequence >= self.first)

    def destination(self) -> Destination:
        """Return the history as tasks write to it."""
        schema = self.table.schema.arrow()
        nothing = GeneratedColumns(self.table.name)
        columns = tuple(range(len(schema)))
        table = self.table
        return Destination(table.storage, table.uri, schema, columns, nothing, table.layout)

    def _rows(self, made: Versions) -> pa.Table:
        about = self.stamps.columns(made.sequence)
        about[CHANGE_TYPE] = pa.array(CHANGE_TYPES).take(pa.array(made.type))
        return self._table(about, made.rows)

    def _truncate(self, sequence: int) -> pa.Table:
        about = self.stamps.columns(np.array([sequence]))
        return self._table({**about, CHANGE_TYPE: pa.array([CHANGE_TYPES[TRUNCATE]])}, None)

    def _table(self, about: Mapping[str, pa.Array], rows: pa.Table | None) -> pa.Table:
        """Return rows of the history. Columns that its table no longer has are NULL."""
        count = len(about[CHANGE_TYPE])
        columns = []
        for field in self.table.schema.arrow():
            if field.name in ABOUT:
                columns.append(about[field.name].cast(field.type))
            elif rows is not None and field.name in rows.column_names:
                columns.append(rows[field.name])
            else:
                columns.append(pa.nulls(count, field.type))
        return pa.Table.from_arrays(columns, schema=self.table.schema.arrow())


# The rows of a table as the beginning of its history.
#
# For each live row of a table, or of a partitioned table's leaves, at some LSN, a row of the
# history is staged. If the history has rows, a row with type truncate ends them. No row crosses the
# driver. ``subscription.history`` decides when to do this.

_SECONDS_PER_BYTE: Final = 3e-8


def copy_rows(
    spark: Spark,
    tables: Sequence[DeltaTable],
    history: DeltaTable,
    lsn: Lsn,
    time_us: int,
    deleted_at: str | None = None,
) -> None:
    """Stage the copy in one Spark job. ``lsn``: the tables hold everything up to it; ``time_us``:
    now, in us since 1970; ``deleted_at``: the source name of the column that is NULL in live rows,
    if the tables also hold dead rows.

    Raises StorageError; nothing is left behind then.
    """
    schema = history.schema.arrow()
    about = {
        CHANGE_TYPE: CHANGE_TYPES[COPY],
        COMMIT_LSN: int(lsn),
        COMMIT_TIMESTAMP: time_us,
        XID: None,
        POSITION: 1,
    }
    constants = {name: pa.scalar(v, schema.field(name).type) for name, v in about.items()}
    items = [
        (
            file.size * _SECONDS_PER_BYTE,
            RewriteItem(
                table.storage,
                table.uri,
                schema,
                (RewrittenFile.of(file),),
                TARGET_FILE_BYTES,
                constants=constants,
                into=history.uri,
                deleted_at=None if deleted_at is None else table.schema.by_source[deleted_at].name,
                layout=history.layout,
            ),
        )
        for table in tables
        for file in table.files.values()
    ]
    name = f"penstock: history {history.name}"[:200]
    results = run_job(spark, items, run_rewrite, name, here=HERE_SECONDS)
    expected = sum(table.rows for table in tables)
    written = _checked(history, expected, results)
    if history.rows:
        ended = {**constants, CHANGE_TYPE: pa.scalar(CHANGE_TYPES[TRUNCATE])}
        ended[POSITION] = pa.scalar(0, pa.int64())
        columns = [
            pa.repeat(ended[field.name], 1) if field.name in ended else pa.nulls(1, field.type)
            for field in schema
        ]
        row = pa.Table.from_arrays(columns, schema=schema)
        written += TableWriter(history.storage, history.uri, schema, history.layout).write([row])
    history.stage(written=written)


def _checked(
    history: DeltaTable, expected: int, results: Sequence[Written | Failed]
) -> list[WrittenFile]:
    """Return the written files. If they lack rows other than the omitted ones, remove them and
    raise StorageError."""
    written = [file for result in results if isinstance(result, Written) for file in result.files]
    expected -= sum(result.left_out for result in results if isinstance(result, Written))
    failed = [result.error for result in results if isinstance(result, Failed)]
    if not failed and (found := sum(file.rows for file in written)) == expected:
        return written
    for file in written:
        history.storage.remove(f"{history.uri}/{file.path}")
    if failed:
        raise failed[0]
    raise StorageError(
        f'the history of table "{history.name}" got {found} of {expected} rows',
        hint="Data files are damaged: put them back from a copy.",
        sqlstate="XX001",
    )
