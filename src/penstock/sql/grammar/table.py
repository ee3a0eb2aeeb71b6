"""CREATE and DROP of tables and schemas, TRUNCATE (parsenodes.h, CreateStmt, CreateTableAsStmt).

Clauses that a Delta table cannot keep are refused by name (0A000).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.sql.grammar.column import (
    ColumnDef,
    Unique,
    column_def,
    default_constant,
    table_constraint,
)
from penstock.sql.grammar.names import (
    Readers,
    any_names,
    cascades,
    not_supported,
    options,
    relation,
    relations,
    role_spec,
)
from penstock.sql.grammar.parsenodes import DefElem, RangeVar, RoleSpec, SelectStmt, Statement
from penstock.sql.grammar.partition_bound import PartitionBound, Strategy, partition_bound
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.raw_statements import read_select
from penstock.sql.grammar.source import Source
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import InvalidObjectDefinition

_STORAGE: Final = frozenset({"fillfactor"})


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """PARTITION BY strategy (columns)."""

    strategy: Strategy
    columns: tuple[str, ...]

    def __str__(self) -> str:
        """Print the key in the catalog's form: ``RANGE (a, b)`` (pg_get_partkeydef)."""
        return f"{self.strategy.name} ({', '.join(map(quote_identifier, self.columns))})"


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """CREATE TABLE. ``primary_keys``, ``uniques``: the table constraints, in order.

    ``parent``, ``bound``: for PARTITION OF, whose columns are the parent's; ``defaults``: its own
    column defaults. ``like``: the table of LIKE; its columns come after the first ``like_at``
    columns. ``storage``: parameters of WITH (...), which have no effect on a Delta table.
    """

    relation: RangeVar
    columns: tuple[ColumnDef, ...] = ()
    primary_keys: tuple[tuple[str, ...], ...] = ()
    missing_ok: bool = False
    partition_by: PartitionSpec | None = None
    parent: RangeVar | None = None
    bound: PartitionBound | None = None
    defaults: tuple[tuple[str, str | None], ...] = ()
    like: RangeVar | None = None
    like_at: int = 0
    uniques: tuple[Unique, ...] = ()
    storage: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTableAs(Statement):
    """CREATE TABLE relation [(columns)] AS query [WITH [NO] DATA]."""

    relation: RangeVar
    columns: tuple[str, ...]
    query: SelectStmt
    missing_ok: bool = False
    with_data: bool = True


@dataclass(frozen=True, slots=True)
class DropTable(Statement):
    """DROP TABLE [IF EXISTS] relations [CASCADE | RESTRICT]."""

    relations: tuple[RangeVar, ...]
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    """TRUNCATE [TABLE] relations."""

    relations: tuple[RangeVar, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema(Statement):
    """CREATE SCHEMA [IF NOT EXISTS] [name] [AUTHORIZATION owner]; name defaults to the owner's."""

    name: str | None
    owner: RoleSpec | None = None
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropSchema(Statement):
    """DROP SCHEMA [IF EXISTS] names [CASCADE | RESTRICT]."""

    names: tuple[str, ...]
    missing_ok: bool = False
    cascade: bool = False


@dataclass
class _Elements:
    """Columns, the keys of table constraints, and LIKE with the number of columns before LIKE."""

    columns: list[ColumnDef] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)
    uniques: list[Unique] = field(default_factory=list)
    like: RangeVar | None = None
    like_at: int = 0


def _create(raw: RawNode, source: Source) -> CreateTable:
    missing_ok, table = bool(raw.take("if_not_exists")), relation(raw)
    raw.expect("oncommit", "ONCOMMIT_NOOP")
    storage = tuple(map(_storage_parameter, options(raw)))
    spec = _partition_spec(raw.node("partspec"))
    bound = raw.node("partbound")
    if bound is not None:
        (parent,) = relations(raw, "inhRelations")
        return CreateTable(
            table,
            missing_ok=missing_ok,
            partition_by=spec,
            parent=parent,
            bound=partition_bound(bound),
            defaults=tuple(_partition_default(node) for node in raw.nodes("tableElts")),
            storage=storage,
        )
    elements = _elements(raw, source)
    return CreateTable(
        table,
        tuple(elements.columns),
        tuple(elements.keys),
        missing_ok,
        spec,
        like=elements.like,
        like_at=elements.like_at,
        uniques=tuple(elements.uniques),
        storage=storage,
    )


