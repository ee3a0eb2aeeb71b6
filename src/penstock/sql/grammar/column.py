"""Columns as CREATE and ALTER TABLE write them (parsenodes.h, ColumnDef, TypeName, Constraint).

A type is kept as its name in PostgreSQL's catalog, with the modifiers as written;
``penstock.pgtypes.type_names`` looks it up. Clauses that a Delta table cannot keep (checks,
storage) are refused by name (0A000).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from penstock.attribute import AttGenerated
from penstock.errors import FeatureNotSupported, InvalidParameterValue, SqlSyntaxError
from penstock.identifiers import simple_quote_literal
from penstock.sql.grammar.names import constant, def_elems, not_supported, option_text, relation
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source
from penstock.sql.text.datetime_literals import read_timestamp
from penstock.sqlstate import InvalidTextRepresentation

SequenceOption = tuple[str, int | bool | None]
"""``increment``, ``start``, ``minvalue``, ``maxvalue``, ``cache``, ``cycle``; the value is None for
NO MINVALUE and NO MAXVALUE."""

_REFUSED: Final = {
    "as": "AS type",
    "owned_by": "OWNED BY",
    "sequence_name": "SEQUENCE NAME",
    "logged": "LOGGED",
    "unlogged": "UNLOGGED",
    "restart": "RESTART",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """GENERATED kind AS IDENTITY (options); ``kind`` is a value of pg_attribute.attidentity."""

    kind: str
    options: tuple[SequenceOption, ...] = ()


def identity(raw: RawNode) -> Identity:
    """Read the Constraint node of an identity column. Raises FeatureNotSupported."""
    kind = raw.take("generated_when")
    return Identity(kind, tuple(_option(name, node) for name, node in def_elems(raw)))


def _option(name: str, node: Json | None) -> SequenceOption:
    if name in _REFUSED:
        raise not_supported(f"{_REFUSED[name]} of an identity column's sequence")
    if node is None:
        return name, None
    if name == "cycle":
        return name, option_text(node) == "true"
    text = str(option_text(node))
    try:
        return name, int(text)
    except ValueError:
        raise InvalidTextRepresentation(f'invalid input syntax for type bigint: "{text}"') from None


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type as written. ``name``: without ``pg_catalog``; ``schema``: None if none was written.
    ``modifiers``: integers. ``array``: the type has brackets or ARRAY; as in PostgreSQL, the number
    of brackets and their content mean nothing.
    """

    name: str
    schema: str | None = None
    modifiers: tuple[int, ...] = ()
    array: bool = False


