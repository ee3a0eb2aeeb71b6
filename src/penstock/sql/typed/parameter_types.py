"""Types of parameters that a client has not said: from where they stand (parse_param.c).

In: a statement on tables of the lake, the types that the client has said, and the columns of
tables. Out: an oid for every ``$n``: the first type that the analysis of the statement gives it.
What the analysis refuses is left to whoever runs the statement, and what has no type then is text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from penstock.errors import PenstockError
from penstock.pgtypes.pg_type import TEXT
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.text.object_names import RangeVar
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert
from penstock.sql.typed.query_nodes import OutputColumn
from penstock.sql.typed.select_analysis import analyze_select
from penstock.sql.typed.statement import Surroundings
from penstock.sqlstate import UndefinedTable

ColumnTypes = Callable[[str | None, str], Mapping[str, int]]
"""(schema or None, table) -> type oids by column, in the table's order; empty: not known."""


def parameter_types(
    text: str, count: int, said: Sequence[int], columns: ColumnTypes
) -> tuple[int, ...]:
    """Oids of ``$1`` to ``$count``. ``said``: 0 where the client leaves it open."""
    found = {number: oid for number, oid in enumerate(said, 1) if oid}
    if any(number not in found for number in range(1, count + 1)):
        with suppress(PenstockError):  # whoever runs it says what is wrong
            _analyze(text, found, columns)
    return tuple(found.get(number) or TEXT for number in range(1, count + 1))


def _analyze(text: str, found: dict[int, int], columns: ColumnTypes) -> None:
    def find_table(relation: RangeVar) -> tuple[OutputColumn, ...]:
        known = columns(relation.schema, relation.name)
        if not known:
            raise UndefinedTable(f'relation "{relation.name}" does not exist')
        return tuple(OutputColumn(name, oid) for name, oid in known.items())

    raw = parse_query(text)
    around = Surroundings(find_table, parameters=found)
    if isinstance(raw, SelectStmt):
        analyze_select(raw, around)
    elif isinstance(raw, InsertStmt):
        analyze_insert(raw, find_table(raw.relation), around)
    else:
        analyze_change(raw, find_table(raw.relation), around)