def _storage_parameter(option: DefElem) -> tuple[str, str]:
    """Return a storage parameter that PostgreSQL has for heap tables; refuse any other."""
    if option.name not in _STORAGE:
        raise not_supported(f"WITH ({option.name})")
    return option.name, str(option.arg)


def _elements(raw: RawNode, source: Source) -> _Elements:
    found = _Elements()
    for node in raw.nodes("tableElts"):
        element = RawNode.of(node)
        if element.kind == "TableLikeClause":
            if found.like is not None:
                raise not_supported("LIKE of several tables")
            found.like, found.like_at = _like(element), len(found.columns)
        elif element.kind == "ColumnDef":
            found.columns.append(column_def(element, source))
        elif isinstance(key := table_constraint(element), Unique):
            found.uniques.append(key)
        else:
            found.keys.append(key)
    return found


def _like(raw: RawNode) -> RangeVar:
    """Read a ``TableLikeClause``; only columns can be copied."""
    if raw.take("options"):
        raise not_supported("LIKE ... INCLUDING")
    return relation(raw)


def _partition_default(node: Json) -> tuple[str, str | None]:
    """Return a partition's column and its own default."""
    match node:
        case {
            "ColumnDef": {
                "colname": name,
                "constraints": [
                    {"Constraint": {"contype": "CONSTR_DEFAULT", "raw_expr": expression}}
                ],
            }
        }:
            return name, default_constant(expression)
    raise not_supported("PARTITION OF with constraints of columns")


def _partition_spec(fields: Json | None) -> PartitionSpec | None:
    if fields is None:
        return None
    raw = RawNode("PartitionSpec", fields)
    strategy = Strategy(raw.take("strategy").removeprefix("PARTITION_STRATEGY_").lower())
    columns = tuple(_partition_column(node) for node in raw.nodes("partParams"))
    raw.done()
    if strategy is Strategy.LIST and len(columns) > 1:
        raise InvalidObjectDefinition(
            'cannot use "list" partition strategy with more than one column'
        )
    return PartitionSpec(strategy, columns)


def _partition_column(node: Json) -> str:
    raw = RawNode.of(node)
    if raw.take("expr"):
        raise not_supported("an expression as partition key")
    if raw.take("collation") or raw.take("opclass"):
        raise not_supported("a partition key with collation or operator class")
    name = raw.take("name")
    raw.done()
    return str(name)


def _create_as(raw: RawNode, _source: Source) -> CreateTableAs:
    query = read_select(raw.take("query"))
    missing_ok = bool(raw.take("if_not_exists"))
    into = RawNode("IntoClause", raw.take("into"))
    into.expect("onCommit", "ONCOMMIT_NOOP")
    table, columns = relation(into, "rel"), into.names("colNames")
    with_data = not into.take("skipData")
    into.done()
    return CreateTableAs(table, columns, query, missing_ok, with_data=with_data)


def _drop(raw: RawNode, _source: Source) -> DropTable:
    return DropTable(any_names(raw, "objects"), bool(raw.take("missing_ok")), cascades(raw))


def _create_schema(raw: RawNode, _source: Source) -> CreateSchema:
    owner = raw.node("authrole")
    return CreateSchema(
        raw.take("schemaname"),
        None if owner is None else role_spec(owner),
        bool(raw.take("if_not_exists")),
    )


def _drop_schema(raw: RawNode, _source: Source) -> DropSchema:
    return DropSchema(raw.names("objects"), bool(raw.take("missing_ok")), cascades(raw))


def _truncate(raw: RawNode, _source: Source) -> Truncate:
    return Truncate(relations(raw, "relations"), cascades(raw), bool(raw.take("restart_seqs")))


READERS: Final[Readers] = {
    "TruncateStmt": _truncate,
    "CreateStmt": _create,
    "CreateTableAsStmt OBJECT_TABLE": _create_as,
    "DropStmt OBJECT_TABLE": _drop,
    "CreateSchemaStmt": _create_schema,
    "DropStmt OBJECT_SCHEMA": _drop_schema,
}
