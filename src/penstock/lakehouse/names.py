"""Names in the lake, for PostgreSQL's names that Delta, Spark or a file system cannot hold
(docs/names.md).

No name is changed silently: the publisher's name stays in the field's metadata, and
``TableSchema.renamed`` lists the changes for a NOTICE.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.relation import TableName

_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")
"""The characters that Delta refuses in column names without column mapping (they were separators
for old Parquet readers)."""
_UNSAFE_IN_PATHS: Final = re.compile(r"[^\w.-]")
_HAS_A_MEANING: Final = re.compile(r"^[_.]|-[0-9a-f]{8}(?:[0-9a-f]{8})?$")
"""Names that cannot be folders as they are. Hadoop's readers ignore names that begin with "_" or
".", and Delta uses some of them ("_delta_log", "_change_data"). A name that ends like a checksum
could be another name's folder."""
_QUALIFIED: Final = re.compile(r'((?:"(?:[^"]|"")*")|[^".]*)\.((?:"(?:[^"]|"")*")|[^".]*)')


def column_names(sources: Iterable[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a mapping of the publisher's column names to Delta's. ``taken``: the part of the
    mapping that is in use already.

    A forbidden character becomes "_". If names are then equal (Delta does not distinguish upper and
    lower case), the first stays and the others get "_2", "_3", ...; names without forbidden
    characters come first.
    """
    found = dict(taken or {})
    used = {name.lower() for name in found.values()}
    new = [source for source in sources if source not in found]
    for source in sorted(new, key=lambda s: _FORBIDDEN.search(s) is not None):
        base = name = _FORBIDDEN.sub("_", source)
        number = 1
        while name.lower() in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name.lower())
        found[source] = name
    return found


def folder_name(name: str) -> str:
    """Return the folder of a schema or table; different names have different folders.

    A name of letters, digits, "_", "-" and "." stays as it is, unless readers or this rule give it
    a meaning (``_HAS_A_MEANING``). Any other name gets "_" for each other character, loses "_" and
    "." in front, and ends with the first 16 hexadecimal digits of its SHA-256.
    """
    if not _UNSAFE_IN_PATHS.search(name) and not _HAS_A_MEANING.search(name):
        return name
    return f"{_readable(name).lstrip('_.')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def earlier_folder_name(name: str) -> str:
    """Return the folder that older versions gave a name: they kept more names unchanged, and used a
    shorter sum."""
    safe = _readable(name)
    if safe == name and not name.startswith((".", "_penstock")):
        return name
    return f"{safe.lstrip('.')}-{zlib.crc32(name.encode()):08x}"


def written_names(text: str) -> list[TableName]:
    """Return the tables that a text of ``relation.qualified`` may mean.

    Older versions wrote texts without quotes, so each of their dots may separate the two names.
    """
    if '"' in text:
        found = _QUALIFIED.fullmatch(text)
        if found is not None:
            return [(_unquote(found[1]), _unquote(found[2]))]
    parts = text.split(".")
    return [(".".join(parts[:at]), ".".join(parts[at:])) for at in range(1, len(parts))]


def _readable(name: str) -> str:
    return _UNSAFE_IN_PATHS.sub("_", name)


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
