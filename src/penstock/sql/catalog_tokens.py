"""A catalog query as sqlglot reads it best: schema names, escapes and operator syntax taken out.

In: SQL text. Out: the same statement without ``pg_catalog.``, ``OPERATOR()``, ``COLLATE``,
``VARIADIC``, ``E''`` and comments; then sqlglot's tree, in which every function is called by the
name that the user wrote. Raises PostgreSQL's syntax error.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError

from penstock.errors import SqlSyntaxError
from penstock.sql.foreign_trees import foreign_tree
from penstock.sql.lexer import Kind, Token, lex
from penstock.sql.nesting import check_nesting

_QUANTIFIERS: Final = {"some": exp.Any, "all": exp.All}
OTHER_TYPES: Final = ("oid", "char", "regclass", "regtype", "regproc", "regnamespace", "xid")
"""Types that sqlglot does not know, so ``oid[]`` would be a subscript to it."""
_KEPT_FUNCTION_SYNTAX: Final = ("CAST", "EXTRACT", "SUBSTRING", "TRIM", "POSITION")


_Parser: Any = Postgres.Parser


class CatalogDialect(Postgres):
    """PostgreSQL's grammar, in which no function is special and subscripts stay as written."""

    INDEX_OFFSET = 0

    class Parser(_Parser):  # type: ignore[misc]
        """Functions stay as written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {"ARRAY": Postgres.Parser.FUNCTIONS["ARRAY"]}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parser
            for name, parser in Postgres.Parser.FUNCTION_PARSERS.items()
            if name in _KEPT_FUNCTION_SYNTAX
        }


def parse_select(text: str) -> exp.Query:
    """The tree of one SELECT or VALUES. Raises SqlSyntaxError (42601)."""
    tokens = lex(text)
    for token in tokens:
        if token.error is not None:
            raise token.error
    check_nesting(tokens)
    try:
        with foreign_tree():
            trees = CatalogDialect().parse(_plain(tokens))
            found = [_with_quantifiers(tree) for tree in trees if tree is not None]
    except SqlglotError as error:
        raise SqlSyntaxError(f"syntax error: {_first_line(error)}") from None
    if len(found) != 1 or not isinstance(found[0], exp.Query | exp.Values):
        raise SqlSyntaxError("a SELECT was expected")
    return found[0]  # type: ignore[return-value]


def _with_quantifiers(tree: Any) -> Any:
    """``SOME (array)`` and ``ALL (array)``, which were taken for functions, as ANY and ALL."""

    def convert(node: Any) -> Any:
        if isinstance(node, exp.Anonymous) and len(node.expressions) == 1:
            kind = _QUANTIFIERS.get(str(node.this).lower())
            return node if kind is None else kind(this=node.expressions[0])
        return node

    return tree.transform(convert, copy=False)


def _first_line(error: SqlglotError) -> str:
    return str(error).splitlines()[0] if str(error) else "not understood"


def _plain(tokens: list[Token]) -> str:
    """The tokens with blanks between them, less what has no meaning for a catalog query."""
    out: list[str] = []
    at = 0
    while tokens[at].kind is not Kind.END:
        word = tokens[at].value if tokens[at].kind is Kind.WORD else ""
        following = tokens[at + 1].value
        if word == "pg_catalog" and following == ".":
            at += 2
        elif word == "variadic":
            at += 1
        elif word == "operator" and following == "(":
            at = _operator(tokens, at + 2, out)
        elif _is_array_type(tokens, at):
            out.append(f"_{word}")
            at += 3
        elif word == "collate":
            at = _after_collation(tokens, at + 1)
        else:
            out.append(_source(tokens[at]))
            at += 1
    return " ".join(out)


def _is_array_type(tokens: list[Token], at: int) -> bool:
    """``::oid[]``"""
    if at == 0 or tokens[at].kind is not Kind.WORD or tokens[at].value not in OTHER_TYPES:
        return False
    cast = tokens[at - 1].value in ("::", "as", ".")
    return cast and [token.value for token in tokens[at + 1 : at + 3]] == ["[", "]"]


def _operator(tokens: list[Token], at: int, out: list[str]) -> int:
    while tokens[at].value != ")" and tokens[at].kind is not Kind.END:
        if tokens[at].kind is Kind.SYMBOL and tokens[at].value != ".":
            out.append(tokens[at].source)
        at += 1
    return at + (tokens[at].kind is not Kind.END)


def _after_collation(tokens: list[Token], at: int) -> int:
    at += tokens[at].kind is not Kind.END
    while tokens[at].value == "." and tokens[at].kind is Kind.SYMBOL:
        at += 2
    return at


def _source(token: Token) -> str:
    if token.kind is Kind.STRING:
        return "'" + token.value.replace("'", "''") + "'"
    if token.kind is Kind.QUOTED:
        return '"' + token.value.replace('"', '""') + '"'
    if token.kind is Kind.WORD:
        return token.value
    return token.source
