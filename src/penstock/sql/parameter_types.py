"""Types of parameters that a client has not said: from where they stand (parse_param.c).

In: a statement on tables of the lake, the types that the client has said, and the columns of
tables. Out: an oid for every ``$n``. PostgreSQL gives a parameter the type that a constant would
take at its first place; so it is here for the places where clients put them: compared with a column
or a cast, among rows to insert, in SET, in LIMIT, as an argument. Anything else is text. The
statement itself is checked by whoever runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.sql.builtin import functions_by_name, types_by_name
from penstock.sql.foreign_trees import foreign_tree
from penstock.sql.lexer import lex
from penstock.sql.nesting import check_nesting
from penstock.sql.parameters import apart
from penstock.sql.type_cache import types

ColumnTypes = Callable[[str | None, str], Mapping[str, int]]
"""(schema or None, table) -> type oids by column, in the table's order; empty: not known."""

TEXT: Final = 25
_BOOL: Final = 16
_INT8: Final = 20
_INT4: Final = 23
_NUMERIC: Final = 1700
_LIKE_OTHERS: Final = (
    exp.Coalesce,
    exp.Nullif,
    exp.Greatest,
    exp.Least,
    exp.Case,
    exp.If,
    exp.Between,
    exp.In,
)
_ALIKE: Final = (exp.Binary, *_LIKE_OTHERS)
_TEXTS: Final = (exp.Like, exp.ILike, exp.DPipe, exp.RegexpLike, exp.RegexpILike)
_THROUGH: Final = (exp.Paren, exp.Neg, exp.Max, exp.Min)
_ROW_COUNTS: Final = (exp.Limit, exp.Offset, exp.Fetch)
_STATEMENTS: Final = (exp.Select, exp.Update, exp.Delete, exp.Insert)


def parameter_types(
    text: str, count: int, said: Sequence[int], columns: ColumnTypes
) -> tuple[int, ...]:
    """Oids of ``$1`` to ``$count``. ``said``: 0 where the client leaves it open."""
    found = dict(enumerate((oid for oid in said), 1))
    if all(found.get(number) for number in range(1, count + 1)):
        return tuple(found[number] for number in range(1, count + 1))
    try:
        check_nesting(lex(text))
        with foreign_tree():
            tree = sqlglot.parse_one(apart(text), read="postgres")
            _Inference(tree, columns).fill(found)
    except SqlglotError:
        pass  # whoever runs it says what is wrong
    return tuple(found.get(number) or TEXT for number in range(1, count + 1))


class _Inference:
    """Over one statement."""

    def __init__(self, tree: Any, columns: ColumnTypes) -> None:
        self._tree = tree
        self._columns = columns

    def fill(self, found: dict[int, int]) -> None:
        """Types of the parameters that have none."""
        for node in self._tree.find_all(exp.Parameter, bfs=False):
            number = int(node.name) if node.name.isdigit() else 0
            if number and not found.get(number):
                found[number] = self._at(node) or 0

    def _at(self, node: Any) -> int | None:
        """The type that the place of a node asks for."""
        parent = node.parent
        if isinstance(parent, _THROUGH):
            return self._at(parent)
        if isinstance(parent, exp.Cast):
            return _named(parent.args["to"])
        if isinstance(parent, _TEXTS):
            return TEXT
        if isinstance(parent, _ROW_COUNTS):
            return _INT8
        if isinstance(parent, exp.Any):
            element = self._beside(parent, parent.parent)
            known = types().get(element or 0)
            return known.array if known is not None else None
        if isinstance(parent, exp.Array):
            return self._beside(node, parent) or self._element(parent)
        if isinstance(parent, exp.EQ) and isinstance(parent.parent, exp.Update):
            return self._target(parent.parent.this).get(_folded(parent.this.this))
        if isinstance(parent, _ALIKE):
            return self._beside(node, parent) or self._around(parent)
        if isinstance(parent, exp.Where | exp.Having | exp.Not | exp.And | exp.Or):
            return _BOOL
        if isinstance(parent, exp.Tuple | exp.Select):
            return self._inserted(node, parent)
        if isinstance(parent, exp.Func):
            return _argument(parent, node)
        return None

    def _around(self, parent: Any) -> int | None:
        """What is itself only as good as its place: ``coalesce($1, $2) = id``."""
        alike = isinstance(parent, (exp.Coalesce, exp.Nullif, exp.Case, exp.Greatest, exp.Least))
        return self._at(parent) if alike else None

    def _beside(self, node: Any, parent: Any) -> int | None:
        """The type of the first that has one among what stands with a node."""
        for other in _operands(parent):
            if other is not node and (found := self._of(other)):
                return found
        return None

    def _element(self, array: Any) -> int | None:
        """``id = ANY (ARRAY[$1, $2])``"""
        quantified = array.parent
        while isinstance(quantified, exp.Paren):
            quantified = quantified.parent
        if isinstance(quantified, exp.Any):
            return self._beside(quantified, quantified.parent)
        return None

    def _of(self, node: Any) -> int | None:
        """The type of an expression, None where it has none of its own."""
        match node:
            case exp.Cast():
                return _named(node.args["to"])
            case exp.Column():
                return self._column(node)
            case exp.Literal() if not node.is_string:
                whole = str(node.this).isdigit()
                return _NUMERIC if not whole else _INT4 if int(node.this) < 1 << 31 else _INT8
            case exp.Boolean():
                return _BOOL
            case exp.Paren() | exp.Neg() | exp.Max() | exp.Min():
                return self._of(node.this)
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod():
                return self._of(node.this) or self._of(node.expression)
            case exp.DPipe():
                return TEXT
            case exp.Coalesce() | exp.Nullif() | exp.Case() | exp.Greatest() | exp.Least():
                return self._beside(node, node)
            case exp.Count():
                return _INT8
            case exp.Sum():
                inner = self._of(node.this)
                return {21: _INT8, _INT4: _INT8, _INT8: _NUMERIC}.get(inner or 0, inner)
            case exp.Func():
                return _result(node)
        return None

    def _column(self, column: Any) -> int | None:
        statement = column.find_ancestor(*_STATEMENTS)
        while statement is not None:
            for table in _tables(statement):
                if column.table and _folded_text(table.alias_or_name) != _folded(
                    column.args["table"]
                ):
                    continue
                found = self._target(table).get(_folded(column.this))
                if found:
                    return found
            statement = statement.find_ancestor(*_STATEMENTS)
        return None

    def _inserted(self, node: Any, row: Any) -> int | None:
        """Among the values of an INSERT: the column's at its place."""
        insert = row.find_ancestor(exp.Insert)
        if insert is None:
            return None
        if isinstance(row, exp.Select) and row is not insert.expression:
            return None
        place = next(n for n, item in enumerate(row.expressions) if item is node)
        table = insert.this
        if isinstance(table, exp.Schema):
            names = [_folded(column) for column in table.expressions]
            types_of = self._target(table.this)
        else:
            types_of = self._target(table)
            names = list(types_of)
        return types_of.get(names[place]) if place < len(names) else None

    def _target(self, table: Any) -> Mapping[str, int]:
        schema = table.args.get("db")
        return self._columns(_folded(schema) if schema else None, _folded(table.this))


