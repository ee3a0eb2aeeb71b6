"""Functions that a catalog query may call, and what they are in DuckDB.

In: nothing. Out: signatures. A function with a ``template`` is DuckDB's; one without is called as
``pg__name`` and is given by whoever runs the query, since it looks into the catalogs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ANY: Final = "any"
ARRAY: Final = "anyarray of"
ELEMENT: Final = "anyelement"
SAME: Final = "same"
VARIADIC: Final = "variadic"
"""The only argument of a table function: any number of texts, or an array of them."""


@dataclass(frozen=True, slots=True)
class Function:
    """``arguments``: type names, ANY and ARRAY for all; the last ``optional`` may be left out.

    ``returns``: a type name, SAME (as the first argument), ELEMENT or ARRAY (of the first).
    """

    name: str
    arguments: tuple[str, ...]
    returns: str
    template: str | None = None
    optional: int = 0
    aggregate: bool = False


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function in FROM. ``query``: DuckDB's SELECT over ``{0}`` ..., with columns o1, o2 ...

    ``tables``, ``functions``: what the query reads and calls. ``named``: a single column keeps its
    name whatever the alias, as one of an OUT parameter does (chooseScalarFunctionAlias).
    """

    name: str
    arguments: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    query: str
    optional: int = 0
    tables: tuple[str, ...] = ()
    named: bool = True
    functions: tuple[str, ...] = ()


_TEXT_FUNCTIONS: Final = """
lower(text) text lower({0})
upper(text) text upper({0})
length(text) int4 length({0})
char_length(text) int4 length({0})
btrim(text,text) text trim({0},{1})
ltrim(text,text) text ltrim({0},{1})
rtrim(text,text) text rtrim({0},{1})
concat(any,any,any,any,any) text concat({0},{1},{2},{3},{4})
replace(text,text,text) text replace({0},{1},{2})
split_part(text,text,int4) text split_part({0},{1},{2})
left(text,int4) text left({0},{1})
right(text,int4) text right({0},{1})
strpos(text,text) int4 CAST(strpos({0},{1}) AS INTEGER)
starts_with(text,text) bool starts_with({0},{1})
substring(text,int4,int4) text substring({0},{1},{2})
substr(text,int4,int4) text substring({0},{1},{2})
md5(text) text md5({0})
repeat(text,int4) text repeat({0},{1})
quote_literal(text) text ('''' || replace({0},'''','''''') || '''')
regexp_replace(text,text,text) text regexp_replace({0},{1},{2})
abs(int8) int8 abs({0})
generate_subscripts(anyarray of,int4) int4 unnest(generate_series(1,len({0})))
array_to_string(anyarray of,text) text array_to_string(list_filter({0},lambda x: x IS NOT NULL),{1})
array_length(anyarray of,int4) int4 CAST(nullif(len({0}),0) AS INTEGER)
cardinality(anyarray of) int4 CAST(len({0}) AS INTEGER)
unnest(anyarray of) anyelement unnest({0})
array_append(anyarray of,any) same list_append({0},{1})
array_cat(anyarray of,anyarray of) same list_concat({0},{1})
array_position(anyarray of,any) int4 CAST(nullif(list_position({0},{1}),0) AS INTEGER)
coalesce(any,any) same coalesce({0},{1})
"""

_AGGREGATES: Final = (
    Function("count", (ANY,), "int8", "count({0})", aggregate=True),
    Function("array_agg", (ANY,), ARRAY, "list({0})", aggregate=True),
    Function("string_agg", ("text", "text"), "text", "string_agg({0},{1})", aggregate=True),
    Function("row_number", (), "int8", "row_number()"),
    Function("rank", (), "int8", "rank()"),
    Function("dense_rank", (), "int8", "dense_rank()"),
    Function("max", (ANY,), SAME, "max({0})", aggregate=True),
    Function("min", (ANY,), SAME, "min({0})", aggregate=True),
    Function("sum", ("int8",), "int8", "CAST(sum({0}) AS BIGINT)", aggregate=True),
    Function("bool_and", ("bool",), "bool", "bool_and({0})", aggregate=True),
    Function("bool_or", ("bool",), "bool", "bool_or({0})", aggregate=True),
    Function("every", ("bool",), "bool", "bool_and({0})", aggregate=True),
)

_OPTIONAL: Final = {"btrim": 1, "ltrim": 1, "rtrim": 1, "substring": 1, "substr": 1, "concat": 4}


def _read(line: str) -> Function:
    name, _, rest = line.partition("(")
    arguments, _, rest = rest.partition(") ")
    returns, _, template = rest.partition(" ")
    split = tuple(arguments.split(",")) if arguments else ()
    return Function(name, split, returns, template, _OPTIONAL.get(name, 0))


BUILT_IN: Final[Mapping[str, Function]] = {
    function.name: function
    for function in (*map(_read, _TEXT_FUNCTIONS.strip().splitlines()), *_AGGREGATES)
}

_LONGEST_SERIES: Final = 1_000_000
SERIES_TOO_LONG: Final = "generate_series of more than a million numbers is not supported"
TABLE_FUNCTIONS: Final[Mapping[str, TableFunction]] = {
    function.name: function
    for function in (
        TableFunction(
            "generate_series",
            ("int4", "int4", "int4"),
            (("generate_series", "int4"),),
            # A list, which DuckDB makes as a whole and without a limit of memory.
            "SELECT CAST(unnest(generate_series({0},"
            f"CASE WHEN abs(CAST({{1}} AS BIGINT)-{{0}})>{_LONGEST_SERIES} "
            f"THEN error('{SERIES_TOO_LONG}') ELSE {{1}} END,coalesce({{2}},1))) AS INTEGER) AS o1",
            optional=1,
            named=False,
        ),
    )
}
