"""Names of the publisher that Delta, Spark or a file system cannot hold as they are
(docs/names.md).

In: names as PostgreSQL has them. Out: the names in the lake. The rule changes no name in silence:
the publisher's name stays in the field's metadata, and ``TableSchema.renamed`` lists the changes
for a NOTICE.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta refuses in column names without column mapping (Parquet's old readers' separators)."""
_UNSAFE_IN_PATHS: Final = re.compile(r"[^\w.-]")


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
    """The folder of a schema or table of that name.

    Letters, digits, "_", "-" and "." stay. Any other character becomes "_" and a checksum of the
    name is appended, so that different names never share a folder; so do names that file systems
    or readers give a meaning (leading "." or "_penstock").
    """
    safe = _UNSAFE_IN_PATHS.sub("_", name)
    if safe == name and not name.startswith((".", "_penstock")):
        return name
    return f"{safe.lstrip('.')}-{zlib.crc32(name.encode()):08x}"
