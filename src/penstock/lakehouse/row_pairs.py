"""Which new row took the place of which old one, where an UPDATE has changed what identifies them.

In: files with the identities of old and new rows, which were written with the UPDATE. Out:
the mark of its commit, in the user metadata, and the files of a marked commit. They lie in
``_change_data``, where VACUUM removes what is as old as the data files that the commit removed.
They are never needed: without them the change is a delete and an insert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.lakehouse.actions import user_metadata
from penstock.lakehouse.files import WrittenFile

OLD: Final = "old: "
NEW: Final = "new: "
"""In front of the names of columns, as PostgreSQL has them, in the files."""
_NAME: Final = "penstock.row_pairs"
_READ_VERSION: Final = "readVersion"
_FILES: Final = "files"


@dataclass(frozen=True, slots=True)
class PairFile:
    """A file of pairs: columns ``OLD`` and ``NEW`` of each row that is paired."""

    uri: str
    size: int


def pairs_folder(table_uri: str) -> str:
    """Where files of pairs are written."""
    return f"{table_uri}/_change_data"


def pairs_mark(read_version: int, files: Iterable[WrittenFile]) -> Mapping[str, object]:
    """User metadata of the commit. ``read_version``: the rows that were paired are those of it."""
    described = [[file.path, file.size] for file in files]
    return {_NAME: {_READ_VERSION: read_version, _FILES: described}} if described else {}


def pair_files(table_uri: str, actions: Sequence[Mapping[str, Any]]) -> tuple[PairFile, ...]:
    """The files of a commit; none where it has changed other rows than those that were paired."""
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
    """Others may write the mark, too."""
    if not (isinstance(file, list) and len(file) == 2):
        return False
    path, size = file
    return isinstance(path, str) and "/" not in path and isinstance(size, int)
