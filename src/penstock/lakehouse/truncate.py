"""The mark of a commit that was TRUNCATE: it is published as such, not as deletes of its rows.

In: a commit's actions. Out: whether they are marked. Whoever empties a table marks the commit in
its user metadata, a JSON object; Spark takes that from
``spark.databricks.delta.commitInfo.userMetadata``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_NAME: Final = "penstock.truncate"
MARK: Final[Mapping[str, object]] = {_NAME: True}
"""User metadata of a commit that removes every row that was there before it."""


def is_truncate(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a commit is marked."""
    return any(
        _marked(info.get("userMetadata"))
        for action in actions
        if (info := action.get("commitInfo"))
    )


def _marked(text: Any) -> bool:
    if not isinstance(text, str) or _NAME not in text:
        return False
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get(_NAME) is True
