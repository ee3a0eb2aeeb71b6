"""The mark of a commit that was TRUNCATE: it is published as such, not as deletes of its rows.

In: a commit's actions. Out: whether they are marked, and what was emptied with it. Whoever empties
a table marks the commit in its user metadata, a JSON object; Spark takes that from
``spark.databricks.delta.commitInfo.userMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.lakehouse.user_metadata import group_mark, user_metadata

_NAME: Final = "penstock.truncate"
_RELATIONS: Final = "penstock.relations"
MARK: Final[Mapping[str, object]] = {_NAME: True}
"""User metadata of a commit that removes every row that was there before it."""


def grouped_mark(group: str, relations: Iterable[int]) -> Mapping[str, object]:
    """The mark of one of several tables that are emptied together, as one transaction.

    ``relations``: oids of all of them, partitioned ones among them.
    """
    return {**MARK, **group_mark(group), _RELATIONS: sorted(relations)}


def emptied_with(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Oids of the relations that the same TRUNCATE emptied, as far as the mark tells them."""
    found = user_metadata(actions).get(_RELATIONS)
    if not isinstance(found, list):
        return frozenset()
    return frozenset(oid for oid in found if isinstance(oid, int))


def is_truncate(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit is marked."""
    return user_metadata(actions).get(_NAME) is True
