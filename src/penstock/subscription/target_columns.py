"""Checks for columns of a target that differ from the publisher's (relation.c).

A difference becomes an error or a warning, with the statement that mends it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from penstock.catalog.pg_subscription import FOLLOWING, WIDEN
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import alter
from penstock.errors import (
    AnotherTable,
    PenstockError,
    RelationChanged,
    SchemaChanged,
    StateMismatch,
)
from penstock.lakehouse.conversion import published_type
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.schema_changes import followed_types, retyped
from penstock.lakehouse.table import DeltaTable
from penstock.relation import Relation
from penstock.sql.text.quoting import quote_identifier, type_text
from penstock.subscription.replica_identity import living


def exchange_error(
    rel: SubscriptionRel, old: Sequence[str], relation: Relation
) -> SchemaChanged | None:
    """Return the error for columns that have exchanged their names, or None.

    PostgreSQL never moves a column, so if the order of names has changed, columns have exchanged
    their names. Older rows would keep the values under the old names.
    """
    new = [a.name for a in relation.attributes]
    kept = set(old) & set(new)
    if [n for n in old if n in kept] == [n for n in new if n in kept]:
        return None
    return SchemaChanged(
        f'columns of relation "{rel.qualified_name}" have exchanged their names',
        detail=f"They were ({', '.join(old)}), and are ({', '.join(new)}) now.",
    )


def order_before(
    followed: Relation | None, schema: TableSchema, schema_change: str
) -> Sequence[str]:
    """Return the columns in the publisher's former order, or () if that is not known.

    The newest change has that order; without a change, the table has it, because the copy created
    it so. A column that joins a column list later is last in the table, and looks renamed; the copy
    that follows corrects the order.
    """
    if followed is not None:
        return [a.name for a in followed.attributes]
    made = schema_change in FOLLOWING and not any(column.own for column in schema.columns)
    return [column.source for column in schema.columns] if made else ()


def keeps_primary_key(schema: TableSchema, relation: Relation) -> bool:
    """Return whether the table's key is the PRIMARY KEY of CREATE TABLE on the node, and the
    publisher's replica identity contains it, as it must (logicalrep_rel_mark_updatable)."""
    own = schema.primary_key
    return bool(own) and set(schema.source_key) == set(own) and set(relation.key).issuperset(own)


def with_types(
    table: DeltaTable, wanted: TableSchema, schema_change: str, *, widen: bool, clamped: bool
) -> TableSchema:
    """Return the table's columns with the publisher's types, as far as the table follows them
    without a copy.

    ``widen``: wider types are allowed: no other table has to be widened with this one.
    ``clamped``: see ``followed_types``.
    """
    if schema_change not in FOLLOWING:
        return table.schema
    wider = schema_change == WIDEN and widen
    return followed_types(table.schema, wanted, widen=wider, clamped=clamped)


def is_alone(table: DeltaTable, app_id: str, name_of: Callable[[str], str | None]) -> bool:
    """Return whether a table's types depend on one publisher only, and nothing here depends on
    them: no other subscription fills it, and it has no generated columns.
    """
    others = living(table, app_id, name_of)
    return not others and all(c.attribute.generation is None for c in table.schema.columns)


def check_types(schema: TableSchema, wanted: TableSchema, relation: Relation) -> None:
    """Raise SchemaChanged for a new type that may have changed values of older rows, though Delta's
    type is the same: char(3) to text, json to jsonb, money to numeric."""
    column = retyped(schema, wanted)
    if column is not None:
        other = wanted.by_source[column.source]
        raise SchemaChanged(
            f'column "{column.source}" of relation "{relation.qualified_name}" has changed its '
            "type",
            detail=f"It was {published_type(column.attribute)} and is "
            f"{published_type(other.attribute)}: rows from before may have "
            "other values.",
        )


def widened_notice(subscription: str, rel: SubscriptionRel, columns: Sequence[str]) -> str:
    """Return the notice for columns that have taken a wider type without a copy."""
    named = ", ".join(f'"{name}"' for name in columns)
    table = f"{quote_identifier(rel.schema)}.{quote_identifier(rel.table)}"
    return (
        f'columns of table "{rel.qualified_name}" have a wider type now, rows from before keep '
        f"their values: {named}. If ALTER TYPE had a USING clause that changed them: "
        f"{alter(subscription)} REFRESH TABLE {table}"
    )


