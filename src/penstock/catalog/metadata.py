"""The common parts of the state store's tables: their list, a column type, rows as records.

A table is written once, as the frozen dataclass of its rows. A stored field is annotated with its
column. A field with several columns is annotated with them and the ``ColumnForm`` of its value::

    @dataclass(frozen=True, slots=True)
    class Namespace:
        oid: Annotated[int, Column("oid", BigInteger, primary_key=True)]
        name: Annotated[str, Column("nspname", String(64), nullable=False)]

    _TABLE = StoredTable("penstock_namespace", Namespace)

A column that is added later is NULL in the rows that an older version has written. The field then
has its default, or the value of ``Null``.

Tables bear the prefix ``penstock_``, because a PostgreSQL that keeps the state has catalogs of its
own under the same names.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar, get_type_hints

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Float,
    MetaData,
    Result,
    String,
    Table,
    Text,
    select,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from penstock.lsn import Lsn

METADATA = MetaData()


class LsnColumn(TypeDecorator[Lsn]):
    """An LSN as a signed 64-bit number. That suffices for 8 EiB of WAL; later LSNs are refused
    (0A000)."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> int | None:
        return None if value is None else Lsn(value).signed()

    def process_result_value(self, value: Any, dialect: Dialect) -> Lsn | None:
        return None if value is None else Lsn(value)


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The form of a field's value in its columns.

    ``write`` returns the column's value, or a tuple of values for several columns; ``read`` takes
    these values, and then those of the columns ``also``, which belong to other fields. Neither is
    called for None: then the first column is NULL.
    """

    write: Callable[[Any], Any]
    read: Callable[..., Any]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Null:
    """The value of a field whose column is NULL, if it is not the field's default."""

    value: Any


LIST: Final = ColumnForm(
    lambda values: json.dumps(values, ensure_ascii=False), lambda text: tuple(json.loads(text))
)
"""A tuple as a JSON array."""


def enum_form(kind: type[Enum]) -> ColumnForm:
    """Return the form of an enum's members: their values."""
    return ColumnForm(lambda member: member.value, kind)


Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    columns: tuple[str, ...]
    form: ColumnForm | None
    null: Any

    def values(self, value: Any) -> Iterable[tuple[str, Any]]:
        if self.form is not None and value is not None:
            value = self.form.write(value)
        if len(self.columns) == 1:
            return ((self.columns[0], value),)
        return zip(self.columns, value or (None,) * len(self.columns), strict=True)


