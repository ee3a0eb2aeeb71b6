"""Scopes: resolve column references (parse_relation.c, colNameToVar, refnameNamespaceItem).

FROM adds relations to a scope; a reference is resolved to a node, or raises PostgreSQL's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Protocol

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.sql.builtin.search_path import schemas_to_search
from penstock.sql.grammar.parsenodes import RangeVar, SelectStmt
from penstock.sql.typed.expression_analysis import SYSTEM_COLUMNS
from penstock.sql.typed.primnodes import Node, Var
from penstock.sql.typed.query_nodes import Query
from penstock.sqlstate import (
    AmbiguousAlias,
    AmbiguousColumn,
    DuplicateAlias,
    UndefinedColumn,
    UndefinedTable,
)

Column = tuple[str, Node]
"""(name, value)"""


@dataclass(frozen=True, slots=True)
class NamedRelation:
    """A relation that qualified references can name. ``schema``: None for an alias. ``system``:
    columns that ``*`` leaves out."""

    name: str
    schema: str | None
    columns: tuple[Column, ...]
    system: tuple[Column, ...] = ()

    def conflicts_with(self, other: NamedRelation) -> bool:
        """Tell whether both cannot be in one FROM: tables of two schemas can
        (checkNameSpaceConflicts)."""
        known = self.schema is not None and other.schema is not None
        return self.name == other.name and not (known and self.schema != other.schema)


@dataclass(frozen=True, slots=True)
class ParseNamespace:
    """The visible names. ``columns``: the columns for unqualified names and ``*``, in order."""

    relations: tuple[NamedRelation, ...] = ()
    columns: tuple[Column, ...] = ()

    def joined(self, other: ParseNamespace) -> ParseNamespace:
        """Add the other namespace's relations and columns. Raises DuplicateObject (42712)."""
        return self.merged(other, (*self.columns, *other.columns))

    def merged(self, other: ParseNamespace, columns: tuple[Column, ...]) -> ParseNamespace:
        """Put both together, with ``columns`` as the columns of their join."""
        for relation in other.relations:
            if any(map(relation.conflicts_with, self.relations)):
                raise DuplicateAlias(f'table name "{relation.name}" specified more than once')
        return ParseNamespace((*self.relations, *other.relations), columns)


@dataclass
class Scope:
    """The names of one query. ``parent``: the scope of the query around it."""

    parent: Scope | None = None
    namespace: ParseNamespace = field(default_factory=ParseNamespace)

    def resolve(self, fields: Sequence[str]) -> Node:
        """Return the node that a reference means. Raises PenstockError (42702, 42703, 42P01)."""
        *qualifier, name = fields
        if len(qualifier) > 2:
            raise FeatureNotSupported(
                "cross-database references are not implemented: " + ".".join(fields)
            )
        scope: Scope | None = self
        while scope is not None:
            found = scope._find(qualifier, name)
            if found is not None:
                return found
            scope = scope.parent
        if name in SYSTEM_COLUMNS:
            raise FeatureNotSupported(f'system column "{name}" is not supported')
        if qualifier:
            raise UndefinedTable(f'missing FROM-clause entry for table "{qualifier[-1]}"')
        if self._relations([name]):
            raise FeatureNotSupported("whole rows are not supported in expressions")
        raise _no_column(f'"{name}"')

    def _find(self, qualifier: Sequence[str], name: str) -> Node | None:
        if not qualifier:
            seen = [node for known, node in self.namespace.columns if known == name]
            if not seen and name in SYSTEM_COLUMNS:
                every = (relation.system for relation in self.namespace.relations)
                seen = [node for known, node in chain(*every) if known == name]
            return _only(seen, name)
        relations = self._relations(qualifier)
        if not relations:
            return None
        if len(relations) > 1:
            raise AmbiguousAlias(f'table reference "{qualifier[-1]}" is ambiguous')
        (relation,) = relations
        found = [node for known, node in relation.columns if known == name]
        found = found or [node for known, node in relation.system if known == name]
        if not found and name in SYSTEM_COLUMNS:
            raise FeatureNotSupported(f'system column "{name}" is not supported')
        if not found:
            raise _no_column(f"{qualifier[-1]}.{name}")
        return _only(found, name)

    def and_outer(self) -> Iterator[Scope]:
        """Yield this scope and those of the queries around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def relation_names(self) -> set[str]:
        """Return the unique names of the relations whose columns are visible."""
        seen = [node for relation in self.namespace.relations for _, node in relation.columns]
        seen += [node for _, node in self.namespace.columns]
        return {node.relation for node in seen if isinstance(node, Var)}

    def star(self, qualifier: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns of ``*`` or ``relation.*``. Raises PenstockError (42601, 42P01)."""
        if not qualifier:
            if not self.namespace.relations and not self.namespace.columns:
                raise SqlSyntaxError("SELECT * with no tables specified is not valid")
            return self.namespace.columns
        relations = self._relations(qualifier)
        if not relations:
            raise UndefinedTable(f'missing FROM-clause entry for table "{qualifier[-1]}"')
        return relations[0].columns

    def _relations(self, qualifier: Sequence[str]) -> list[NamedRelation]:
        *schema, name = qualifier
        return [
            relation
            for relation in self.namespace.relations
            if relation.name == name and (not schema or relation.schema == schema[-1])
        ]


def schema_of(name: RangeVar) -> str | None:
    """Return the schema of a table as written. The one of a name without a schema is known if only
    one is searched."""
    schemas = schemas_to_search(name.schema)
    return schemas[0] if len(schemas) == 1 else None


def _only(found: Sequence[Node], name: str) -> Node | None:
    if len(found) > 1:
        raise AmbiguousColumn(f'column reference "{name}" is ambiguous')
    return found[0] if found else None


def _no_column(shown: str) -> PenstockError:
    return UndefinedColumn(f"column {shown} does not exist")


# The state that the queries of a statement share (ParseState of parse_node.h).

FindTable = Callable[[RangeVar], tuple[Attribute, ...]]
"""Returns the columns of a table. Raises UndefinedObject (42P01), PenstockError (42501)."""


class Analyze(Protocol):
    """The analysis of a query within another one."""

    def __call__(self, raw: SelectStmt, parent: Scope | None = None, /) -> Query: ...


@dataclass(frozen=True)
class Surroundings:
    """The look-ups of a statement.

    ``find_view``: returns a view's query, "" for a view without rows, None if the relation is not a
    view. ``functions``: the columns of functions in FROM, by name. ``parameters``: known types
    of parameters by number; None if parameters are not allowed. ``system_columns``: returns those
    that a table has.
    """

    find_table: FindTable
    find_view: Callable[[RangeVar], str | None] = lambda relation: None
    functions: Mapping[str, tuple[Attribute, ...]] = field(default_factory=dict)
    parameters: dict[int, int] | None = None
    system_columns: Callable[[RangeVar], tuple[Attribute, ...]] = lambda relation: ()


class Relations:
    """The relations of one statement."""

    def __init__(self, around: Surroundings, analyze: Analyze) -> None:
        self.around = around
        self.analyze = analyze
        self._numbers: Iterator[int] = count(1)

    def name(self) -> str:
        """Return a name that no other relation has."""
        return f"r{next(self._numbers)}"
