"""PostgreSQL 18's key words that are not free to use everywhere (kwlist.h).

In: nothing. Out: the words by category; every other key word is unreserved and works like any name.
A test compares the lists with ``pg_get_keywords()``.
"""

from __future__ import annotations

from typing import Final


def words(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


RESERVED: Final = words(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column
    constraint create current_catalog current_date current_role current_time current_timestamp
    current_user default deferrable desc distinct do else end except false fetch for foreign from
    grant group having in initially intersect into lateral leading limit localtime localtimestamp
    not null offset on only or order placing primary references returning select session_user some
    symmetric system_user table then to trailing true union unique user using variadic when where
    window with
    """
)

TYPE_OR_FUNCTION_NAME: Final = words(
    """
    authorization binary collation concurrently cross current_schema freeze full ilike inner is
    isnull join left like natural notnull outer overlaps right similar tablesample verbose
    """
)

COLUMN_NAME: Final = words(
    """
    between bigint bit boolean char character coalesce dec decimal exists extract float greatest
    grouping inout int integer interval json json_array json_arrayagg json_exists json_object
    json_objectagg json_query json_scalar json_serialize json_table json_value least merge_action
    national nchar none normalize nullif numeric out overlay position precision real row setof
    smallint substring time timestamp treat trim values varchar xmlattributes xmlconcat xmlelement
    xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """
)

TYPE_NAMES: Final = {
    "bigint": "int8",
    "bit": "bit",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "dec": "numeric",
    "decimal": "numeric",
    "float": "float8",
    "int": "int4",
    "integer": "int4",
    "interval": "interval",
    "json": "json",
    "nchar": "bpchar",
    "numeric": "numeric",
    "real": "float4",
    "smallint": "int2",
    "time": "time",
    "timestamp": "timestamp",
    "varchar": "varchar",
}
"""Column-name key words that are types by themselves, with what the grammar makes of them."""

NOT_A_NAME: Final = RESERVED | TYPE_OR_FUNCTION_NAME
"""Words that ``ColId`` (names of objects and columns) excludes unless they are quoted."""
