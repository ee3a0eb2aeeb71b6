"""What an UPDATE becomes when its rows are filtered (pgoutput_row_filter of pgoutput.c).

In: whether the old and the new version of a row match the filter. Out: the change that is
published, for one row or for columns of rows.

::

    old row    new row    published
    no match   no match   nothing
    no match   match      INSERT of the new row
    match      no match   DELETE of the old row
    match      match      UPDATE
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.publication.members import Action


def transform_update(old: bool | None, new: bool | None) -> Action | None:
    """The change for one updated row; a filter's NULL counts as no match."""
    if old and new:
        return Action.UPDATE
    if new:
        return Action.INSERT
    return Action.DELETE if old else None


def transform_updates(old: pa.Array, new: pa.Array) -> pa.Array:
    """The same for columns: boolean arrays in, ``insert``, ``update``, ``delete`` or null out."""
    old, new = pc.fill_null(old, False), pc.fill_null(new, False)
    conditions = pa.StructArray.from_arrays(
        [pc.and_(old, new), pc.and_not(new, old), pc.and_not(old, new)],
        ["update", "insert", "delete"],
    )
    return pc.case_when(
        conditions,
        pa.scalar(Action.UPDATE.value),
        pa.scalar(Action.INSERT.value),
        pa.scalar(Action.DELETE.value),
    )


def matches_sql(predicate: str | None, relation: str) -> str:
    """A query of one boolean column ``matches``, never NULL, in the order of the relation's rows.

    ``relation``: SQL text of what has the filter's columns under their names at the publisher: the
    old rows (NULL where a column is not part of the replica identity) or the new ones.
    """
    return f"SELECT ({predicate or 'TRUE'}) IS TRUE AS matches FROM {relation}"
