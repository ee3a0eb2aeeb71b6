"""Rows of streamed transactions, written to files before the commit (applyparallelworker.c).

A second thread reads runs of frames of open transactions from disk. It writes their new rows to
data files that no Delta log entry names yet, and finds the old rows that the commit has to remove.
It changes neither tables nor catalog. Until the commit only the frames count: from them the
applying thread does all that this thread could not prepare.

Before a file is written, the mark in its name is noted on the node's disk, where the note stays
until the commit. By the notes, ``remove_orphaned_files`` finds the files of a killed node.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.catalog.pg_subscription import LakeOptions, Subscription
from penstock.errors import PenstockError, ReplicationConflict, StorageError
from penstock.failpoint import AFTER_WRITING_AHEAD, failpoint
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.defaults import draws
from penstock.lakehouse.log import remove_unnamed
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import Storage, write_temporary
from penstock.lakehouse.table_layout import TableLayout
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import ColumnarDecoder, DecodedChunk, MessageChunk
from penstock.pgtypes import find
from penstock.pgtypes.out_of_range import OutOfRange
from penstock.pipeline.apply import write_before_commit
from penstock.pipeline.fold import fold
from penstock.pipeline.net_change import LocalRows, NetChange, OriginDiffers
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.pipeline.tasks import Written
from penstock.relation import Relation
from penstock.sql.builtin.enum_types import known_enums
from penstock.subscription.relation_map import Share, shares
from penstock.subscription.replica_identity import keeps_key
from penstock.subscription.spool import SpooledFrames
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets

log = logging.getLogger(__name__)

_NOTES: Final = "ahead"
_OPEN_END: Final = Lsn((1 << 64) - 1)
"""The assumed end LSN of an open transaction: greater than every table's LSN."""
_IN_MEMORY: Final = 1 << 20
"""Keys of more bytes than this are kept on disk."""


@dataclass(frozen=True)
class StagedTable:
    """The changes of a run to a table, valid while the table has the columns ``schema`` and the
    layout ``layout``. ``written``: files of the new rows, which ``net`` no longer contains;
    ``rows``: the number of changes."""

    target: Target
    relations: tuple[Relation, ...]
    schema: TableSchema
    layout: TableLayout
    net: NetChange
    written: tuple[Written, ...]
    rows: int
    note: Path

    @property
    def work(self) -> TableWork:
        """The work for ``run_batch``."""
        return TableWork(self.target.table, self.net, written=self.written)

    def fits(self, targets: Targets, open_end: Lsn) -> bool:
        """Return whether the changes can be applied now, in a transaction that ends at
        ``open_end``. Stage columns that the publisher has added, as for every change."""
        target = self.target
        if targets.of(self.relations[0].oid) is not target or not _plain(target, targets):
            return False
        if target.marker is not None and target.marker >= open_end:
            return False
        if not all(keeps_key(target.table.schema, relation) for relation in self.relations):
            return False  # from the frames, each row is located by the key valid at its change
        try:
            for relation in self.relations:
                targets.follow(target, relation)
        except PenstockError:
            return False  # applying the frames will raise and report it
        table = target.table
        same = table.schema == self.schema and table.layout == self.layout
        return same and self._is_there()

    def _is_there(self) -> bool:
        """Return whether all files are still there. VACUUM removes files that no Delta log entry
        names, and the transaction may have been open for long."""
        table = self.target.table
        paths = [file.path for written in self.written for file in written.files]
        return all(table.storage.exists(f"{table.uri}/{path}") for path in paths)


@dataclass(frozen=True)
class StagedRun:
    """The changes of a run to all of its tables. ``relations``: the relations that the transaction
    had named by the end of the run."""

    relations: Mapping[int, Relation]
    tables: tuple[StagedTable, ...]

    def remove(self) -> None:
        """Remove the files of a run that is not needed."""
        for table in self.tables:
            table.work.remove_written()
        self.forget_notes()

    def forget_notes(self) -> None:
        """Remove the notes: the files now belong to a table, or are gone."""
        for table in self.tables:
            table.note.unlink(missing_ok=True)


class PendingRun:
    """A run that was given to a ``ParallelApplyWorker``."""

    def __init__(self, future: Future[StagedRun | None]) -> None:
        self._future = future

    def take(self) -> StagedRun | None:
        """Return the work, which then belongs to the caller; wait for work in progress. Return None
        if the work has not begun, or has to wait for the commit."""
        return None if self._future.cancel() else self._future.result()

    def forget(self) -> None:
        """Drop the unneeded run, without waiting for it."""
        if not self._future.cancel():
            self._future.add_done_callback(_remove)


