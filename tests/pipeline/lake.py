"""Real Delta tables for tests: a publisher's messages applied to a table, read back by delta-rs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable as DeltaRs
from pyspark.sql import SparkSession

from end_to_end.compare import query
from penstock.attribute import Attribute
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.apply import TableOutcome, run_batch
from penstock.pipeline.fold import fold
from penstock.pipeline.table_work import ApplyOptions, TableWork
from pipeline.history import TEXT, Publisher, Row, batches, multiset, record_batch

APP = "pg_16384"


@dataclass
class Lake:
    """A warehouse whose tables follow publishers."""

    spark: SparkSession
    folder: Path
    options: ApplyOptions = field(default_factory=ApplyOptions)
    lsn: int = 0

    def __post_init__(self) -> None:
        self.warehouse = Warehouse(str(self.folder), fsync=False)

    def create(self, publisher: Publisher, name: str = "t") -> DeltaTable:
        columns = tuple(Column(n, Attribute(n, TEXT), type) for n, type in publisher.types.items())
        return self.warehouse.create("public", name, TableSchema(columns, publisher.key))

    def stage(
        self, *pairs: tuple[DeltaTable, Publisher], check_absent: bool = True
    ) -> Sequence[TableOutcome]:
        """What the publishers have sent since the last time, in one job."""
        works = []
        for table, publisher in pairs:
            changes, truncates = batches(publisher.take_messages(), publisher.types)
            net = fold(changes, table.schema, truncates=truncates)
            works.append(TableWork(table, net, check_absent))
        return run_batch(self.spark, works, self.options)

    def commit(self, table: DeltaTable) -> int:
        self.lsn += 1
        return table.commit(app_id=APP, version_marker=self.lsn, operation="REPLICATION")

    def follow(self, table: DeltaTable, publisher: Publisher, check_absent: bool = True) -> None:
        """Stage, commit, compare."""
        self.stage((table, publisher), check_absent=check_absent)
        self.commit(table)
        self.check(table, publisher)

    def check(self, table: DeltaTable, publisher: Publisher) -> None:
        """delta-rs reads the newest version and finds the publisher's rows."""
        rows = record_batch(publisher.rows, list(publisher.types), publisher.types).to_pylist()
        assert multiset(self.read(table)) == multiset(rows)

    def read(self, table: DeltaTable) -> list[Row]:
        rows: list[Row] = query("SELECT * FROM t", t=DeltaRs(local_path(table.uri))).to_pylist()
        return rows

    def data_files(self, table: DeltaTable) -> set[str]:
        """Names of the Parquet files in the table's folder, whether in the log or not."""
        return {path.name for path in Path(table.uri.removeprefix("file://")).glob("*.parquet")}
