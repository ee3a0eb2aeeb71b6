"""Types as SQL writes them (format_type.c, ruleutils.c).

In: oid and typmod. Out: ``character varying(20)``, ``numeric(10,2)``, ``text[]``; and the oid of a
type by any of its names.
"""

from __future__ import annotations

from typing import Final

from penstock.pg_catalog.definitions import types
from penstock.sql.quoting import quote_identifier

_HEADER: Final = 4
_SQL_NAMES: Final = {
    "bit": "bit",
    "bool": "boolean",
    "bpchar": "character",
    "char": '"char"',
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "interval": "interval",
    "json": "json",
    "numeric": "numeric",
    "varbit": "bit varying",
    "varchar": "character varying",
    "time": "time without time zone",
    "timetz": "time with time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}
_OIDS: Final = {name: kind for kind, name in _SQL_NAMES.items()} | {
    "int": "int4",
    "decimal": "numeric",
    "dec": "numeric",
    "float": "float8",
}


def format_type(oid: int | None, typmod: int | None) -> str | None:
    """The type's name; ``-`` for 0, ``???`` for an unknown one (format_type_extended)."""
    if oid is None:
        return None
    if oid == 0:
        return "-"
    row = types().get(oid)
    if row is None:
        return "???"
    if row.typelem and row.typlen == -1 and row.typname.startswith("_"):
        return f"{format_type(row.typelem, typmod)}[]"
    return _with_typmod(row.typname, -1 if typmod is None else typmod, typmod is not None)


def _with_typmod(name: str, typmod: int, given: bool) -> str:
    shown = _SQL_NAMES.get(name) or quote_identifier(name)
    if name in ("bpchar", "bit") and given and typmod < 0:
        return quote_identifier(name)
    if typmod < 0:
        return shown
    match name:
        case "varchar" | "bpchar":
            return f"{shown}({typmod - _HEADER})"
        case "numeric":
            precision, scale = (typmod - _HEADER) >> 16, (typmod - _HEADER) & 0x7FF
            return f"numeric({precision},{scale - 0x800 if scale & 0x400 else scale})"
        case "time" | "timetz" | "timestamp" | "timestamptz":
            word, _, rest = shown.partition(" ")
            return f"{word}({typmod}) {rest}"
        case "bit" | "varbit":
            return f"{shown}({typmod})"
    return shown


def type_oid(name: str) -> int | None:
    """The oid of a type by SQL's or PostgreSQL's name, arrays with ``[]``; None if unknown."""
    text = name.strip().lower().removeprefix("pg_catalog.")
    array = text.endswith("[]")
    base = text.removesuffix("[]").partition("(")[0].strip()
    base = _OIDS.get(base, base.strip('"'))
    for row in types().values():
        if row.typname == base:
            return row.typarray if array else row.oid
    return None
