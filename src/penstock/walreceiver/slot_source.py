"""A slot as a stream of Spark: ``spark.readStream.format("penstock_slot")``; or as a DataFrame of
what it has by now, which leaves it where it is: ``spark.read.format("penstock_slot")``.

In: options with the connection and the slot. Out: rows of what the slot's output plugin writes. It
reads by SQL functions, from a node's port or from any PostgreSQL. Offsets are LSNs: a batch is the
transactions whose commits lie from one to the next, the same ones whenever it is read again. A slot
moves when Spark's checkpoint has the batch, so nothing is lost or comes twice, whoever is killed.
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
"""In front of options of the output plugin."""
_LSN: Final = "lsn"
_COLUMNS: Final = "lsn STRING, xid BIGINT, data {}"
_CONFIRMED: Final = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True)
class SlotOptions:
    """``conninfo``: of libpq; a password in it is in the query's options, one in a password file or
    PGPASSWORD is not. ``binary``: data as bytes. ``plugin``: names and values."""

    conninfo: str
    slot: str
    binary: bool
    plugin: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SlotOptions:
        """Raises ConfigurationError: something is missing, or is not known."""
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
        """A session of its own. Raises psycopg.OperationalError."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def peek(self, connection: psycopg.Connection[Any], end: str) -> Iterator[tuple[Any, ...]]:
        """Rows of the transactions up to ``end``; the slot stays where it is."""
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
    """``spark.dataSource.register(PenstockSlot)`` makes the format known to a session."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = SlotOptions.of(options)

    @classmethod
    def name(cls) -> str:
        """The format."""
        return FORMAT

    def schema(self) -> str:
        """LSN, xid, data."""
        return _COLUMNS.format("BINARY" if self._options.binary else "STRING")

    def reader(self, schema: StructType) -> SlotReader:
        """The reader of one DataFrame."""
        return SlotReader(self._options)

    def streamReader(self, schema: StructType) -> SlotStreamReader:
        """The reader of one query."""
        return SlotStreamReader(self._options)


class SlotRange(InputPartition):
    """Commits from ``start`` on, before ``end``."""

    def __init__(self, start: str, end: str) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class SlotReader(DataSourceReader):
    """What the slot has up to where the log ended when the DataFrame was loaded (Spark asks for
    partitions then); each query reads it again."""

    def __init__(self, options: SlotOptions) -> None:
        self._options = options

    def partitions(self) -> list[SlotRange]:
        """One: a slot has one reader."""
        with self._options.connect() as connection:
            return [SlotRange("", _flushed(connection))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """In a task. Raises psycopg.Error."""
        assert isinstance(partition, SlotRange)
        with self._options.connect() as connection:
            yield from self._options.peek(connection, partition.end)


class SlotStreamReader(DataSourceStreamReader):
    """Offsets are read on the driver, rows in a task."""

    def __init__(self, options: SlotOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, str]:
        """Where the slot is. Raises UndefinedObject."""
        with self._options.connect() as connection:
            return {_LSN: self._confirmed(connection)}

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """The end of what is flushed: up to there slots can be read."""
        with self._options.connect() as connection:
            return {_LSN: _flushed(connection)}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[SlotRange]:
        """One: a slot has one reader."""
        return [SlotRange(start[_LSN], end[_LSN])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """In a task. Raises psycopg.Error: the slot is in use, or the plugin refuses; and
        ConfigurationError: somebody else has moved the slot, and some of the batch may be gone."""
        assert isinstance(partition, SlotRange)
        with self._options.connect() as connection:
            # The batch before this one is in the checkpoint, or there would not be this one.
            self._advance(connection, partition.start)
            yield from self._options.peek(connection, partition.end)
            self._check_not_beyond(connection, partition.start)

    def commit(self, end: dict[str, str]) -> None:
        """What the checkpoint has, nobody needs any more."""
        with self._options.connect() as connection:
            self._advance(connection, end[_LSN])

    def stop(self) -> None:
        """Nothing is kept open."""

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
        """After the reading: where the slot is now, it was at most then."""
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
    """Up to there slots can be read."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    return str(row[0])