def _operands(parent: Any) -> Iterator[Any]:
    """What is of one type with one another in an expression."""
    match parent:
        case exp.Case():
            for branch in parent.args["ifs"]:
                yield branch.args["true"]
            yield parent.args.get("default")
        case exp.If():
            yield from _operands(parent.parent)
        case exp.In():
            yield parent.this
            yield from parent.expressions
            query = parent.args.get("query")
            yield query.this.expressions[0] if query is not None else None
        case exp.Between():
            yield from (parent.this, parent.args["low"], parent.args["high"])
        case exp.Coalesce():
            yield from (parent.this, *parent.expressions)
        case _:
            yield from (parent.args.get("this"), parent.args.get("expression"))
            yield from parent.expressions


def _tables(statement: Any) -> Iterator[Any]:
    """Tables of one FROM, and what is changed."""
    if isinstance(statement, exp.Update | exp.Delete):
        yield statement.this
    clause = statement.args.get("from_")
    sources = [] if clause is None else [clause.this]
    sources += [join.this for join in statement.args.get("joins") or ()]
    for source in sources:
        if isinstance(source, exp.Table):
            yield source
            for join in source.args.get("joins") or ():
                if isinstance(join.this, exp.Table):
                    yield join.this


def _named(kind: Any) -> int | None:
    if kind.this == exp.DType.ARRAY:
        known = types().get(_named(kind.expressions[0]) or 0)
        return known.array if known is not None else None
    name = kind.sql(dialect="postgres").partition("(")[0].lower()
    return _by_sql_name().get(_SYNONYMS.get(name, name))


_SYNONYMS: Final = {
    "int": "integer",
    "decimal": "numeric",
    "varchar": "character varying",
    "char": "character",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "time": "time without time zone",
    "timetz": "time with time zone",
}


def _by_sql_name() -> Mapping[str, int]:
    names = {name: kind.oid for name, kind in types_by_name().items()}
    return names | {kind.sql_name: kind.oid for kind in types().values()}


def _argument(call: Any, node: Any) -> int | None:
    """The preferred type among the functions of that name with so many arguments."""
    arguments = list(_arguments(call))
    if node not in arguments:
        return None
    place = next(n for n, argument in enumerate(arguments) if argument is node)
    kinds = [
        types()[function.arguments[place]]
        for function in functions_by_name().get(_name(call), ())
        if len(function.arguments) == len(arguments)
    ]
    found = {kind.oid for kind in kinds}
    if len(found) == 1:
        (only,) = kinds[:1]
        return only.oid if only.kind == "b" else None
    if TEXT in found:
        return TEXT
    return next((kind.oid for kind in kinds if kind.preferred), None)


def _arguments(call: Any) -> Iterator[Any]:
    if not isinstance(call, exp.Anonymous):
        yield call.this
    yield from call.expressions
    yield from (v for k, v in call.args.items() if k not in ("this", "expressions") and v)


def _result(call: Any) -> int | None:
    results = {f.result for f in functions_by_name().get(_name(call), ())}
    if len(results) != 1:
        return None
    (result,) = results
    return result if types()[result].kind == "b" else None


def _name(call: Any) -> str:
    return str(call.this if isinstance(call, exp.Anonymous) else call.sql_name()).lower()


def _folded(identifier: Any) -> str:
    if identifier.args.get("quoted"):
        return str(identifier.this)
    return str(identifier.this).lower()


def _folded_text(name: str) -> str:
    return name.lower()
