"""Names as PostgreSQL keeps them (scansup.c).

In: an identifier as written. Out: the name that is stored, at most 63 bytes of UTF-8.
"""

from __future__ import annotations

import string
from typing import Final

NAMEDATALEN: Final = 64
"""Bytes of a name with its terminating zero (pg_config_manual.h)."""

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold(identifier: str) -> str:
    """Lower case for A-Z only, as in a UTF-8 database (downcase_identifier)."""
    return identifier.translate(_LOWER)


def truncate(identifier: str) -> tuple[str, str | None]:
    """Cut a name to 63 bytes at a character's end; the text of the NOTICE (42622) if it was cut."""
    encoded = identifier.encode()
    if len(encoded) < NAMEDATALEN:
        return identifier, None
    kept = encoded[: NAMEDATALEN - 1].decode(errors="ignore")
    return kept, f'identifier "{identifier}" will be truncated to "{kept}"'
