"""GENERATED of a column (gram.y, ColConstraintElem, generated_when, opt_virtual_or_stored).

In: a cursor at the word GENERATED. Out: the expression of a stored column, as it was written.
Virtual columns and identity columns are refused by name (0A000).
"""

from __future__ import annotations

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.expression_text import expression_text


def generation(cursor: Cursor) -> str:
    """``GENERATED ALWAYS AS (expression) STORED``. Raises SqlSyntaxError, FeatureNotSupported."""
    cursor.expect("generated")
    always = cursor.accept("always")
    if not always:
        cursor.expect("by", "default")
    cursor.expect("as")
    if cursor.accept("identity"):
        raise FeatureNotSupported(
            "GENERATED ... AS IDENTITY is not supported",
            hint="A node has no sequences: leave the clause out, and give the column its values in "
            "INSERT.",
        )
    text = expression_text(cursor)
    kept = cursor.accept_any("stored", "virtual")
    if not always:
        raise SqlSyntaxError("for a generated column, GENERATED ALWAYS must be specified")
    if kept != "stored":
        raise FeatureNotSupported(
            "virtual generated columns are not supported",
            hint=f"Have the values stored: GENERATED ALWAYS AS ({text}) STORED.",
        )
    return text
