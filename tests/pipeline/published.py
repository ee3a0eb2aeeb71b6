"""A published table and a subscriber of it in plain Python, as strict as PostgreSQL's keys are.

In: statements for Spark and for the node. Out: the changes that were sent, after they have been
applied: an update or delete finds exactly one row, an insert finds none with its key, and the rows
are those that delta-rs or Spark read. What is decoded comes from ``Decoding``, as for a stream.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable as DeltaRs
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from end_to_end.compare import query
from penstock.catalog import Catalog, LakeTransaction, Member, Role
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.session_commands import SessionCommands
from penstock.pgoutput.messages import NULL, Delete, Insert, Message, OldTuple, TupleData, Update
from penstock.pgoutput.options import PgoutputOptions
from penstock.relation import Relation, ReplicaIdentity
from penstock.sql import parse
from penstock.walsender.decoding import Decoding, RelationSyncCache
from penstock.walsender.decoding_options import DecodingOptions
from penstock.walsender.feed import Portion
from penstock.walsender.sequencer import Sequencer
from pipeline.cells import Cells, cells_of, kind_of, messages_of, shown, whole, with_columns

_ROLE = Role(10, "lake", superuser=True, login=True, replication=True)


class PublishingLake:
    """A warehouse with its catalog; no server."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.work_mem = 1 << 40
        """logical_decoding_work_mem, in bytes: with less, a table is divided among tasks."""
        self.warehouse = Warehouse(str(folder / "warehouse"), fsync=False)
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.sequencer = Sequencer(self.catalog, self.warehouse)
        self._commands = SessionCommands(self.catalog, self.warehouse, self.sequencer, "lake")

    def close(self) -> None:
        self.catalog.close()

    def sql(self, statement: str) -> None:
        """A statement of the node."""
        self._commands(parse(statement), _ROLE, lambda: None)

    def table(
        self,
        name: str,
        columns: str,
        *,
        key: str | None = "id",
        clauses: str = "",
        **properties: str,
    ) -> PublishedTable:
        """A table that Spark makes, in ``public``."""
        table = PublishedTable(self, name)
        options = ", ".join(f"'delta.{k}' = '{v}'" for k, v in properties.items())
        table.run(
            f"CREATE TABLE {{t}} ({columns}) USING delta {clauses}"
            + (f" TBLPROPERTIES ({options})" if options else "")
        )
        if key is not None:
            self.sql(f"ALTER TABLE {name} ADD PRIMARY KEY ({key})")
        return table


class PublishedTable:
    """One table; ``{t}`` in a statement for Spark stands for it."""

    def __init__(self, lake: PublishingLake, name: str) -> None:
        self.lake = lake
        self.name = name
        self.uri = lake.warehouse.table_uri("public", name)

    def run(self, *statements: str, **names: str) -> None:
        for statement in statements:
            self.lake.spark.sql(statement.format(t=f"delta.`{self.uri}`", **names))

    def follow(
        self,
        publication: str | None = None,
        *,
        binary: bool = False,
        where: str | None = None,
        columns: tuple[str, ...] | None = None,
        by_spark: bool = False,
    ) -> Subscriber:
        """A subscriber that has the table as it is now. ``publication``: what stands behind FOR
        TABLE; ``where`` and ``columns``: the same for who reads the table; ``by_spark``: that
        Spark does."""
        name = f"p_{self.name}"
        self.lake.sql(f"CREATE PUBLICATION {name} FOR TABLE {publication or self.name}")
        return Subscriber(
            self, name, binary=binary, where=where, columns=columns, by_spark=by_spark
        )

    def again(self, subscriber: Subscriber) -> Subscriber:
        """Another subscriber of the same publication, which has the table as it is now."""
        return Subscriber(
            self,
            f"p_{self.name}",
            binary=subscriber.binary,
            where=subscriber.where,
            columns=subscriber.columns,
            by_spark=subscriber.by_spark,
        )