class StoredTable(Generic[Record]):
    """A table of the state store and the record of its rows."""

    def __init__(self, name: str, record: type[Record], *more: SchemaItem) -> None:
        """``more``: columns that are not part of the record, and constraints."""
        self._record = record
        self._fields: list[_Field] = []
        self._readers: dict[tuple[str, ...], Callable[[Sequence[Any]], Record]] = {}
        columns: list[Column[Any]] = []
        hints = get_type_hints(record, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(record)}  # type: ignore[arg-type]
        # A record's own columns come before those of its base classes.
        names = dict.fromkeys(
            name for kind in record.__mro__ for name in inspect.get_annotations(kind)
        )
        for field in (fields[name] for name in names if name in fields):
            told = getattr(hints[field.name], "__metadata__", ())
            own = [item for item in told if isinstance(item, Column)]
            own += next((item for item in told if isinstance(item, tuple)), ())
            if not own:
                continue
            default = None if field.default is dataclasses.MISSING else field.default
            null = next((item.value for item in told if isinstance(item, Null)), default)
            form = next((item for item in told if isinstance(item, ColumnForm)), None)
            in_table = tuple(column.name for column in own)
            self._fields.append(_Field(field.name, in_table, form, null))
            columns += own
        self.table = Table(name, METADATA, *columns, *more)
        self.c = self.table.c

    def values(self, record: Record) -> dict[str, Any]:
        """Return the columns' values for a record."""
        found: dict[str, Any] = {}
        for field in self._fields:
            found.update(field.values(getattr(record, field.name)))
        return found

    def record(self, row: Mapping[str, Any]) -> Record:
        """Return the record of a row, given by the names of its columns."""
        return self._reader(tuple(row))(tuple(row.values()))

    def records(self, result: Result[Any]) -> tuple[Record, ...]:
        """Return the records of all rows."""
        return tuple(map(self._reader(tuple(result.keys())), result))

    def one(self, result: Result[Any]) -> Record | None:
        """Return the record of the only row, None if there is none."""
        row = result.one_or_none()
        return None if row is None else self._reader(tuple(result.keys()))(row)

    def _reader(self, columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Record]:
        """Return a function from a row of these columns to its record."""
        known = self._readers.get(columns)
        if known is None:
            known = self._readers[columns] = self._new_reader(columns)
        return known

    def _new_reader(self, columns: tuple[str, ...]) -> Callable[[Sequence[Any]], Record]:
        record, at = self._record, {name: index for index, name in enumerate(columns)}
        steps = []
        for field in self._fields:
            first, *more = field.columns
            read, also = (None, ()) if field.form is None else (field.form.read, field.form.also)
            others = [at[name] for name in (*more, *also)] if first in at else []
            steps.append((field.name, at.get(first), read, others, field.null))

        def made(row: Sequence[Any]) -> Record:
            values = {}
            for name, index, read, others, null in steps:
                value = None if index is None else row[index]
                if value is None:
                    values[name] = null
                elif read is None:
                    values[name] = value
                else:
                    values[name] = read(value, *[row[other] for other in others])
            return record(**values)

        return made

    def all(
        self,
        connection: Connection,
        *where: ColumnElement[bool],
        order_by: Iterable[ColumnElement[Any]] = (),
    ) -> tuple[Record, ...]:
        """Return the records for which all conditions hold, in the order of the primary key if no
        other is given."""
        order = tuple(order_by) or tuple(self.table.primary_key)
        return self.records(connection.execute(select(self.table).where(*where).order_by(*order)))

    def find(self, connection: Connection, *where: ColumnElement[bool]) -> Record | None:
        """Return the only record for which all conditions hold, or None."""
        return self.one(connection.execute(select(self.table).where(*where)))

    def insert(self, connection: Connection, *records: Record, **more: Any) -> None:
        """Insert records. ``more``: values of the other columns."""
        if records:
            rows = [self.values(record) | more for record in records]
            connection.execute(self.table.insert(), rows)

    def update(self, connection: Connection, record: Record, *where: ColumnElement[bool]) -> bool:
        """Write a changed record back to the row with its primary key; False if it is gone."""
        values = self.values(record)
        same = [column == values[column.name] for column in self.table.primary_key]
        change = self.table.update().where(*same, *where).values(**values)
        return connection.execute(change).rowcount > 0

    def delete(self, connection: Connection, *where: ColumnElement[bool]) -> None:
        """Delete the rows for which all conditions hold."""
        connection.execute(self.table.delete().where(*where))


class TableAccess:
    """A table of the state store, or several, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection


@dataclass(frozen=True, slots=True)
class RecordedError:
    """An error as it is recorded. ``time``: seconds since 1970."""

    message: str
    detail: str | None
    hint: str | None
    sqlstate: str
    time: float


def error_columns(prefix: str) -> tuple[Column[Any], ...]:
    """Return the columns, with ``prefix``, in which ``ERROR`` keeps an error."""
    return (
        Column(f"{prefix}error", Text),
        Column(f"{prefix}errordetail", Text),
        Column(f"{prefix}errorhint", Text),
        Column(f"{prefix}errorsqlstate", String(5)),
        Column(f"{prefix}errortime", Float(53)),
    )


ERROR: Final = ColumnForm(dataclasses.astuple, RecordedError)
