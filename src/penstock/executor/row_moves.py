"""UPDATE by Spark that moves rows to other partitions of a table (ExecCrossPartitionUpdate).

All partitions that the UPDATE touches are committed as the tables of a transaction block: all or
none, and one transaction to subscribers. If no row moves, nothing is committed here. Spark's tasks
write the new rows; the driver holds the positions of the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final
from urllib.parse import unquote

import numpy as np
from pyroaring import BitMap
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.block import LakeBlock
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.routes import ROUTE, OpenTable, Route
from penstock.executor.row_pairs import differ, old_values, pair_schema, paired_columns
from penstock.executor.rows import Change, delta_table, quoted, serialization_failure
from penstock.lakehouse.change import INSERT, MOVE
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.row_pairs import NEW, OLD, pairs_folder
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.write_frame import write_frame
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn

_SOURCE: Final = "_penstock_source"
"""The column that holds the number of the leaf that a row was in."""
_FILE: Final = "_penstock_file"
_POSITION: Final = "_penstock_position"


class RowMoves:
    """Move rows between partitions, for all sessions."""

    def __init__(self, warehouse: Warehouse, blocks: CommitBlocks) -> None:
        self._warehouse = warehouse
        self._blocks = blocks

    def run(
        self,
        routed: Route,
        change: Change,
        columns: Sequence[LakeColumn],
        session: SparkSession,
        *,
        filled: bool,
    ) -> int | None:
        """Return the number of changed rows. If no row moves, do nothing and return None.
        ``filled``: a subscription fills the table, so one of its cuts may come between the two
        commits of a row that moves.

        Raises PenstockError (23514; 40001 if others were first at one of the rows),
        FeatureNotSupported, PySparkException.
        """
        if not routed.leaves:
            return None
        job = _Job(self._warehouse, routed.leaves, change, columns)
        rows = routed.routed(job.rows(session)).persist()
        block = LakeBlock(self._warehouse)
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
            job.stage(rows, counts, block)
            self._blocks.commit(block, alone=True)
        except CommitConflict as error:
            raise serialization_failure(error.message) from None
        finally:
            rows.unpersist()
            block.end()
        return sum(counts.values())


def moves_of_filled() -> FeatureNotSupported:
    """Return the error for rows that move in a table that a subscription fills: a cut of the
    subscription may come between the two commits of a row that moves."""
    return FeatureNotSupported(
        "moving a row to another partition by UPDATE is not supported for tables that "
        "a subscription fills",
        hint="Make the change at the publisher.",
    )


class _Job:
    """Read and write the rows of one statement, at the tables' newest versions."""

    def __init__(
        self,
        warehouse: Warehouse,
        leaves: Sequence[LakeTable],
        change: Change,
        columns: Sequence[LakeColumn],
    ) -> None:
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

    def stage(
        self, rows: DataFrame, counts: Mapping[tuple[int, int], int], block: LakeBlock
    ) -> None:
        """Write all new rows and stage the changes of all leaves. ``counts``: the number of rows by
        old and new leaf."""
        opened = {n: self._open(n, block) for n in sorted({n for two in counts for n in two})}
        gone = self._gone(rows, opened)
        written = {two: self._write(rows, two, opened, counts[two]) for two in sorted(counts)}
        for source in sorted({source for source, _ in counts}):
            mine = sum(len(positions) for positions in gone[source].values())
            if mine != sum(count for (s, _), count in counts.items() if s == source):
                raise PenstockError(
                    f'table "{opened[source].name}" has {mine} rows to change where others were'
                )
            kind = MOVE if any(s == source != to for s, to in counts) else self._change.kind
            stays = written.pop((source, source), [])
            pairs = self._pairs(rows, source) if stays else []
            block.stage(self._leaves[source], kind, gone[source], stays, pairs)
        for (_, target), files in written.items():
            block.stage(self._leaves[target], INSERT, {}, files)

    def _write(
        self,
        rows: DataFrame,
        two: tuple[int, int],
        opened: Mapping[int, OpenTable],
        count: int,
    ) -> list[WrittenFile]:
        """Write the new rows that were in the first leaf and go to the second."""
        table = opened[two[1]]
        schema, storage = table.schema.arrow(), self._warehouse.storage
        files = write_frame(_part(rows, two), storage, table.uri, schema, table.state.layout)
        written = sum(file.rows for file in files)
        if written != count:
            raise PenstockError(
                f'{written} rows were written for table "{table.name}" of {count} that were found',
                hint="Run the statement again: nothing was changed.",
            )
        return files

    def _open(self, number: int, block: LakeBlock) -> OpenTable:
        try:
            return block.open(self._leaves[number], self._versions[number])
        except FeatureNotSupported as error:
            raise FeatureNotSupported(
                "moving a row to another partition by UPDATE is not supported",
                detail=error.message,
                hint=error.hint,
            ) from None

    @staticmethod
    def _gone(rows: DataFrame, opened: Mapping[int, OpenTable]) -> dict[int, dict[str, BitMap]]:
        """Return the positions of the old rows, by leaf and file."""
        paths = {
            n: {_name(path): path for path in table.state.files} for n, table in opened.items()
        }
        positions = rows.groupBy(_SOURCE, _FILE).agg({_POSITION: "collect_list"}).toArrow()
        found: dict[int, dict[str, BitMap]] = {}
        for source, uri, here in zip(*positions.columns, strict=True):
            path = paths[source.as_py()][_name(uri.as_py())]
            rows_of_file = here.values.to_numpy().astype(np.uint32)
            found.setdefault(source.as_py(), {})[path] = BitMap(rows_of_file)
        return found

    def _pairs(self, rows: DataFrame, number: int) -> list[WrittenFile]:
        """Write files that map new rows of a leaf to old ones."""
        columns = self._paired[number]
        if not columns:
            return []
        names = [
            *(quoted(OLD + c.name) for c in columns),
            *(f"{quoted(c.delta)} AS {quoted(NEW + c.name)}" for c in columns),
        ]
        pairs = _part(rows, (number, number)).selectExpr(*names).where(differ(columns))
        folder = pairs_folder(self._leaves[number].uri or "")
        return write_frame(pairs, self._warehouse.storage, folder, pair_schema(columns))


def _part(rows: DataFrame, two: tuple[int, int]) -> DataFrame:
    return rows.where(f"{_SOURCE} = {two[0]} AND {ROUTE} = {two[1]}")


def _name(uri: str) -> str:
    """Return the name of a data file, which no other file of its table has."""
    return unquote(uri).rpartition("/")[2]
