"""PostgreSQL's queries and changes of rows as Spark SQL.

In: the text of a SELECT, INSERT, UPDATE or DELETE, and what each table is called in Spark. Out:
Spark SQL, or SQLSTATE 0A000 for what has no equal there. Values are converted to the types of the
columns that they are written to, as PostgreSQL does it with literals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.errors import FeatureNotSupported, SqlSyntaxError, UndefinedObject
from penstock.sql.foreign_trees import foreign_tree
from penstock.sql.lexer import lex
from penstock.sql.nesting import check_array_nesting
from penstock.sql.spark_guard import check_query, check_tree, is_of_with, without_variables


@dataclass(frozen=True, slots=True)
class SparkTable:
    """``name``: as Spark SQL writes it. ``columns``: (name, Spark type), in the table's order."""

    name: str
    columns: tuple[tuple[str, str], ...]


Locate = Callable[[str | None, str], SparkTable]
"""(schema or None, table) -> what it is in Spark. Raises UndefinedObject (42P01)."""

_REFUSED = {
    "returning": "RETURNING",
    "with_": "WITH in front of a change",
    "from_": "FROM in UPDATE",
    "using": "USING in DELETE",
    "conflict": "ON CONFLICT",
}


def query_for_spark(text: str, locate: Locate) -> str:
    """A SELECT. Raises FeatureNotSupported, SqlSyntaxError, UndefinedObject."""
    tree = _parse(text)
    with foreign_tree():
        check_query(tree)
        return _spark(_with_tables(tree, locate))


def change_for_spark(text: str, locate: Locate) -> str:
    """An INSERT, UPDATE or DELETE. Raises as ``query_for_spark``."""
    tree = _parse(text)
    for argument, what in _REFUSED.items():
        if tree.args.get(argument) or tree.args.get(argument.rstrip("_")):
            raise FeatureNotSupported(f"{what} is not supported")
    with foreign_tree():
        check_tree(tree)
        return _change(tree, text, locate)


def _change(tree: exp.Expr, text: str, locate: Locate) -> str:
    match tree:
        case exp.Insert():
            return _insert(tree, locate)
        case exp.Update():
            return _update(tree, locate)
        case exp.Delete():
            target = _located(tree.this, locate)
            where = tree.args.get("where")
            if where is not None:
                where = _with_tables(where, locate)
            return f"DELETE FROM {target.name}{_alias(tree.this)} {_spark(where)}".rstrip()
    raise FeatureNotSupported(f"{text.split(maxsplit=1)[0].upper()} is not supported")


def _insert(tree: exp.Expr, locate: Locate) -> str:
    table, named = tree.this, None
    if isinstance(table, exp.Schema):
        table, named = table.this, [column.name for column in table.expressions]
    target = _located(table, locate)
    if tree.args.get("default"):
        raise FeatureNotSupported("INSERT ... DEFAULT VALUES is not supported")
    wanted = _columns(target, named)
    if tree.expression is None:
        raise SqlSyntaxError("syntax error at end of input")
    source = _with_tables(tree.expression, locate)
    names = [f"c{number}" for number in range(len(wanted))]
    if isinstance(source, exp.Values):
        given = {len(row.expressions) for row in source.expressions}
        if any(count > len(wanted) for count in given):
            raise SqlSyntaxError("INSERT has more expressions than target columns")
        if len(given) > 1:
            raise SqlSyntaxError("VALUES lists must all be the same length")
        if named is not None and given != {len(wanted)}:
            raise SqlSyntaxError("INSERT has more target columns than expressions")
        wanted, names = wanted[: min(given)], names[: min(given)]
        source.set("alias", None)
    casts = ", ".join(
        f"CAST({name} AS {kind})" for name, (_, kind) in zip(names, wanted, strict=True)
    )
    into = ", ".join(_quoted(name) for name, _ in wanted)
    return (
        f"INSERT INTO {target.name} ({into}) SELECT {casts} FROM ({_spark(source)}) "
        f"AS source({', '.join(names)})"
    )


def _update(tree: exp.Expr, locate: Locate) -> str:
    target = _located(tree.this, locate)
    types = dict(target.columns)
    settings = []
    for assignment in tree.expressions:
        if not isinstance(assignment, exp.EQ) or not isinstance(assignment.this, exp.Column):
            raise FeatureNotSupported("this form of SET is not supported")
        name = assignment.this.name
        if name not in types:
            raise _no_column(name, target)
        value = _spark(_with_tables(assignment.expression, locate))
        settings.append(f"{_quoted(name)} = CAST({value} AS {types[name]})")
    where = tree.args.get("where")
    if where is not None:
        where = _with_tables(where, locate)
    return (
        f"UPDATE {target.name}{_alias(tree.this)} SET {', '.join(settings)} {_spark(where)}"
    ).rstrip()


def _columns(target: SparkTable, named: Sequence[str] | None) -> list[tuple[str, str]]:
    if named is None:
        return list(target.columns)
    types = dict(target.columns)
    for name in named:
        if name not in types:
            raise _no_column(name, target)
    return [(name, types[name]) for name in named]


def _no_column(name: str, target: SparkTable) -> UndefinedObject:
    return UndefinedObject(f'column "{name}" does not exist', sqlstate="42703")


def _parse(text: str) -> exp.Expr:
    check_array_nesting(lex(text))
    try:
        with foreign_tree():
            return sqlglot.parse_one(text, read="postgres")
    except SqlglotError as error:
        raise SqlSyntaxError(f"could not read the query: {str(error).splitlines()[0]}") from None


def _with_tables(tree: exp.Expr, locate: Locate) -> exp.Expr:
    """Every table of the lake by its name in Spark; those of WITH stay."""
    tables = [t for t in tree.find_all(exp.Table) if not isinstance(t.this, exp.Func)]
    for table in [table for table in tables if not is_of_with(table)]:
        found = _located(table, locate)
        alias = table.alias or table.name
        replacement = exp.alias_(exp.to_table(found.name, dialect="spark"), alias, table=True)
        if table is tree:
            return replacement
        table.replace(replacement)
    return tree


def _located(table: exp.Expr, locate: Locate) -> SparkTable:
    if not isinstance(table, exp.Table):
        raise FeatureNotSupported("only tables can be changed")
    return locate(table.db or None, table.name)


def _alias(table: exp.Expr) -> str:
    return f" AS {_quoted(table.alias or table.name)}"


def _spark(tree: exp.Expr | None) -> str:
    if tree is None:
        return ""
    try:
        text = tree.sql(dialect="spark", unsupported_level=sqlglot.ErrorLevel.RAISE, comments=False)
    except SqlglotError as error:
        raise FeatureNotSupported(f"not supported: {error}") from None
    return without_variables(text)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
