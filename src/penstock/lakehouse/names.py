"""Names of the publisher that Delta, Spark or a file system cannot hold as they are
(docs/names.md).

In: names as PostgreSQL has them. Out: the names in the lake. The rule changes no name in silence:
the publisher's name stays in the field's metadata, and ``TableSchema.renamed`` lists the changes
for a NOTICE.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.relation import TableName

_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta refuses in column names without column mapping (Parquet's old readers' separators)."""
_UNSAFE_IN_PATHS: Final = re.compile(r"[^\w.-]")
_HAS_A_MEANING: Final = re.compile(r"^[_.]|-[0-9a-f]{8}(?:[0-9a-f]{8})?$")
"""Names beginning with "_" or "." are hidden from Hadoop's readers, and Delta's own ("_delta_log",
"_change_data") are among them; a name that ends like a sum could be another name's folder."""
_QUALIFIED: Final = re.compile(r'((?:"(?:[^"]|"")*")|[^".]*)\.((?:"(?:[^"]|"")*")|[^".]*)')


def column_names(sources: Iterable[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """The publisher's column names -> Delta's. ``taken``: names that columns have already.

    A forbidden character becomes "_". Of names that are then equal (Delta does not tell upper case
    from lower case) the first that needed no replacement keeps it, the others get "_2", "_3", ...
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
    """The folder of a schema or table of that name; different names have different folders.

    Letters, digits, "_", "-" and "." stay. A name with anything else, or one that readers, file
    systems or this rule give a meaning, has "_" for each such character, no "_" and "." in front,
    and the first 16 hexadecimal digits of its SHA-256 at the end.
    """
    if not _UNSAFE_IN_PATHS.search(name) and not _HAS_A_MEANING.search(name):
        return name
    return f"{_readable(name).lstrip('_.')}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def earlier_folder_name(name: str) -> str:
    """The folder that a name had before: ``folder_name`` kept more names and had a shorter sum."""
    safe = _readable(name)
    if safe == name and not name.startswith((".", "_penstock")):
        return name
    return f"{safe.lstrip('.')}-{zlib.crc32(name.encode()):08x}"


def written_names(text: str) -> list[TableName]:
    """The tables that a text of ``relation.qualified`` may mean: one, unless it is an old one.

    Texts were written without quotes once, so each of their dots may stand between the names.
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
