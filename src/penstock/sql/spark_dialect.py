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

from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    SqlSyntaxError,
    UndefinedObject,
)
from penstock.sql.foreign_trees import foreign_tree
from penstock.sql.lexer import lex
from penstock.sql.nesting import check_nesting
from penstock.sql.result_names import name_columns
from penstock.sql.series import series_for_spark
from penstock.sql.spark_guard import check_query, check_tree, is_of_with, without_variables
from penstock.sql.table_sources import check_table, replacement


@dataclass(frozen=True, slots=True)
class SparkTable:
    """``name``: as Spark SQL writes it. ``columns``: (name, Spark type), in the table's order."""

    name: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a table, without the table. ``kind``: insert, update or delete.

    ``columns`` and ``rows``: what an INSERT writes and the SELECT that gives it, by those names.
    ``settings``: (column, value) of an UPDATE. ``where``: "" for every row. ``alias``: what the
    values and the condition call the table, with AS.
    """

    kind: str
    alias: str
    columns: tuple[str, ...] = ()
    rows: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    where: str = ""

    def on(self, table: str) -> str:
        """The statement; ``table``: as Spark SQL writes it."""
        where = f" WHERE {self.where}" if self.where else ""
        match self.kind:
            case "insert":
                names = ", ".join(map(_quoted, self.columns))
                return f"INSERT INTO {table} ({names}) {self.rows}"
            case "update":
                values = ", ".join(f"{_quoted(name)} = {value}" for name, value in self.settings)
                return f"UPDATE {table}{self.alias} SET {values}{where}"
        return f"DELETE FROM {table}{self.alias}{where}"


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
        _refuse(tree)
        check_query(tree)
        name_columns(tree)
        series_for_spark(tree)
        return _spark(_with_tables(tree, locate))


def change_for_spark(text: str, target: Locate, source: Locate) -> Change:
    """An INSERT, UPDATE or DELETE. Raises as ``query_for_spark``.

    ``target`` is asked for the table that is changed, ``source`` for those that are read.
    """
    tree = _parse(text)
    _refuse(tree.args.get("expression"))
    if isinstance(tree, exp.Merge):
        raise FeatureNotSupported("MERGE is not supported")
    for argument, what in _REFUSED.items():
        if tree.args.get(argument) or tree.args.get(argument.rstrip("_")):
            raise FeatureNotSupported(f"{what} is not supported")
    with foreign_tree():
        check_tree(tree)
        series_for_spark(tree)
        return _change(tree, text, target, source)


def _change(tree: exp.Expr, text: str, target: Locate, source: Locate) -> Change:
    match tree:
        case exp.Insert():
            return _insert(tree, target, source)
        case exp.Update():
            return _update(tree, target, source)
        case exp.Delete():
            _located(tree.this, target)
            return Change("delete", _alias(tree.this), where=_where(tree, source))
    raise FeatureNotSupported(f"{text.split(maxsplit=1)[0].upper()} is not supported")


def _refuse(query: exp.Expr | None) -> None:
    """What Spark would not understand, or read otherwise."""
    if query is None:
        return
    for found in query.find_all(exp.DML):
        raise FeatureNotSupported(f"{found.key.upper()} within WITH is not supported")
    for select in query.find_all(exp.Select):
        if select.args.get("into"):
            raise FeatureNotSupported("SELECT ... INTO is not supported")
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise FeatureNotSupported("SELECT DISTINCT ON is not supported")
        if select.args.get("locks"):
            raise FeatureNotSupported("FOR UPDATE and FOR SHARE are not supported")
    for test in query.find_all(exp.Is):
        if isinstance(test.this, exp.Tuple):
            raise FeatureNotSupported("IS of a row is not supported")


def _insert(tree: exp.Expr, target: Locate, source: Locate) -> Change:
    table, named = tree.this, None
    if isinstance(table, exp.Schema):
        table, named = table.this, [column.name for column in table.expressions]
    located = _located(table, target)
    if tree.args.get("default"):
        raise FeatureNotSupported("INSERT ... DEFAULT VALUES is not supported")
    wanted = _columns(located, named, table.name)
    if tree.expression is None:
        raise SqlSyntaxError("syntax error at end of input")
    rows = _with_tables(tree.expression, source)
    names = [f"c{number}" for number in range(len(wanted))]
    if isinstance(rows, exp.Values):
        given = {len(row.expressions) for row in rows.expressions}
        if any(count > len(wanted) for count in given):
            raise SqlSyntaxError("INSERT has more expressions than target columns")
        if len(given) > 1:
            raise SqlSyntaxError("VALUES lists must all be the same length")
        if named is not None and given != {len(wanted)}:
            raise SqlSyntaxError("INSERT has more target columns than expressions")
        wanted, names = wanted[: min(given)], names[: min(given)]
        rows.set("alias", None)
    casts = ", ".join(
        f"CAST({name} AS {kind}) AS {_quoted(column)}"
        for name, (column, kind) in zip(names, wanted, strict=True)
    )
    select = f"SELECT {casts} FROM ({_spark(rows)}) AS source({', '.join(names)})"
    return Change("insert", "", columns=tuple(name for name, _ in wanted), rows=select)


def _update(tree: exp.Expr, target: Locate, source: Locate) -> Change:
    located = _located(tree.this, target)
    types = dict(located.columns)
    settings = []
    for assignment in tree.expressions:
        if not isinstance(assignment, exp.EQ) or not isinstance(assignment.this, exp.Column):
            raise FeatureNotSupported("this form of SET is not supported")
        name = assignment.this.name
        if name not in types:
            raise _no_column(name, tree.this.name)
        value = _spark(_with_tables(assignment.expression, source))
        settings.append((name, f"CAST({value} AS {types[name]})"))
    return Change("update", _alias(tree.this), settings=tuple(settings), where=_where(tree, source))


def _where(tree: exp.Expr, source: Locate) -> str:
    where = tree.args.get("where")
    return "" if where is None else _spark(_with_tables(where.this, source))


def _columns(target: SparkTable, named: Sequence[str] | None, table: str) -> list[tuple[str, str]]:
    if named is None:
        return list(target.columns)
    types = dict(target.columns)
    for name in named:
        if name not in types:
            raise _no_column(name, table)
        if named.count(name) > 1:
            raise DuplicateObject(f'column "{name}" specified more than once', sqlstate="42701")
    return [(name, types[name]) for name in named]


def _no_column(name: str, table: str) -> UndefinedObject:
    return UndefinedObject(
        f'column "{name}" of relation "{table}" does not exist', sqlstate="42703"
    )


def _parse(text: str) -> exp.Expr:
    check_nesting(lex(text))
    try:
        with foreign_tree():
            tree = sqlglot.parse_one(text, read="postgres")
    except SqlglotError as error:
        raise SqlSyntaxError(f"could not read the query: {str(error).splitlines()[0]}") from None
    for identifier in tree.find_all(exp.Identifier):
        if not identifier.args.get("quoted"):
            identifier.set("this", identifier.name.lower())
    return tree


def _with_tables(tree: exp.Expr, locate: Locate) -> exp.Expr:
    """Every table of the lake by its name in Spark; those of WITH stay."""
    tables = [t for t in tree.find_all(exp.Table) if not isinstance(t.this, exp.Func)]
    for table in [table for table in tables if not is_of_with(table)]:
        in_spark = exp.to_table(_located(table, locate).name, dialect="spark")
        alias = table.args.get("alias")
        in_spark.set("alias", alias or exp.TableAlias(this=exp.to_identifier(table.name)))
        found = replacement(table, in_spark)
        if table is tree:
            return found
        table.replace(found)
    return tree


def _located(table: exp.Expr, locate: Locate) -> SparkTable:
    if not isinstance(table, exp.Table):
        raise FeatureNotSupported("only tables can be changed")
    check_table(table)
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
