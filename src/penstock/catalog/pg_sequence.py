"""Sequences from which columns of the lake's tables take values (pg_sequence.h, sequence.c).

Each sequence belongs to a column of a table, is in the table's schema, and is dropped with the
column or the table. A row has the last value that may have been given out; ``sequences`` knows the
last value that really was.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final

from sqlalchemy import BigInteger, Boolean, Column, String

from penstock.catalog import pg_control
from penstock.catalog.metadata import StoredTable, TableAccess


@dataclass(frozen=True, slots=True)
class SequenceParameters:
    """The options of CREATE SEQUENCE. ``type``: oid of smallint, integer or bigint."""

    type: Annotated[int, Column("seqtypid", BigInteger, nullable=False)]
    start: Annotated[int, Column("seqstart", BigInteger, nullable=False)]
    increment: Annotated[int, Column("seqincrement", BigInteger, nullable=False)]
    minimum: Annotated[int, Column("seqmin", BigInteger, nullable=False)]
    maximum: Annotated[int, Column("seqmax", BigInteger, nullable=False)]
    cache: Annotated[int, Column("seqcache", BigInteger, nullable=False)]
    cycle: Annotated[bool, Column("seqcycle", Boolean, nullable=False)]


@dataclass(frozen=True, slots=True)
class Sequence(SequenceParameters):
    """A sequence. ``table``: oid of the table whose column ``column`` owns it; ``identity``: the
    column's attidentity, "" for serial. No value after ``last_value`` was given out;
    ``is_called``: ``last_value`` itself may have been."""

    oid: Annotated[int, Column("seqrelid", BigInteger, primary_key=True, autoincrement=False)]
    name: Annotated[str, Column("seqname", String(64), nullable=False)]
    table: Annotated[int, Column("seqowner", BigInteger, nullable=False)]
    column: Annotated[str, Column("seqattname", String(64), nullable=False)]
    identity: Annotated[str, Column("seqidentity", String(1), nullable=False)]
    last_value: Annotated[int, Column("lastvalue", BigInteger, nullable=False)]
    is_called: Annotated[bool, Column("iscalled", Boolean, nullable=False)]

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


_TABLE: Final = StoredTable("penstock_sequence", Sequence)


class PgSequence(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[Sequence, ...]:
        """Return every sequence in the order of oids."""
        return _TABLE.all(self.connection)

    def of_table(self, table: int) -> tuple[Sequence, ...]:
        """Return the sequences of a table's columns."""
        return _TABLE.all(self.connection, _TABLE.c.seqowner == table)

    def find_oid(self, oid: int) -> Sequence | None:
        """Return the sequence with that oid, or None."""
        return _TABLE.find(self.connection, _TABLE.c.seqrelid == oid)

    def create(
        self, name: str, table: int, column: str, identity: str, parameters: SequenceParameters
    ) -> Sequence:
        """Insert a sequence. The caller ensures that no relation of the schema has its name."""
        oid = pg_control.new_oid(self.connection)
        sequence = Sequence.of(oid, name, table, column, identity, parameters)
        self.add(sequence)
        return sequence

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence that already has its oid."""
        _TABLE.insert(self.connection, sequence)

    def save(self, sequence: Sequence) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        _TABLE.update(self.connection, sequence)

    def delete_of(self, table: int, column: str | None = None) -> None:
        """Forget the sequences of a table, or of one of its columns."""
        of_column = () if column is None else (_TABLE.c.seqattname == column,)
        _TABLE.delete(self.connection, _TABLE.c.seqowner == table, *of_column)
