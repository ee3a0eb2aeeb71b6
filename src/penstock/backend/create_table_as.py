"""CREATE TABLE ... AS (createas.c): a table with the columns of a query, and its rows.

In: the statement, and who creates tables and changes rows. Out: the outcome of a SELECT. The table
is one commit and its rows are the next; a query that fails takes the table with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import SqlSyntaxError
from penstock.protocol.answers import CommandOutcome
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import Statement, parse
from penstock.sql.grammar.table import CreateTableAs
from penstock.sql.text.object_names import RangeVar
from penstock.sql.text.quoting import quote_identifier, type_text

_DUPLICATE_TABLE = "42P07"


def create_table_as(
    statement: CreateTableAs,
    describe: Callable[[str], Sequence[FieldDescription]],
    run: Callable[[Statement], CommandOutcome],
    change: Callable[[str], CommandOutcome],
) -> CommandOutcome:
    """``describe``: the columns of a query; ``run``: of a command; ``change``: of an INSERT.

    Raises what they raise, and SqlSyntaxError.
    """
    fields = describe(statement.query)
    if len(statement.columns) > len(fields):
        raise SqlSyntaxError("too many column names were specified")
    names = [*statement.columns, *(f.name for f in fields[len(statement.columns) :])]
    columns = ", ".join(
        f"{quote_identifier(name)} {type_text(field.type_oid, field.typmod)}"
        for name, field in zip(names, fields, strict=True)
    )
    table = _text(statement.relation)
    guard = "IF NOT EXISTS " if statement.missing_ok else ""
    made = run(parse(f"CREATE TABLE {guard}{table} ({columns})"))
    skipped = any(told.sqlstate == _DUPLICATE_TABLE for told in made.notices)
    if skipped or not statement.with_data:
        return CommandOutcome("CREATE TABLE AS", made.notices)
    try:
        filled = change(f"INSERT INTO {table} {statement.query}")
    except BaseException:
        run(parse(f"DROP TABLE {table}"))
        raise
    count = filled.tag.rpartition(" ")[2]
    return CommandOutcome(f"SELECT {count}", (*made.notices, *filled.notices))


def _text(relation: RangeVar) -> str:
    parts = [part for part in (relation.schema, relation.name) if part]
    return ".".join(map(quote_identifier, parts))