class Subscriber:
    """Rows as cells, by the names that the last Relation message gave."""

    def __init__(
        self,
        table: PublishedTable,
        publication: str,
        *,
        binary: bool,
        where: str | None,
        columns: tuple[str, ...] | None,
        by_spark: bool,
    ) -> None:
        self.table, self.lake = table, table.lake
        self.where, self.binary, self.by_spark = where, binary, by_spark
        self._options = PgoutputOptions(4, (publication,), binary=binary)
        self.lake.sequencer.step(discover=True)
        position = self.lake.sequencer.position()
        self.at = position.lsn
        with self.lake.catalog.read() as t:
            self.oid = t.tables.get("public", table.name).oid
        self.version = position.versions[self.oid]
        self.columns = columns
        self.rows = self.expected()
        self.relations: list[Relation] = []
        self._renamed: dict[str, str] = {}

    # What there is to be

    def expected(self) -> Counter[Cells]:
        return cells_of(self._read(), binary=self.binary)

    def _read(self) -> pa.Table:
        """By delta-rs, which is quick, or by Spark what delta-rs does not know: a table's feature,
        or Spark's INT96 outside of the years 1677 to 2262."""
        if self.where is None and not self.by_spark:
            with contextlib.suppress(DeltaError):
                table = DeltaRs(local_path(self.table.uri), version=self.version)
                rows = query("SELECT * FROM t", t=table)
                return rows if self.columns is None else rows.select(self.columns)
        reader = self.lake.spark.read.format("delta").option("versionAsOf", self.version)
        frame = reader.load(self.table.uri)
        if self.where is not None:
            frame = frame.where(self.where)
        return (frame if self.columns is None else frame.select(*self.columns)).toArrow()

    # Following

    def catch_up(self) -> list[str]:
        """Apply every new transaction and compare; what was sent, such as ``I 1``, in order."""
        self.newest()
        sent: list[str] = []
        with self.lake.catalog.read() as t:
            waiting = t.transactions.after(self.at, 1000)
        for transaction in waiting:
            sent += self._apply(transaction)
            self.at = transaction.end
        self.version = self.newest()
        self.check()
        return sent

    def catch_up_at_once(self) -> list[str]:
        """The same, with everything since the last time as one transaction: a cut."""
        before, self.version = self.version, self.newest()
        with self.lake.catalog.read() as t:
            self.at = t.transactions.end()
        sent = self.range(before, self.version)
        self.check()
        return sent

    def newest(self) -> int:
        """The version of the table up to which its commits are in order."""
        self.lake.sequencer.step()
        with self.lake.catalog.read() as t:
            return t.transactions.versions()[self.oid]

    def rename(self, old: str, new: str) -> None:
        """ALTER TABLE ... RENAME COLUMN at the subscriber."""
        self._renamed[new] = old

    def range(self, from_version: int, to_version: int) -> list[str]:
        member = Member(self.oid, self.table.uri, from_version, to_version)
        with self.lake.catalog.read() as t:
            at = t.transactions.end()  # by the publications of now
        places = at, Lsn(at + 100), Lsn(at + 148)
        cut = LakeTransaction(700, *places, 1_600_000_000_000_000, (member,))
        return self._apply(cut)

    def check(self) -> None:
        expected = self.expected()
        assert self.rows == expected, (self.rows - expected, expected - self.rows)

    def _apply(self, transaction: LakeTransaction) -> list[str]:
        lake = self.lake
        decoding = Decoding(
            lake.spark,
            lake.warehouse,
            lake.catalog,
            RelationSyncCache(lake.catalog, self._options.publication_names, 18),
            DecodingOptions(self._options, streaming=self._options.streaming is not None),
            lambda: lake.work_mem,
        )
        sent: list[str] = []
        touched: Counter[object] = Counter()
        before = self.rows.copy()
        for piece in decoding.changes([transaction]):
            if not isinstance(piece, Portion):
                continue
            (relation,) = piece.relations
            self._relation(relation)
            messages = list(messages_of(piece))
            assert len(messages) == piece.changes
            for message in messages:
                sent.append(self._change(relation, message, touched))
        kinds = list(map(kind_of, sent))
        assert kinds == sorted(kinds, key="DUI".index), f"out of order: {sent}"
        self._check_minimal(before, sent, touched)
        return sent

    def _relation(self, relation: Relation) -> None:
        names = tuple(attribute.name for attribute in relation.attributes)
        if not self.relations or self.relations[-1] != relation:
            if self.relations:  # the subscriber's table has got the new columns, too
                old = [a.name for a in self.relations[-1].attributes]
                sources = [self._renamed.pop(name, name) for name in names]
                self.rows = with_columns(self.rows, old, sources)
            self.relations.append(relation)
        self.columns = names

    def _check_minimal(
        self, before: Counter[Cells], sent: Sequence[str], touched: Counter[object]
    ) -> None:
        """Each key once; of rows without a key no more than the difference."""
        if not self.relations:
            assert not sent
            return
        if not self.relations[-1].key:
            return
        if self.relations[-1].replica_identity is not ReplicaIdentity.FULL:
            assert max(touched.values(), default=1) == 1, touched
            return
        if len(next(iter(before), ())) == len(self.columns or ()) and "U" not in map(kind_of, sent):
            gone, new = before - self.rows, self.rows - before
            assert Counter(map(kind_of, sent)) == +Counter({"D": gone.total(), "I": new.total()})

    def _change(self, relation: Relation, message: Message, touched: Counter[object]) -> str:
        match message:
            case Insert(new=new):
                touched[self._key(relation, new)] += 1
                if relation.key and relation.replica_identity is not ReplicaIdentity.FULL:
                    assert not self._find(relation, new, OldTuple.KEY), f"duplicate: {new}"
                self.rows[whole(new)] += 1
                return f"I {shown(new)}"
            case Delete(old=old, old_kind=kind):
                touched[self._key(relation, old)] += 1
                self._take(relation, old, kind)
                return f"D {shown(old)}"
            case Update(new=new, old=old, old_kind=kind):
                touched[self._key(relation, new)] += 1
                taken = self._take(relation, old or new, kind or OldTuple.KEY)
                assert taken != new, f"nothing changed: {new}"
                self.rows[whole(new)] += 1
                return f"U {shown(new)}" + ("" if old is None else f" was {shown(old)}")
        raise AssertionError(f"unexpected {message}")

    def _key(self, relation: Relation, row: TupleData) -> Cells:
        pairs = zip(relation.attributes, row, strict=True)
        return tuple(cell for attribute, cell in pairs if attribute.key)

    def _find(self, relation: Relation, row: TupleData, kind: OldTuple) -> list[Cells]:
        if kind is OldTuple.ROW:
            return [row] if self.rows[row] else []
        key = self._key(relation, row)
        assert key, "no replica identity"
        assert NULL not in key, f"NULL in a key: {row}"
        return [found for found in self.rows.elements() if self._key(relation, found) == key]

    def _take(self, relation: Relation, row: TupleData, kind: OldTuple) -> Cells:
        found = self._find(relation, row, kind)
        assert len(found) == 1, f"{len(found)} rows for {row} in {self.rows}"
        self.rows[found[0]] -= 1
        self.rows += Counter()
        return found[0]


def vacuum(spark: SparkSession, uri: str, *, hours: int = 0) -> None:
    """VACUUM, whatever the retention of the table."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"VACUUM delta.`{uri}` RETAIN {hours} HOURS")
    finally:
        for name in settings:
            spark.conf.unset(name)