def _remove(future: Future[StagedRun | None]) -> None:
    done = future.result()
    if done is not None:
        done.remove()


def applies_in_parallel(subscription: Subscription) -> bool:
    """Return whether anything of a subscription is written ahead of its commit."""
    # Histories, logical messages and kept deleted rows need the transaction's commit record.
    told = subscription.history or subscription.messages or subscription.soft_delete
    return subscription.streaming == "parallel" and not told


class ParallelApplyWorker:
    """A thread that writes runs of one stream ahead of their commit.

    The receiving thread calls ``begin``; ``spark`` is the cluster's."""

    def __init__(
        self, spark: Spark, targets: Targets, options: ApplyOptions, spool_folder: Path
    ) -> None:
        self._spark = spark
        self._targets = targets
        self._options = options
        self._notes = spool_folder / _NOTES
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="write ahead")

    def begin(self, spooled: SpooledFrames, definitions: Sequence[bytes]) -> PendingRun:
        """Begin to write a run. ``definitions``: Relation messages of the same transaction from
        before the run."""
        return PendingRun(self._pool.submit(self._do, spooled, definitions))

    def close(self) -> None:
        """Cancel runs that have not begun, and wait for the one in progress."""
        self._pool.shutdown(cancel_futures=True)

    def _do(self, spooled: SpooledFrames, definitions: Sequence[bytes]) -> StagedRun | None:
        tables: list[StagedTable] = []
        relations: dict[int, Relation] = {}
        try:
            decoded, relations = self._decode(spooled, definitions)
            if decoded.announced_leaves:
                raise _WaitsForCommit("whether its partitions are there is asked at the commit")
            for share in _shares(decoded, self._targets):
                tables.append(self._table(share, spooled, definitions))
        except _WaitsForCommit as reason:
            log.debug("a streamed run waits for its commit: %s", reason)
        except (PenstockError, OSError) as error:
            log.debug("a streamed run waits for its commit: %s", error)
        except Exception:
            log.exception("a streamed run could not be written ahead of its commit")
        else:
            rows = sum(table.rows for table in tables)
            log.debug("%d changes of an open transaction are written ahead", rows)
            return StagedRun(relations, tuple(tables))
        StagedRun(relations, tuple(tables)).remove()
        return None

    def _table(
        self, share: Share, spooled: SpooledFrames, definitions: Sequence[bytes]
    ) -> StagedTable:
        target = share.target
        schema, table = target.table.schema, target.table
        if not share.changes:
            raise _WaitsForCommit("a TRUNCATE alone")
        if share.restarts or _draws(share):
            # A later TRUNCATE of this transaction may restart the sequence. It would then return
            # the values that were written ahead a second time.
            raise _WaitsForCommit("a sequence gives its values at the commit")
        options = self._targets.subscription
        with known_enums(target.enums):
            net = _fold(share, schema, options)
        if net.incomplete is not None:
            raise _WaitsForCommit("values that were not sent come from old rows")
        mark = f"{uuid.uuid4().hex}-"
        note = self._note(mark, table.uri, table.version)
        try:
            written = write_before_commit(self._spark, TableWork(table, net), self._options, mark)
            failpoint(AFTER_WRITING_AHEAD)
        except BaseException:
            remove_unnamed(table.storage, table.uri, mark, table.version)
            note.unlink()
            raise
        relations = tuple(dict.fromkeys(change.relation for change in share.changes))

        def again() -> NetChange:
            decoded, _ = self._decode(spooled, definitions)
            found = _shares(decoded, self._targets)
            mine = next(each for each in found if each.target is target)
            with known_enums(target.enums):
                return _fold(mine, schema, options)

        keys = self._without_rows(net, again)
        layout = table.layout
        return StagedTable(target, relations, schema, layout, keys, written, share.rows, note)

    def _decode(
        self, spooled: SpooledFrames, definitions: Sequence[bytes]
    ) -> tuple[DecodedChunk, dict[int, Relation]]:
        out_of_range = OutOfRange(self._targets.subscription.out_of_range)
        decoder = ColumnarDecoder(out_of_range.find, find, self._targets.text_readers)
        if definitions:
            decoder.decode(MessageChunk.from_copy_data(list(definitions)))
        decoded = decoder.decode(MessageChunk.from_copy_data(spooled.load()))
        if out_of_range.take():
            raise _WaitsForCommit("values that are out of range are counted at the commit")
        return decoded, decoder.relations

    def _note(self, mark: str, uri: str, version: int) -> Path:
        self._notes.mkdir(parents=True, exist_ok=True)
        note = self._notes / f"{mark}.json"
        content = json.dumps({"mark": mark, "uri": uri, "version": version}).encode()
        write_temporary(note, content, fsync=True).replace(note)
        return note

    def _without_rows(self, net: NetChange, again: Callable[[], NetChange]) -> NetChange:
        """Return the change with only its keys, which are mapped from disk if they are many. If
        rows of the table are missing or in conflict, the frames are folded again."""

        def without(lacking: np.ndarray) -> NetChange:
            whole = again()
            assert whole.without is not None
            return whole.without(lacking)

        def existing(rows: np.ndarray, local: LocalRows) -> NetChange:
            whole = again()
            assert whole.existing is not None
            return whole.existing(rows, local)

        def exists(name: str, rows: np.ndarray, local: LocalRows) -> ReplicationConflict:
            whole = again()
            assert whole.exists is not None
            return whole.exists(name, rows, local)

        def differs(rows: np.ndarray, local: LocalRows) -> OriginDiffers:
            whole = again()
            assert whole.differs is not None
            return whole.differs(rows, local)

        return replace(
            net,
            rows=net.rows.schema.empty_table(),
            removed=self._off_memory(net.removed),
            absent=self._off_memory(net.absent),
            without=None if net.without is None else without,
            exists=None if net.exists is None else exists,
            existing=None if net.existing is None else existing,
            differs=None if net.differs is None else differs,
        )

    def _off_memory(self, keys: pa.Table) -> pa.Table:
        if keys.nbytes < _IN_MEMORY:
            return keys
        path = self._notes / f"{uuid.uuid4()}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, keys.schema) as writer:
            writer.write_table(keys)
        try:
            return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        finally:
            path.unlink()  # mapped pages stay until nobody uses them


