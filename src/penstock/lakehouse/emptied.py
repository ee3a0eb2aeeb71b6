"""Which commits of others take every row of a table, whatever it holds.

In: a commit's actions, the files before it. Out: whether no row that would have been there had been
left by it. A condition says nothing of rows that were not there, so a commit with one does not
count, though it may have removed all files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock.lakehouse.user_metadata import is_truncate

_NO_CONDITION: Final = (None, "", "[]", "true", '["true"]')
"""operationParameters.predicate of Spark and delta-rs."""
_WRITE: Final = "WRITE"
_OVERWRITE: Final = "overwrite"
_EMPTIES: Final = ("TRUNCATE", "DELETE", _WRITE, "REPLACE TABLE", "CREATE OR REPLACE TABLE")
"""commitInfo.operation, or how it begins."""


def empties(actions: Sequence[Mapping[str, Any]], before: Collection[str]) -> bool:
    """``before``: paths of the files."""
    removed = {body["path"] for action in actions if (body := action.get("remove"))}
    if not removed.issuperset(before):
        return False
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    return is_truncate(actions) or any(map(_is_whole, infos))


def _is_whole(info: Mapping[str, Any]) -> bool:
    operation = str(info.get("operation", ""))
    parameters = info.get("operationParameters") or {}
    if not operation.startswith(_EMPTIES) or parameters.get("predicate") not in _NO_CONDITION:
        return False
    return operation != _WRITE or str(parameters.get("mode")).lower() == _OVERWRITE
