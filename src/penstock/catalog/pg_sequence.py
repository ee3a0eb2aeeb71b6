"""Sequences from which columns of the lake's tables take values (pg_sequence.h, sequence.c).

In: a connection inside a transaction. Out: frozen ``Sequence`` rows. Each belongs to a column of a
table, is in the table's schema, and is dropped with either. A row has the last value that may have
been given out; ``sequences`` knows which of the values up to it really were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Connection, RowMapping, String, Table, select

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA

_TABLE = Table(
    "penstock_sequence",
    METADATA,
    Column("seqrelid", BigInteger, primary_key=True, autoincrement=False),
    Column("seqname", String(64), nullable=False),
    Column("seqowner", BigInteger, nullable=False),
    Column("seqattname", String(64), nullable=False),
    Column("seqidentity", String(1), nullable=False),
    Column("seqtypid", BigInteger, nullable=False),
    Column("seqstart", BigInteger, nullable=False),
    Column("seqincrement", BigInteger, nullable=False),
    Column("seqmin", BigInteger, nullable=False),
    Column("seqmax", BigInteger, nullable=False),
    Column("seqcache", BigInteger, nullable=False),
    Column("seqcycle", Boolean, nullable=False),
    Column("lastvalue", BigInteger, nullable=False),
    Column("iscalled", Boolean, nullable=False),
)

ALWAYS: Final = "a"
BY_DEFAULT: Final = "d"
"""Values of pg_attribute.attidentity for identity columns; serial ones have ""."""


@dataclass(frozen=True, slots=True)
class SequenceParameters:
    """The options of CREATE SEQUENCE. ``type``: oid of smallint, integer or bigint."""

    type: int
    start: int
    increment: int
    minimum: int
    maximum: int
    cache: int
    cycle: bool


@dataclass(frozen=True, slots=True)
class Sequence(SequenceParameters):
    """A sequence. ``table``: oid of the table whose column ``column`` owns it; ``identity``: the
    column's attidentity. No value after ``last_value`` was given out; ``is_called``: it may itself
    have been."""

    oid: int
    name: str
    table: int
    column: str
    identity: str
    last_value: int
    is_called: bool

    @classmethod
    def of(
        cls,
        oid: int,
        name: str,
        table: int,
        column: str,
        identity: str,
        parameters: SequenceParameters,
    ) -> Sequence:
        """Return a new sequence, from which no value was taken."""
        given = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
        return cls(
            **given,
            oid=oid,
            name=name,
            table=table,
            column=column,
            identity=identity,
            last_value=parameters.start,
            is_called=False,
        )


_COLUMNS: Final[Mapping[str, str]] = {
    "oid": "seqrelid",
    "name": "seqname",
    "table": "seqowner",
    "column": "seqattname",
    "identity": "seqidentity",
    "type": "seqtypid",
    "start": "seqstart",
    "increment": "seqincrement",
    "minimum": "seqmin",
    "maximum": "seqmax",
    "cache": "seqcache",
    "cycle": "seqcycle",
    "last_value": "lastvalue",
    "is_called": "iscalled",
}


class PgSequence:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Sequence, ...]:
        """Return every sequence in the order of oids."""
        rows = self._connection.execute(select(_TABLE).order_by(_TABLE.c.seqrelid))
        return tuple(map(_sequence, rows.mappings()))

    def of_table(self, table: int) -> tuple[Sequence, ...]:
        """Return the sequences of a table's columns."""
        rows = self._connection.execute(
            select(_TABLE).where(_TABLE.c.seqowner == table).order_by(_TABLE.c.seqrelid)
        )
        return tuple(map(_sequence, rows.mappings()))

    def find_oid(self, oid: int) -> Sequence | None:
        """Return the sequence with that oid, or None."""
        query = select(_TABLE).where(_TABLE.c.seqrelid == oid)
        found = self._connection.execute(query).mappings().one_or_none()
        return None if found is None else _sequence(found)

    def create(
        self, name: str, table: int, column: str, identity: str, parameters: SequenceParameters
    ) -> Sequence:
        """Insert a sequence. The caller ensures that no relation of the schema has its name."""
        oid = pg_control.new_oid(self._connection)
        sequence = Sequence.of(oid, name, table, column, identity, parameters)
        self.add(sequence)
        return sequence

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence that already has its oid."""
        self._connection.execute(_TABLE.insert().values(**_values(sequence)))

    def save(self, sequence: Sequence) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        self._connection.execute(
            _TABLE.update().where(_TABLE.c.seqrelid == sequence.oid).values(**_values(sequence))
        )

    def delete_of(self, table: int, column: str | None = None) -> None:
        """Forget the sequences of a table, or of one of its columns."""
        statement = _TABLE.delete().where(_TABLE.c.seqowner == table)
        if column is not None:
            statement = statement.where(_TABLE.c.seqattname == column)
        self._connection.execute(statement)


def _values(sequence: Sequence) -> dict[str, Any]:
    return {column: getattr(sequence, name) for name, column in _COLUMNS.items()}


def _sequence(row: RowMapping) -> Sequence:
    return Sequence(**{name: row[column] for name, column in _COLUMNS.items()})