class _WaitsForCommit(Exception):
    """The reason why a run has to wait for its commit."""


def _shares(decoded: DecodedChunk, targets: Targets) -> list[Share]:
    """Return the tables' shares of a run. Raise _WaitsForCommit unless each relation belongs to a
    plain target of the same name."""
    named = [change.relation for change in decoded.changes]
    named += [run.relation for run in decoded.unreadable]
    named += [relation for event in decoded.truncates for relation in event.relations]
    for relation in named:
        target = targets.of(relation.oid)
        if target is None or not _plain(target, targets):
            raise _WaitsForCommit(f'"{relation.qualified_name}" is no plain target')
        if target.rel.table_name != relation.table_name:
            raise _WaitsForCommit(f'"{relation.qualified_name}" was renamed')
    if decoded.unreadable:
        raise _WaitsForCommit("a value cannot be represented")
    return list(shares(decoded, targets, _OPEN_END))


def _plain(target: Target, targets: Targets) -> bool:
    # The values of metadata columns are known only at the commit.
    plain = target.partitions is None and not target.table.schema.stamps
    plain = plain and not targets.definitions.labels(target)
    # The commit notes which partitions have changes, and after which TRUNCATE.
    plain = plain and not targets.definitions.has_partitions(target)
    return plain and targets.named(target.rel.table_name) is target


def _draws(share: Share) -> bool:
    """Return whether unpublished columns take values of sequences."""
    drawn = {column.source for column in share.target.table.schema.columns if draws(column)}
    return any(
        drawn.difference(attribute.name for attribute in change.relation.attributes)
        for change in share.changes
    )


def _fold(share: Share, schema: TableSchema, options: LakeOptions) -> NetChange:
    if share.error is not None:
        raise share.error
    return fold(
        share.changes,
        schema,
        truncates=share.truncates,
        from_sequence=share.first,
        options=options,
    )


def remove_orphaned_files(storage: Storage, spool: Path) -> None:
    """Remove the files that a killed node has written and not committed. ``spool``: the spool
    folder of all subscriptions of the node, before it is emptied."""
    for note in spool.glob(f"*/{_NOTES}/*.json"):
        try:
            noted = json.loads(note.read_bytes())
            found = remove_unnamed(storage, noted["uri"], noted["mark"], noted["version"])
        except StorageError as error:
            log.warning("files of a streamed transaction are left to VACUUM: %s", error.message)
        else:
            log.debug("removed %s files of a streamed transaction", found)
