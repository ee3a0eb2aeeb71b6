"""PostgreSQL 18's key words by category (kwlist.h).

tools/dump_catalogs.py writes ``keywords.tsv`` from a PostgreSQL server. Unreserved key words can be
used like any name, except where the grammar requires an IDENT.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ROWS: Final = Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines()
_BY_CATEGORY: Final = {
    category: frozenset(words.split())
    for category, _, words in (row.partition("\t") for row in _ROWS)
}

RESERVED: Final = _BY_CATEGORY["R"]
TYPE_OR_FUNCTION_NAME: Final = _BY_CATEGORY["T"]
COLUMN_NAME: Final = _BY_CATEGORY["C"]
UNRESERVED: Final = _BY_CATEGORY["U"]

KEY_WORDS: Final = RESERVED | TYPE_OR_FUNCTION_NAME | COLUMN_NAME | UNRESERVED
"""The words that the grammar accepts as an IDENT only in quotes."""
