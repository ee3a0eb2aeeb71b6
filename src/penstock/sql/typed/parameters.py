"""Parameters ``$1``, ``$2`` ... of a statement on tables of the lake: count them, put values in.

In: a statement's text, types and values of its parameters. Out: the same statement with the values
as constants of those types; PostgreSQL's planner does the same. ``parameter_types`` finds the
types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.identifiers import simple_quote_literal
from penstock.pgtypes.pg_type import BPCHAR, INT8, NAME, TEXT, UNKNOWN, VARCHAR
from penstock.sql.builtin.type_cache import types
from penstock.sql.grammar.libpg_query import ScanToken, Token, scan
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.text.limits import MAX_PARAMETERS
from penstock.sql.text.object_names import RangeVar
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert
from penstock.sql.typed.literals import canonical
from penstock.sql.typed.select_analysis import analyze_select
from penstock.sql.typed.statement import Surroundings
from penstock.sqlstate import UndefinedParameter, UndefinedTable

_STRINGS: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME, UNKNOWN})
_COUNTS: Final = frozenset(("limit", "offset", "first", "next"))
"""Words before a number of rows, which is written as a plain number."""
_ALL_ROWS: Final = (1 << 31) - 1


def last_parameter(text: str) -> int:
    """Return the highest ``$n`` of a statement, 0 for none. Raises PenstockError (42P02)."""
    data = text.encode()
    return max((_number(data, token) for token in scan(text).tokens), default=0)


def with_values(text: str, values: Sequence[bytes | None], type_oids: Sequence[int]) -> str:
    """Return the statement with its parameters' values, which are in text format and UTF-8.

    Raises PostgreSQL's errors of input functions.
    """
    data = text.encode()
    out: list[bytes] = []
    at, before = 0, ""
    for token in scan(text).tokens:
        number = _number(data, token)
        if number:
            value, oid = values[number - 1], type_oids[number - 1]
            if before in _COUNTS:
                written = _count(value, before)
            else:
                written = _constant(None if value is None else value.decode(), oid)
            out += (data[at : token.start], f" {written} ".encode())
            at = token.end
        before = data[token.start : token.end].decode().lower()
    return b"".join((*out, data[at:])).decode()


def _number(data: bytes, token: ScanToken) -> int:
    if token.kind != Token.PARAM:
        return 0
    digits = data[token.start + 1 : token.end]
    if not 1 <= int(digits) <= MAX_PARAMETERS:
        raise UndefinedParameter(f"there is no parameter ${digits.decode()}")
    return int(digits)


def _count(value: bytes | None, word: str) -> str:
    """Return a number of rows as a plain number; NULL is all rows, or none to skip."""
    if value is None:
        return "0" if word == "offset" else str(_ALL_ROWS)
    return canonical(value.decode(), INT8)


def _constant(value: str | None, oid: int) -> str:
    """Return the value's text in a cast, but bare for strings and types that are read later."""
    known = types().get(oid)
    name = "text" if known is None else known.sql_name
    if value is None:
        return f"CAST(NULL AS {name})"
    if known is not None and oid not in _STRINGS:
        with suppress(FeatureNotSupported):
            return f"CAST({simple_quote_literal(canonical(value, oid))} AS {name})"
    return simple_quote_literal(value)


# Find the types of parameters that a client has not given, from their use (parse_param.c).
#
# In: a statement on tables of the lake, the types that the client has given, and the columns of
# tables. Out: an oid for every ``$n``: the first type that the analysis of the statement gives it,
# or text. Errors of the analysis are left to whoever runs the statement.

ColumnTypes = Callable[[str | None, str], Mapping[str, int]]
"""(schema or None, table) -> type oids by column, in the table's order; empty if it is unknown."""


def parameter_types(
    text: str, count: int, said: Sequence[int], columns: ColumnTypes
) -> tuple[int, ...]:
    """Return the oids of ``$1`` to ``$count``. ``said``: types by the client; 0 for open ones."""
    found = {number: oid for number, oid in enumerate(said, 1) if oid}
    if any(number not in found for number in range(1, count + 1)):
        with suppress(PenstockError):  # whoever runs it raises the error
            _analyze(text, found, columns)
    return tuple(found.get(number) or TEXT for number in range(1, count + 1))


def _analyze(text: str, found: dict[int, int], columns: ColumnTypes) -> None:
    def find_table(relation: RangeVar) -> tuple[Attribute, ...]:
        known = columns(relation.schema, relation.name)
        if not known:
            raise UndefinedTable(f'relation "{relation.name}" does not exist')
        return tuple(Attribute(name, oid) for name, oid in known.items())

    raw = parse_query(text)
    around = Surroundings(find_table, parameters=found)
    if isinstance(raw, SelectStmt):
        analyze_select(raw, around)
    elif isinstance(raw, InsertStmt):
        analyze_insert(raw, find_table(raw.relation), around)
    else:
        analyze_change(raw, find_table(raw.relation), around)
