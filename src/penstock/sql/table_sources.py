"""What takes the place of a table in FROM, in sqlglot's trees.

In: a table of a query, and what Spark shall read for it. Out: the tree with that, its alias and
what is joined to the table inside of the same brackets: sqlglot hangs all of it on the table.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from penstock.errors import FeatureNotSupported

_UNDERSTOOD: Final = frozenset(("this", "db", "catalog", "alias", "joins"))
"""Of what may stand with a table; TABLESAMPLE, ONLY and WITH ORDINALITY do not."""


def check_table(table: exp.Table) -> None:
    """Raises FeatureNotSupported for what stands with the table and would be lost."""
    for word, value in table.args.items():
        if value and word not in _UNDERSTOOD:
            raise FeatureNotSupported(f"{word.upper()} of a table is not supported")


def replacement(table: exp.Table, found: exp.Expr) -> exp.Expr:
    """``found``, which has its alias, with the table's joins. Raises FeatureNotSupported."""
    check_table(table)
    joins = table.args.get("joins")
    if not joins:
        return found
    found.set("joins", joins)
    return found if isinstance(table.parent, exp.Subquery) else exp.Subquery(this=found)
