"""Repeat changes of a publisher's definitions in the rows here.

A change renames labels of an enum, or adds columns with a constant for older rows. It becomes one
commit of each of the target's Delta tables, with files rewritten where rows change. The commit is
not part of a batch, so the caller loads the table again. A crash leaves a table unchanged or fully
changed. It may leave a partitioned table changed in part; then the change is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.lakehouse.defaults import stored_value
from penstock.lakehouse.foreign import RENAME_VALUE
from penstock.lakehouse.schema import Column
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pgtypes.variant import VARIANT
from penstock.pipeline.rewrite import DDL_APP_ID, ColumnChange, ColumnRewrites, with_replaced
from penstock.subscription.definition_watch import Labels
from penstock.subscription.target import Target

log = logging.getLogger(__name__)

_ADD: Final = "ADD COLUMNS"


def constant_of(column: Column, text: str) -> pa.Scalar | None:
    """Convert a constant from its type's text to a value of the column here; return None if the
    column cannot have it."""
    if column.type == VARIANT:
        return None
    if column.as_text:
        return pa.scalar(text, column.type)
    try:
        return stored_value(text, column.attribute.type_oid, column.attribute.typmod, column.type)
    except PenstockError:
        return None


def add_filled(
    target: Target,
    columns: Sequence[Column],
    values: Mapping[str, pa.Scalar],
    unfilled: Collection[str],
) -> None:
    """Add columns. A column with a constant in ``values`` (by Delta names) gets it in all rows,
    other columns are NULL. ``unfilled``: NULL columns that have values at the publisher. Raises
    CommitConflict, StorageError."""
    for table in reversed(target.tables.values()):
        added = table.schema.lacking(columns)
        table.add_columns(added, unfilled if table is target.table else ())
        names = {column.name for column in added}
        constants = {
            c.name: values.get(c.name, pa.scalar(None, c.type)) for c in columns if c.name in names
        }
        _commit(ColumnChange(table, constants=constants), _ADD, data_change=False)
    log.info(
        'rows of table "%s" from before have the default of added columns: %s',
        target.rel.qualified_name,
        ", ".join(values),
    )


def can_rename_labels(target: Target, labels: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the labels' columns (by the publisher's names) can be rewritten file by file.
    They cannot if they are not stored as text or partition the table, or if the table has a
    history, which keeps earlier rows."""
    columns = target.table.schema.by_source
    held = [columns[name].name for name in labels]
    texts = all(_is_text(columns[name].type) for name in labels)
    laid_out = set(target.table.layout.partition_by)
    routed = set() if target.leaves is None else set(target.leaves.routing.columns)
    return texts and target.history is None and not (laid_out | routed).intersection(held)


def rename_labels(target: Target, labels: Mapping[str, Mapping[str, str]]) -> None:
    """Rename labels of enums in the rows, by column at the publisher. Raises CommitConflict,
    StorageError."""
    for table in reversed(target.tables.values()):
        columns = table.schema.by_source
        replaced = {columns[name].name: renamed for name, renamed in labels.items()}
        _commit(ColumnChange(table, replaced=replaced), RENAME_VALUE, data_change=True)
    for name, renamed in labels.items():
        for old, new in renamed.items():
            log.info(
                'label "%s" in column "%s" of table "%s" is "%s" now, as at the publisher',
                *(old, name, target.rel.qualified_name, new),
            )


def with_labels(batch: ChangeBatch, renamed: Sequence[Labels]) -> ChangeBatch:
    """Return changes with the new names of labels: the publisher may have sent the old names."""
    for labels in renamed:
        old = None if batch.old is None else with_replaced(batch.old, labels.renamed)
        batch = replace(batch, new=with_replaced(batch.new, labels.renamed), old=old)
    return batch


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _commit(change: ColumnChange, operation: str, *, data_change: bool) -> None:
    with ColumnRewrites() as rewrites:
        try:
            rewrites.prepare(change)
            rewrites.stage(change)
            if change.table.has_staged:
                change.table.commit(app_id=DDL_APP_ID, operation=operation, data_change=data_change)
        except BaseException:
            change.table.discard()
            raise
