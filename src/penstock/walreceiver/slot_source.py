"""A slot as a stream of Spark, ``spark.readStream.format("penstock_slot")``, or as a DataFrame,
``spark.read.format("penstock_slot")``, which peeks at the slot's present changes.

The options name the connection and the slot; the rows are the output of the slot's plugin. The
source reads by SQL functions, from a node's port or from any PostgreSQL. Offsets are LSNs: a batch
contains the transactions whose commits lie between two offsets, and is the same at each reading.
The slot moves once Spark's checkpoint has the batch, so a crash of either side neither loses nor
repeats changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError, UndefinedObject

FORMAT: Final = "penstock_slot"
_PLUGIN: Final = "plugin."
"""The prefix of options for the output plugin."""
_LSN: Final = "lsn"
_COLUMNS: Final = "lsn STRING, xid BIGINT, data {}"
_CONFIRMED: Final = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True)
class SlotOptions:
    """Options of the source. ``conninfo``: for libpq; the query's options show a password in it,
    but not a password in a password file or PGPASSWORD. ``binary``: return data as bytes.
    ``plugin``: names and values for the output plugin."""

    conninfo: str
    slot: str
    binary: bool
    plugin: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SlotOptions:
        """Read Spark's options. Raises ConfigurationError if one is missing or unknown."""
        known = {name.lower(): value for name, value in options.items()}
        plugin = {n: known.pop(n) for n in list(known) if n.startswith(_PLUGIN)}
        found = {name: known.pop(name, "") for name in ("conninfo", "slot", "binary")}
        for name in ("conninfo", "slot"):
            if not found[name]:
                raise ConfigurationError(
                    f'format {FORMAT} needs the option "{name}"',
                    hint='Write .option("conninfo", "host=... dbname=...").option("slot", "...").',
                )
        if known:
            raise ConfigurationError(
                f'unrecognized option of format {FORMAT}: "{min(known)}"',
                hint=f'Options of the output plugin begin with "{_PLUGIN}".',
            )
        return cls(
            found["conninfo"],
            found["slot"],
            found["binary"].lower() in ("true", "on", "1"),
            tuple((name.removeprefix(_PLUGIN), value) for name, value in plugin.items()),
        )

    def __repr__(self) -> str:
        return f"SlotOptions(slot={self.slot!r})"  # without a password

    def connect(self) -> psycopg.Connection[Any]:
        """Open a session. Raises psycopg.OperationalError."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def peek(self, connection: psycopg.Connection[Any], end: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows of the transactions up to ``end``; the slot stays where it is."""
        kind = "binary_changes" if self.binary else "changes"
        words = [word for option in self.plugin for word in option]
        options = [sql.SQL(", {}").format(sql.Literal(word)) for word in words]
        query = sql.SQL(
            "COPY (SELECT lsn, xid::text::bigint, data FROM {}({}, {}, NULL{})) TO STDOUT"
        ).format(
            sql.SQL(f"pg_logical_slot_peek_{kind}"),
            sql.Literal(self.slot),
            sql.Literal(end),
            sql.SQL("").join(options),
        )
        with connection.cursor().copy(query) as copy:
            copy.set_types(["text", "int8", "bytea" if self.binary else "text"])
            yield from copy.rows()


class PenstockSlot(DataSource):
    """The data source. ``spark.dataSource.register(PenstockSlot)`` makes it known to a session."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SlotOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns: LSN, xid, data."""
        return _COLUMNS.format("BINARY" if self._options.binary else "STRING")

    def reader(self, schema: StructType) -> SlotReader:
        """Return the reader of one DataFrame."""
        return SlotReader(self._options)

    def streamReader(self, schema: StructType) -> SlotStreamReader:
        """Return the reader of one query."""
        return SlotStreamReader(self._options)


class SlotRange(InputPartition):
    """The commits from ``start`` on and before ``end``."""

    def __init__(self, start: str, end: str) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class SlotReader(DataSourceReader):
    """The slot's changes up to the end that the WAL had when the DataFrame was loaded (Spark asks
    for partitions then). Each query reads the changes again."""

    def __init__(self, options: SlotOptions) -> None:
        self._options = options

    def partitions(self) -> list[SlotRange]:
        """Return one partition: a slot has one reader."""
        with self._options.connect() as connection:
            return [SlotRange("", _flushed(connection))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Read the rows, in a task. Raises psycopg.Error."""
        assert isinstance(partition, SlotRange)
        with self._options.connect() as connection:
            yield from self._options.peek(connection, partition.end)


class SlotStreamReader(DataSourceStreamReader):
    """A slot read as a stream: offsets on the driver, rows in a task."""

    def __init__(self, options: SlotOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, str]:
        """Return the slot's confirmed LSN. Raises UndefinedObject."""
        with self._options.connect() as connection:
            return {_LSN: self._confirmed(connection)}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return the end of the flushed WAL, up to which slots can be read."""
        with self._options.connect() as connection:
            return {_LSN: _flushed(connection)}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[SlotRange]:
        """Return one partition: a slot has one reader."""
        return [SlotRange(start[_LSN], end[_LSN])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Read the rows of a batch, in a task. Raises psycopg.Error if the slot is in use or the
        plugin raises an error; ConfigurationError if somebody else has moved the slot, so that part
        of the batch may be gone."""
        assert isinstance(partition, SlotRange)
        with self._options.connect() as connection:
            # Spark begins a batch only once the batch before it is in the checkpoint.
            self._advance(connection, partition.start)
            yield from self._options.peek(connection, partition.end)
            self._check_not_beyond(connection, partition.start)

    def commit(self, end: dict[str, str]) -> None:
        """Move the slot to the end of a batch: the checkpoint has it, so nobody reads it again."""
        with self._options.connect() as connection:
            self._advance(connection, end[_LSN])

    def stop(self) -> None:
        """Do nothing: nothing is kept open."""

    def _confirmed(self, connection: psycopg.Connection[Any]) -> str:
        row = connection.execute(_CONFIRMED, (self._options.slot,)).fetchone()
        if row is None:
            raise UndefinedObject(
                f'replication slot "{self._options.slot}" does not exist',
                hint="Make it with pg_create_logical_replication_slot.",
            )
        return str(row[0])

    def _advance(self, connection: psycopg.Connection[Any], lsn: str) -> None:
        behind = connection.execute(
            "SELECT %s::pg_lsn > %s::pg_lsn", (lsn, self._confirmed(connection))
        ).fetchone()
        if behind == (True,):
            connection.execute(
                "SELECT pg_replication_slot_advance(%s, %s)", (self._options.slot, lsn)
            )

    def _check_not_beyond(self, connection: psycopg.Connection[Any], start: str) -> None:
        """Check that the slot has not moved beyond the batch's start. Call it after reading: the
        slot only moves forward, so it was no further while the rows were read."""
        confirmed = self._confirmed(connection)
        moved = connection.execute("SELECT %s::pg_lsn > %s::pg_lsn", (confirmed, start))
        if moved.fetchone() == (True,):
            raise ConfigurationError(
                f'replication slot "{self._options.slot}" is at {confirmed}, and the batch begins '
                f"at {start}: changes of the batch may be gone",
                hint="Nobody but this query may move the slot. Make a slot, and begin again with "
                "another checkpoint and a copy of the tables.",
            )


def _flushed(connection: psycopg.Connection[Any]) -> str:
    """Return the end of the flushed WAL, up to which slots can be read."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    return str(row[0])
