"""Pairs of old and new rows, for an UPDATE that has changed the identity of rows.

Such an UPDATE writes files with the identities of old and new rows, and names them by a mark in the
user metadata of its commit. ``pair_files`` reads the mark. The files lie in ``_change_data``, where
VACUUM removes them after the same time as the data files that the commit removed. If they are
missing, the change is published as a delete and an insert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.lakehouse.actions import user_metadata
from penstock.lakehouse.files import WrittenFile

OLD: Final = "old: "
NEW: Final = "new: "
"""The prefixes of column names in the files; the names are PostgreSQL's."""
_NAME: Final = "penstock.row_pairs"
_READ_VERSION: Final = "readVersion"
_FILES: Final = "files"


@dataclass(frozen=True, slots=True)
class PairFile:
    """A file of pairs, with columns ``OLD`` and ``NEW`` of each row."""

    uri: str
    size: int


def pairs_folder(table_uri: str) -> str:
    """Return the folder of a table's files of pairs."""
    return f"{table_uri}/_change_data"


def pairs_mark(read_version: int, files: Iterable[WrittenFile]) -> Mapping[str, object]:
    """Return the user metadata of the commit. ``read_version``: the version of the old rows."""
    described = [[file.path, file.size] for file in files]
    return {_NAME: {_READ_VERSION: read_version, _FILES: described}} if described else {}


def pair_files(table_uri: str, actions: Sequence[Mapping[str, Any]]) -> tuple[PairFile, ...]:
    """Return a commit's files of pairs; () if the pairs were made from another version."""
    mark = user_metadata(actions).get(_NAME)
    if not isinstance(mark, dict):
        return ()
    infos = (action["commitInfo"] for action in actions if action.get("commitInfo"))
    if any(info.get(_READ_VERSION) != mark.get(_READ_VERSION) for info in infos):
        return ()
    found = mark.get(_FILES)
    folder = pairs_folder(table_uri)
    return tuple(
        PairFile(f"{folder}/{file[0]}", file[1])
        for file in (found if isinstance(found, list) else ())
        if _is_described(file)
    )


def _is_described(file: object) -> bool:
    """Return whether the mark is well-formed: others may write it, too."""
    if not (isinstance(file, list) and len(file) == 2):
        return False
    path, size = file
    return isinstance(path, str) and "/" not in path and isinstance(size, int)
