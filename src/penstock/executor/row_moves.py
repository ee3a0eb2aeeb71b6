"""UPDATE of a partitioned table whose rows go to other partitions (ExecCrossPartitionUpdate).

In: a change and its table. Out: commits of all partitions that it touches, one transaction to
subscribers; or nothing if no row moves. When rows leave a partition, its commit names the files
that wait in their new partitions (``lakehouse.row_moves``), so that the sequencer can finish a move
that was stopped between two commits. Spark's tasks write the new rows; the driver holds the
positions of the old ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from urllib.parse import unquote

import numpy as np
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.routes import ROUTE, Route
from penstock.executor.row_pairs import differ, old_values, pair_schema, paired_columns
from penstock.executor.rows import Change, delta_table, quoted, serialization_failure
from penstock.failpoint import BEFORE_ARRIVAL, failpoint
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.row_moves import Arrivals, arrive, by_table, departure_mark
from penstock.lakehouse.row_pairs import NEW, OLD, pairs_folder, pairs_mark
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.write_frame import write_frame
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn
from penstock.walsender.sequencer import Sequencer

_SOURCE: Final = "_penstock_source"
"""The column that holds the number of the leaf that a row was in."""
_FILE: Final = "_penstock_file"
_POSITION: Final = "_penstock_position"
APP_ID: Final = "penstock.update"
_UPDATE: Final = "UPDATE"
_MOVE: Final = "MERGE"
"""The commitInfo.operation of a commit that rows leave by: to subscribers it is not all UPDATE."""


@dataclass
class Departures:
    """The contents of one partition's commit. ``gone``: path -> positions; ``stays``: new rows
    that stay in it; ``arrivals``: new rows that go to other partitions."""

    table: DeltaTable
    pairs: Mapping[str, object]
    gone: Mapping[str, BitMap] = field(default_factory=dict)
    stays: Sequence[WrittenFile] = ()
    arrivals: Sequence[Arrivals] = ()


class RowMoves:
    """Move rows between partitions, for all sessions."""

    def __init__(self, warehouse: Warehouse, sequencer: Sequencer) -> None:
        self._warehouse = warehouse
        self._sequencer = sequencer

    def run(
        self,
        routed: Route,
        change: Change,
        columns: Sequence[LakeColumn],
        session: SparkSession,
        *,
        filled: bool,
    ) -> int | None:
        """Return the number of changed rows, or None, having done nothing, if no row moves.
        ``filled``: a subscription fills the table, so that a cut of it may come between the two
        commits of a row that moves.

        Raises PenstockError (23514, 40001), FeatureNotSupported, PySparkException.
        """
        leaves = routed.leaves
        if not leaves:
            return None
        group = str(uuid.uuid4())
        job = _Job(self._warehouse, leaves, change, columns, group)
        rows = routed.routed(job.rows(session)).persist()
        try:
            found = rows.groupBy(_SOURCE, ROUTE).count().collect()
            counts: dict[tuple[int, int], int] = {(row[0], row[1]): row[2] for row in found}
            routed.check(rows, (route for _, route in counts), columns)
            if not counts:
                return 0
            if all(source == route for source, route in counts):
                return None
            if filled:
                raise moves_of_filled()
            departures = job.departures(rows, counts)
        finally:
            rows.unpersist()
        self.commit(departures, leaves, group)
        return sum(counts.values())

    def commit(
        self, departures: Sequence[Departures], leaves: Sequence[LakeTable], group: str
    ) -> None:
        """Commit all departures as one transaction. Rows that have left arrive even after an error.

        Raises PenstockError (40001, 40003) if another writer was first in one of the tables. Rows
        that had left before have arrived.
        """
        uris = {leaf.oid: leaf.uri or "" for leaf in leaves}
        left: list[Arrivals] = []
        done: list[str] = []
        with self._sequencer.one_transaction():
            try:
                for leaf in departures:
                    _depart(leaf, group)
                    done.append(leaf.table.name)
                    left += leaf.arrivals
                failpoint(BEFORE_ARRIVAL)
            except CommitConflict as error:
                raise serialization_failure(error.message, done) from None
            finally:
                for arrivals in by_table(left):
                    arrive(self._warehouse.log_of(uris[arrivals.relation]), arrivals)


def moves_of_filled() -> FeatureNotSupported:
    """Return the error for rows that move in a table that a subscription fills: a cut of the
    subscription may come between the two commits of a row that moves."""
    return FeatureNotSupported(
        "moving a row to another partition by UPDATE is not supported for tables that "
        "a subscription fills",
        hint="Make the change at the publisher.",
    )


def _depart(leaf: Departures, group: str) -> None:
    try:
        leaf.table.stage(written=leaf.stays, deleted=leaf.gone)
        leaf.table.commit(
            app_id=APP_ID,
            operation=_MOVE if leaf.arrivals else _UPDATE,
            user_metadata={**departure_mark(group, leaf.arrivals), **leaf.pairs},
        )
    except BaseException:
        leaf.table.discard()
        raise


class _Job:
    """Read and write the rows of one statement, at the tables' versions of now."""

    def __init__(
        self,
        warehouse: Warehouse,
        leaves: Sequence[LakeTable],
        change: Change,
        columns: Sequence[LakeColumn],
        group: str,
    ) -> None:
        self._group = group
        self._warehouse = warehouse
        self._leaves = leaves
        self._change = change
        self._columns = columns
        storage = warehouse.storage
        self._versions = [newest_version(storage, leaf.uri or "") or 0 for leaf in leaves]
        changed = {name for name, _ in change.settings}
        self._paired = [paired_columns(leaf, columns, changed) for leaf in leaves]

    def rows(self, session: SparkSession) -> DataFrame:
        """Return the changed rows of all leaves, with their new values and the places of the old
        ones."""
        settings = dict(self._change.settings)
        kept = {c.name for paired in self._paired for c in paired}
        values = [
            f"_metadata.file_path AS {_FILE}",
            f"_metadata.row_index AS {_POSITION}",
            *old_values([c for c in self._columns if c.name in kept]),
            *(
                f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(c.delta)}"
                for c in self._columns
            ),
        ]
        return reduce(
            DataFrame.union,
            (
                session.sql(
                    f"SELECT {number} AS {_SOURCE}, {', '.join(values)} FROM {delta_table(leaf)} "
                    f"VERSION AS OF {self._versions[number]}{self._change.condition}"
                )
                for number, leaf in enumerate(self._leaves)
            ),
        )

    def departures(
        self, rows: DataFrame, counts: Mapping[tuple[int, int], int]
    ) -> list[Departures]:
        """Write all new rows. ``counts``: rows by the leaf that they were in and the one that they
        go to."""
        opened = {
            number: self._open(number) for number in sorted({n for two in counts for n in two})
        }
        gone = self._gone(rows, opened)
        found = {}
        for source in sorted({source for source, _ in counts}):
            found[source] = Departures(opened[source], {}, gone[source])
            mine = sum(len(positions) for positions in gone[source].values())
            if mine != sum(count for (s, _), count in counts.items() if s == source):
                raise PenstockError(
                    f'table "{opened[source].name}" has {mine} rows to change where others were'
                )
        for source, target in sorted(counts):
            table = opened[target]
            part = rows.where(f"{_SOURCE} = {source} AND {ROUTE} = {target}")
            schema, storage = table.schema.arrow(), self._warehouse.storage
            files = write_frame(part, storage, table.uri, schema, table.layout)
            written = sum(file.rows for file in files)
            if written != counts[source, target]:
                raise PenstockError(
                    f'{written} rows were written for table "{table.name}" of '
                    f"{counts[source, target]} that were found",
                    hint="Run the statement again: nothing was changed.",
                )
            leaf = found[source]
            if source == target:
                leaf.stays, leaf.pairs = files, self._pairs(part, source)
            else:
                oid = self._leaves[target].oid
                new = Arrivals.of_written(self._group, oid, table.version, files)
                leaf.arrivals = [*leaf.arrivals, new]
        return list(found.values())

    def _open(self, number: int) -> DeltaTable:
        leaf = self._leaves[number]
        storage, store = self._warehouse.storage, self._warehouse.store
        try:
            table = DeltaTable.load(storage, store, leaf.uri or "", leaf.qualified_name)
        except FeatureNotSupported as error:
            raise FeatureNotSupported(
                "moving a row to another partition by UPDATE is not supported",
                detail=error.message,
                hint=error.hint,
            ) from None
        if table is None or table.version != self._versions[number]:
            raise serialization_failure(None)
        return table

    @staticmethod
    def _gone(rows: DataFrame, opened: Mapping[int, DeltaTable]) -> dict[int, dict[str, BitMap]]:
        """Return the positions of the old rows, by leaf and file."""
        paths = {n: {_name(path): path for path in table.files} for n, table in opened.items()}
        positions = rows.groupBy(_SOURCE, _FILE).agg({_POSITION: "collect_list"}).toArrow()
        found: dict[int, dict[str, BitMap]] = {}
        for source, uri, here in zip(*positions.columns, strict=True):
            path = paths[source.as_py()][_name(uri.as_py())]
            rows_of_file = here.values.to_numpy().astype(np.uint32)
            found.setdefault(source.as_py(), {})[path] = BitMap(rows_of_file)
        return found

    def _pairs(self, rows: DataFrame, number: int) -> Mapping[str, object]:
        """Return user metadata that tells which new rows of a leaf were which old ones."""
        columns = self._paired[number]
        if not columns:
            return {}
        names = [
            *(quoted(OLD + c.name) for c in columns),
            *(f"{quoted(c.delta)} AS {quoted(NEW + c.name)}" for c in columns),
        ]
        pairs = rows.selectExpr(*names).where(differ(columns))
        folder = pairs_folder(self._leaves[number].uri or "")
        files = write_frame(pairs, self._warehouse.storage, folder, pair_schema(columns))
        return pairs_mark(self._versions[number], files)


def _name(uri: str) -> str:
    """Return the name of a data file, which no other file of its table has."""
    return unquote(uri).rpartition("/")[2]