@dataclass(frozen=True, slots=True)
class Unique:
    """[CONSTRAINT name] UNIQUE (columns)"""

    columns: tuple[str, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """GENERATED ALWAYS AS (expression) STORED or VIRTUAL, with the expression as written."""

    expression: str
    kind: AttGenerated


class ConstrType(Enum):
    """Column constraints without arguments, by PostgreSQL's names."""

    NULL = "NULL"
    NOTNULL = "NOTNULL"
    PRIMARY = "PRIMARY"


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column with the constraints that follow it in the statement.

    ``default``: a constant as SQL text, or one of ``TIMES`` and ``NEXTVAL``. ``generations``,
    ``identities``: every GENERATED ... STORED or VIRTUAL, every AS IDENTITY; two are an error.
    """

    name: str
    type: ColumnType
    constraints: frozenset[ConstrType] = frozenset()
    default: str | None = None
    generations: tuple[Generation, ...] = ()
    identities: tuple[Identity, ...] = ()
    references: RangeVar | None = None
    unique: Unique | None = None


_CATALOG: Final = "pg_catalog"
_FULL_RANGE: Final = 0x7FFF
"""INTERVAL_FULL_RANGE, the modifier before the precision of an interval without fields."""
_FOREIGN_KEY: Final = {
    "fk_matchtype": ("s", "MATCH"),
    "fk_upd_action": ("a", "ON UPDATE"),
    "fk_del_action": ("a", "ON DELETE"),
}
"""For each field of a foreign key: its value without a clause, and the clause that changes it."""


def column_type(fields: Json) -> ColumnType:
    """Read the fields of a TypeName."""
    raw = RawNode("TypeName", fields)
    names, array = raw.names("names"), bool(raw.take("arrayBounds"))
    modifiers = tuple(_modifier(node) for node in raw.nodes("typmods"))
    raw.ignore("typemod")
    if raw.take("pct_type"):
        raise not_supported("%TYPE")
    if raw.take("setof"):
        raise not_supported("SETOF")
    raw.done()
    if len(names) > 2:
        raise not_supported("a type in another database")
    schema = names[0] if len(names) == 2 and names[0] != _CATALOG else None
    if modifiers and names == (_CATALOG, "interval") and modifiers[0] != _FULL_RANGE:
        raise not_supported("an interval with fields")
    return ColumnType(names[-1], schema, modifiers, array)


def _modifier(node: Json) -> int:
    """Return an integer; other expressions are refused."""
    value = constant(node) if "A_Const" in node else None
    if not isinstance(value, int) or isinstance(value, bool):
        if value and isinstance(value, str) and "fval" in node["A_Const"]:
            raise InvalidParameterValue(f'invalid input syntax for type integer: "{value}"')
        raise not_supported("a type modifier that is no integer")
    return value


def column_def(raw: RawNode, source: Source) -> ColumnDef:
    """Read a ColumnDef with a type. Raises SqlSyntaxError, FeatureNotSupported."""
    name, type_ = raw.take("colname"), column_type(raw.take("typeName"))
    raw.ignore("is_local")
    constraints: set[ConstrType] = set()
    defaults: list[str | None] = []
    generations: list[Generation] = []
    identities: list[Identity] = []
    references: RangeVar | None = None
    unique: Unique | None = None
    for node in raw.nodes("constraints"):
        constraint = RawNode.of(node)
        kind = constraint.take("contype").removeprefix("CONSTR_")
        match kind:
            case "NOTNULL" | "NULL" | "PRIMARY":
                _key_options(constraint, "PRIMARY KEY")
                constraints.add(ConstrType(kind))
            case "UNIQUE":
                unique = unique or _unique(constraint, (name,))
            case "DEFAULT":
                if defaults:
                    raise SqlSyntaxError(f'multiple default values specified for column "{name}"')
                defaults.append(default_constant(constraint.take("raw_expr")))
            case "GENERATED":
                generations.append(_generation(constraint, source))
            case "IDENTITY":
                identities.append(identity(constraint))
            case "FOREIGN" if references is None:
                references = _references(constraint)
            case _:
                raise refused(kind)
        constraint.ignore("conname")
        constraint.done()
    raw.done()
    return ColumnDef(
        name,
        type_,
        constraints=frozenset(constraints),
        default=defaults[0] if defaults else None,
        generations=tuple(generations),
        identities=tuple(identities),
        references=references,
        unique=unique,
    )


def refused(kind: str) -> FeatureNotSupported:
    """Return the error for an unsupported constraint."""
    names = {
        "FOREIGN": "REFERENCES of several tables",
        "EXCLUSION": "EXCLUDE",
        "NOTNULL": "NOT NULL as a table constraint",
    }
    shown = names.get(kind, kind.removeprefix("ATTR_").replace("_", " "))
    return not_supported(shown)


def table_constraint(raw: RawNode) -> tuple[str, ...] | Unique:
    """Return PRIMARY KEY as its columns, UNIQUE as ``Unique``. Raises FeatureNotSupported."""
    kind = raw.take("contype").removeprefix("CONSTR_")
    name, columns = raw.take("conname"), raw.names("keys")
    found: tuple[str, ...] | Unique
    match kind:
        case "PRIMARY":
            _key_options(raw, "PRIMARY KEY")
            found = columns
        case "UNIQUE":
            found = _unique(raw, columns, name)
        case "FOREIGN":
            raise not_supported("FOREIGN KEY")
        case _:
            raise refused(kind)
    raw.done()
    return found


def _key_options(raw: RawNode, what: str) -> None:
    raw.ignore("is_enforced", "initially_valid")
    if raw.take("indexname"):
        raise not_supported(f"{what} USING INDEX")
    if raw.take("without_overlaps"):
        raise not_supported(f"{what} ... WITHOUT OVERLAPS")
    if raw.take("indexspace"):
        raise not_supported(f"{what} ... USING INDEX TABLESPACE")
    if raw.take("options"):
        raise not_supported(f"{what} ... WITH")
    if what == "PRIMARY KEY":
        raw.ignore("including")  # non-key columns of the index
    elif raw.take("including"):
        raise not_supported(f"{what} ... INCLUDE")


def _unique(raw: RawNode, columns: tuple[str, ...], name: str | None = None) -> Unique:
    if raw.take("nulls_not_distinct"):
        raise not_supported("UNIQUE NULLS NOT DISTINCT")
    _key_options(raw, "UNIQUE")
    return Unique(columns, name or raw.take("conname"))


def _generation(raw: RawNode, source: Source) -> Generation:
    raw.ignore("raw_expr", "generated_when")  # the grammar allows only ALWAYS
    stored = raw.take("generated_kind") == "s"
    return Generation(
        source.parenthesized(raw.place), AttGenerated.STORED if stored else AttGenerated.VIRTUAL
    )


def _references(raw: RawNode) -> RangeVar:
    """Read REFERENCES; clauses for MATCH, ON UPDATE and ON DELETE are refused."""
    raw.ignore("pk_attrs", "is_enforced", "initially_valid")
    for field, (plain, clause) in _FOREIGN_KEY.items():
        if raw.take(field) != plain:
            raise not_supported(f"REFERENCES ... {clause}")
    return relation(raw, "pktable")


# Read DEFAULT: a constant, kept as text, or the current time.

NOW: Final = "now()"
CURRENT_TIMESTAMP: Final = "CURRENT_TIMESTAMP"
CURRENT_DATE: Final = "CURRENT_DATE"
LOCALTIMESTAMP: Final = "LOCALTIMESTAMP"
TIMES: Final = frozenset({NOW, CURRENT_TIMESTAMP, CURRENT_DATE, LOCALTIMESTAMP})
"""Defaults that are not constants: the time of the transaction that writes rows."""
_TIME_OF: Final = {
    "SVFOP_CURRENT_TIMESTAMP": CURRENT_TIMESTAMP,
    "SVFOP_CURRENT_DATE": CURRENT_DATE,
    "SVFOP_LOCALTIMESTAMP": LOCALTIMESTAMP,
}
NEXTVAL: Final = "nextval()"
"""The default of a serial or identity column: the next value of its sequence. The node's catalog
knows the sequence; a default written by a user never has this text."""
_NO_CALL: Final = {"funcformat", "location"}
"""The fields that the call of a function without arguments may have besides its name."""
BOOLEANS: Final = {"true": "t", "false": "f"}
"""The default of a boolean as SQL writes it -> its value in PostgreSQL's text format."""


def default_constant(node: Json) -> str | None:
    """Return the default constant; None for DEFAULT NULL. Raises FeatureNotSupported."""
    match node:
        case {"A_Const": fields}:
            value = constant(node)
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, str) and "sval" in fields:
                return simple_quote_literal(value)
            return None if value is None else str(value)
        case {"FuncCall": {"funcname": [{"String": {"sval": "now"}}], **more}} if not (
            more.keys() - _NO_CALL
        ):
            return NOW
        case {"SQLValueFunction": {"op": operation}} if operation in _TIME_OF:
            return _TIME_OF[operation]
    raise not_supported("DEFAULT with an expression")


def default_text(default: str, now: datetime | None = None) -> str:
    """Return the value in PostgreSQL's text format. ``now``: the time for now(), in UTC."""
    if default in TIMES and now is not None:
        if default == CURRENT_DATE:
            return now.date().isoformat()
        zone = default in (NOW, CURRENT_TIMESTAMP)
        at = now if zone else now.replace(tzinfo=None)
        return read_timestamp(at.isoformat(sep=" "), zone=zone)
    if default in BOOLEANS:
        return BOOLEANS[default]
    return default[1:-1].replace("''", "'") if default.startswith("'") else default
