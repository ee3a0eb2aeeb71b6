"""GENERATED of a column (gram.y, ColConstraintElem, generated_when, opt_virtual_or_stored).

In: a cursor at the word GENERATED. Out: the expression, as it was written, and whether values are
stored. Identity columns are refused by name (0A000).
"""

from __future__ import annotations

from penstock.errors import SqlSyntaxError
from penstock.relation import AttGenerated
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.expression_text import expression_text
from penstock.sql.table_statements import Generation


def generation(cursor: Cursor) -> Generation:
    """``GENERATED ALWAYS AS (expression) [ STORED | VIRTUAL ]``.

    Raises SqlSyntaxError, FeatureNotSupported.
    """
    cursor.expect("generated")
    always = cursor.accept("always")
    if not always:
        cursor.expect("by", "default")
    cursor.expect("as")
    if cursor.accept("identity"):
        raise not_supported("GENERATED ... AS IDENTITY")
    text = expression_text(cursor)
    stored = cursor.accept_any("stored", "virtual") == "stored"
    if not always:
        raise SqlSyntaxError("for a generated column, GENERATED ALWAYS must be specified")
    return Generation(text, AttGenerated.STORED if stored else AttGenerated.VIRTUAL)
