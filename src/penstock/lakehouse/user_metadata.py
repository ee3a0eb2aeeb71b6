"""What the node says of its commits in their user metadata, a JSON object.

In: a commit's actions. Out: what is ours of it. Others write there what they like, so whatever is
no object with a name of ours in it says nothing. What the names mean is left to those who write
them (``truncate``, ``row_pairs``, ``row_moves``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_OURS: Final = "penstock."
"""In front of every name of ours."""
_GROUP: Final = "penstock.transaction"


def user_metadata(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is ours of a commit's user metadata; empty where nothing is."""
    for action in actions:
        found = _parsed((action.get("commitInfo") or {}).get("userMetadata"))
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


def _parsed(text: Any) -> Mapping[str, Any]:
    if not isinstance(text, str) or _OURS not in text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
