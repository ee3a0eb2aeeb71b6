"""What the node says of its commits in their user metadata, a JSON object.

In: a commit's actions. Out: what is ours of it: whether it was a TRUNCATE, which is published as
such and not as deletes of its rows, and what commits of one transaction have in common. Others
write there what they like, so whatever is no object with a name of ours in it says nothing. Spark
takes it from ``spark.databricks.delta.commitInfo.userMetadata``. What ``row_pairs`` and
``row_moves`` write there is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_OURS: Final = "penstock."
"""In front of every name of ours."""
_GROUP: Final = "penstock.transaction"


def user_metadata(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is ours of a commit's user metadata; empty where nothing is."""
    for action in actions:
        found = _parse((action.get("commitInfo") or {}).get("userMetadata"))
        if found:
            return found
    return {}


def group_mark(group: str) -> Mapping[str, object]:
    """For each commit of one transaction over several tables."""
    return {_GROUP: group}


def group_of(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """What commits of one transaction have in common; None for a commit by itself."""
    group = user_metadata(actions).get(_GROUP)
    return group if isinstance(group, str) else None


def _parse(text: Any) -> Mapping[str, Any]:
    if not isinstance(text, str) or _OURS not in text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_BLOCK: Final = "penstock.block"
_UNDONE: Final = "penstock.undone"


def block_mark(group: str, relations: Iterable[int], *, undone: bool = False) -> Mapping[str, Any]:
    """For each commit of a transaction block over several tables.

    ``relations``: oids of all of them; ``undone``: this commit takes back the one before.
    """
    mark = {**group_mark(group), _BLOCK: sorted(relations)}
    return {**mark, _UNDONE: True} if undone else mark


def block_of(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Oids of the tables of the block that a commit is a part of; empty: of none, or of one."""
    found = user_metadata(actions).get(_BLOCK)
    if not isinstance(found, list) or group_of(actions) is None:
        return frozenset()
    return frozenset(oid for oid in found if isinstance(oid, int))


def is_undone(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit takes back another one of its block."""
    return user_metadata(actions).get(_UNDONE) is True


_TRUNCATE: Final = "penstock.truncate"
_RELATIONS: Final = "penstock.relations"
MARK: Final[Mapping[str, object]] = {_TRUNCATE: True}
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
    return user_metadata(actions).get(_TRUNCATE) is True


_REVERSES: Final = "penstock.reverses"


def reversal_mark(versions: Iterable[int]) -> Mapping[str, object]:
    """The mark of a commit that takes back others of the same table."""
    return {_REVERSES: sorted(versions)}


def reversed_by(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Versions that a commit takes back."""
    found = user_metadata(actions).get(_REVERSES)
    return frozenset(found) if isinstance(found, list) else frozenset()
