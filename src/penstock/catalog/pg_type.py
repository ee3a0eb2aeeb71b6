"""Enum types of the node (pg_type.h, pg_enum.h).

PostgreSQL's own types are not kept here, because they are the same everywhere
(``penstock.sql.builtin``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    RowMapping,
    String,
    Table,
    UniqueConstraint,
    and_,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA, TableAccess
from penstock.enum_type import EnumLabel, EnumType

_NAME_BYTES: Final = 63
"""NAMEDATALEN - 1"""

_TYPE = Table(
    "penstock_type",
    METADATA,
    Column("oid", BigInteger, primary_key=True, autoincrement=False),
    Column("typnamespace", String(64), nullable=False),
    Column("typname", String(64), nullable=False),
    Column("typowner", BigInteger),
    Column("typarray", BigInteger, nullable=False),
    Column("typarrayname", String(64), nullable=False),
    UniqueConstraint("typnamespace", "typname"),
)
_ENUM = Table(
    "penstock_enum",
    METADATA,
    Column("oid", BigInteger, primary_key=True, autoincrement=False),
    Column("enumtypid", BigInteger, nullable=False),
    Column("enumsortorder", Double, nullable=False),
    Column("enumlabel", String(64), nullable=False),
    UniqueConstraint("enumtypid", "enumlabel"),
)


class PgType(TableAccess):
    """Both tables, within one transaction."""

    def all(self) -> tuple[EnumType, ...]:
        """Return every type in the order of oids."""
        types = self.connection.execute(select(_TYPE).order_by(_TYPE.c.oid)).mappings().all()
        if not types:
            return ()
        labels: dict[int, list[EnumLabel]] = defaultdict(list)
        ordered = select(_ENUM).order_by(_ENUM.c.enumtypid, _ENUM.c.enumsortorder)
        for row in self.connection.execute(ordered).mappings():
            label = EnumLabel(row["oid"], row["enumsortorder"], row["enumlabel"])
            labels[row["enumtypid"]].append(label)
        return tuple(_enum_type(row, labels[row["oid"]]) for row in types)

    def find(self, schema: str, name: str) -> EnumType | None:
        """Return the type of that name, or None. The name of an array type is not found."""
        return next((t for t in self.all() if (t.schema, t.name) == (schema, name)), None)

    def create(
        self, schema: str, name: str, labels: Sequence[str], owner: int | None = None
    ) -> EnumType:
        """Insert a type. The caller ensures that its name is free and its labels are distinct."""
        oid = pg_control.new_oid(self.connection)
        array_oid = pg_control.new_oid(self.connection)
        self._move_array_name(schema, name)
        array_name = _array_name(name, {name, *self._names(schema)})
        rows = tuple(
            EnumLabel(pg_control.new_oid(self.connection), float(order), text)
            for order, text in enumerate(labels, 1)
        )
        self.connection.execute(
            _TYPE.insert().values(
                oid=oid,
                typnamespace=schema,
                typname=name,
                typowner=owner,
                typarray=array_oid,
                typarrayname=array_name,
            )
        )
        for row in rows:
            self._insert(oid, row)
        return EnumType(oid, schema, name, array_oid, array_name, rows, owner)

    def _move_array_name(self, schema: str, name: str) -> None:
        """Rename an enum's array type that has this name, so that a new type can take the name
        (moveArrayTypeName)."""
        held = and_(_TYPE.c.typnamespace == schema, _TYPE.c.typarrayname == name)
        moved = _array_name(name, {name, *self._names(schema)})
        self.connection.execute(_TYPE.update().where(held).values(typarrayname=moved))

    def _names(self, schema: str) -> set[str]:
        types = [type_ for type_ in self.all() if type_.schema == schema]
        return {name for type_ in types for name in (type_.name, type_.array_name)}

    def add_label(self, type_: EnumType, label: str, at: int) -> None:
        """Insert a label before the ``at``-th, counted from 0, or at the end."""
        orders = [each.order for each in type_.labels]
        before = orders[at - 1] if at else (orders[0] - 2 if orders else 0.0)
        after = orders[at] if at < len(orders) else before + 2
        order = (before + after) / 2
        if order in (before, after):  # RenumberEnumType
            type_ = self._renumber(type_)
            self.add_label(type_, label, at)
            return
        self._insert(type_.oid, EnumLabel(pg_control.new_oid(self.connection), order, label))

    def _renumber(self, type_: EnumType) -> EnumType:
        labels = tuple(
            replace(label, order=float(order)) for order, label in enumerate(type_.labels, 1)
        )
        for label in labels:
            self.connection.execute(
                _ENUM.update().where(_ENUM.c.oid == label.oid).values(enumsortorder=label.order)
            )
        return replace(type_, labels=labels)

    def _insert(self, oid: int, label: EnumLabel) -> None:
        self.connection.execute(
            _ENUM.insert().values(
                oid=label.oid, enumtypid=oid, enumsortorder=label.order, enumlabel=label.text
            )
        )

    def delete(self, oid: int) -> None:
        """Forget a type with its labels; no effect when it is gone."""
        self.connection.execute(_ENUM.delete().where(_ENUM.c.enumtypid == oid))
        self.connection.execute(_TYPE.delete().where(_TYPE.c.oid == oid))


def _array_name(name: str, taken: Collection[str]) -> str:
    """Return the name with an underscore before it, and a number after it if that is taken
    (makeArrayTypeName)."""
    for number in itertools.count():
        suffix = f"_{number}" if number else ""
        room = _NAME_BYTES - 1 - len(suffix)
        found = f"_{name.encode()[:room].decode(errors='ignore')}{suffix}"
        if found not in taken:
            return found
    raise AssertionError("there are endlessly many numbers")


def _enum_type(row: RowMapping, labels: Sequence[EnumLabel]) -> EnumType:
    return EnumType(
        oid=row["oid"],
        schema=row["typnamespace"],
        name=row["typname"],
        array_oid=row["typarray"],
        array_name=row["typarrayname"],
        labels=tuple(labels),
        owner=row["typowner"],
    )