def check_dropped(table: DeltaTable, relation: Relation) -> None:
    """Raise RelationChanged for columns that DROP COLUMN on the node has removed.

    They do not come back by themselves, as other missing columns do (relation.c,
    logicalrep_report_missing_or_gen_attrs).
    """
    dropped = table.dropped
    missing = [a.name for a in relation.attributes if a.name in dropped]
    if missing:
        raise missing_error(relation, missing)


def check_gone(table: DeltaTable, relation: Relation, added: Sequence[Column], app_id: str) -> None:
    """Check that columns to be added are new at the publisher.

    Raises SchemaChanged for a column that the table had when the subscription committed last:
    another writer has removed it, with the values of all rows.
    """
    had = table.columns_before_others(app_id) if added else frozenset()
    gone = [column.source for column in added if column.source in had]
    if gone:
        raise SchemaChanged(
            _missing(relation, gone),
            detail="Another writer has taken that out of the target table, with the values of all "
            "rows.",
        )


def _missing(relation: Relation, missing: Collection[str]) -> str:
    """Return the message of logicalrep_report_missing_or_gen_attrs."""
    names = ", ".join(f'"{a.name}"' for a in relation.attributes if a.name in missing)
    return (
        f'logical replication target relation "{relation.qualified_name}" is missing replicated '
        f"column{'s' if len(missing) > 1 else ''}: {names}"
    )


def missing_error(relation: Relation, missing: Collection[str]) -> RelationChanged:
    """Return the error of logicalrep_report_missing_or_gen_attrs, with the statement that adds the
    columns."""
    lacking = [a for a in relation.attributes if a.name in missing]
    columns = ", ".join(
        f"ADD COLUMN {quote_identifier(a.name)} {type_text(a.type_oid, a.typmod)}" for a in lacking
    )
    name = f"{quote_identifier(relation.schema)}.{quote_identifier(relation.name)}"
    return RelationChanged(
        _missing(relation, [a.name for a in lacking]),
        hint=f"Run ALTER TABLE {name} {columns}",
    )


def label_error(rel: SubscriptionRel, labels: Mapping[str, Mapping[str, str]]) -> SchemaChanged:
    """Return the error for labels renamed at the publisher that cannot be renamed here."""
    told = [
        f'label "{old}" in column "{column}" is "{new}" now'
        for column, renamed in labels.items()
        for old, new in renamed.items()
    ]
    return SchemaChanged(
        f'labels of an enum type of relation "{rel.qualified_name}" were renamed at the publisher',
        detail=f"{'. '.join(told)[0].upper()}{'. '.join(told)[1:]}.",
    )


class EarlierRows(PenstockError):
    """A batch has rows of a table from before and after columns were added with a constant.

    The rows are applied in two batches. A single transaction cannot be divided: ``instead`` is
    raised for it.
    """

    def __init__(self, relation: Relation, columns: Sequence[str]) -> None:
        super().__init__(f'columns were added to relation "{relation.qualified_name}"')
        self.instead = unfilled_error(relation, columns)


def unfilled_error(relation: Relation, columns: Sequence[str]) -> SchemaChanged:
    """Return the error for added columns in which older rows may have values at the publisher that
    were not sent."""
    named = ", ".join(f'"{name}"' for name in columns)
    what = "column" if len(columns) == 1 else "columns"
    return SchemaChanged(
        f'relation "{relation.qualified_name}" has added {what} with values that were not sent: '
        f"{named}",
        detail="Rows from before may have a default, an identity or a computed value there at the "
        "publisher, or had values before the column was published.",
    )


def another_delta_table(rel: SubscriptionRel, uri: str, there: str | None) -> StateMismatch:
    """Return the error for a target at whose URI there is another Delta table, or none. ``there``:
    its id."""
    found = "There is none now" if there is None else f"Its id is {there}"
    kind = StateMismatch if there is None else AnotherTable
    return kind(
        f'target table "{rel.qualified_name}" is not the one that was copied',
        detail=f'{found} at "{uri}"; the one that was copied has the id {rel.table_id}.',
        hint="Put the table back in its place.",
    )
