"""The mark of a commit that was TRUNCATE: it is published as such, not as deletes of its rows.

In: a commit's actions. Out: whether they are marked, and what was emptied with it. Whoever empties
a table marks the commit in its user metadata, a JSON object; Spark takes that from
``spark.databricks.delta.commitInfo.userMetadata``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_NAME: Final = "penstock.truncate"
_GROUP: Final = "penstock.transaction"
_RELATIONS: Final = "penstock.relations"
MARK: Final[Mapping[str, object]] = {_NAME: True}
"""User metadata of a commit that removes every row that was there before it."""


def grouped_mark(group: str, relations: Iterable[int]) -> Mapping[str, object]:
    """The mark of one of several tables that are emptied together, as one transaction.

    ``relations``: oids of all of them, partitioned ones among them.
    """
    return {**MARK, _GROUP: group, _RELATIONS: sorted(relations)}


def emptied_with(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Oids of the relations that the same TRUNCATE emptied, as far as the mark tells them."""
    for action in actions:
        found = _metadata((action.get("commitInfo") or {}).get("userMetadata")).get(_RELATIONS)
        if isinstance(found, list):
            return frozenset(oid for oid in found if isinstance(oid, int))
    return frozenset()


def group_of(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """What commits of one transaction have in common; None for a commit by itself."""
    for action in actions:
        found = _metadata((action.get("commitInfo") or {}).get("userMetadata"))
        if isinstance(found.get(_GROUP), str):
            return str(found[_GROUP])
    return None


def is_truncate(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit is marked."""
    return any(
        _marked(info.get("userMetadata"))
        for action in actions
        if (info := action.get("commitInfo"))
    )


def _marked(text: Any) -> bool:
    return _metadata(text).get(_NAME) is True


def _metadata(text: Any) -> Mapping[str, Any]:
    """User metadata that is ours; others write there what they like."""
    if not isinstance(text, str) or _NAME not in text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
