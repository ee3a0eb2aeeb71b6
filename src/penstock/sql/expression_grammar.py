"""Value expressions: a_expr, b_expr and c_expr (gram.y), by precedence climbing.

In: text or the cursor of a statement. Out: raw trees (``expressions``), or PostgreSQL's syntax
error at the token where its parser would stop. Special calls (EXTRACT, TRIM ...) and primaries
are in ``primary_grammar``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sql.cursor import Cursor
from penstock.sql.expression_type_grammar import type_name
from penstock.sql.expressions import (
    ABool,
    ABooleanTest,
    AConst,
    AExpr,
    AExprKind,
    ANullTest,
    BoolOp,
    CollateClause,
    ConstKind,
    Expression,
    FuncCall,
    Indirection,
    TypeCast,
)
from penstock.sql.lexer import Kind, is_operator, lex
from penstock.sql.nesting import limited_depth
from penstock.sql.primary_grammar import PrimaryGrammar, expression_list, is_subquery, skip_parens


class Level(IntEnum):
    """Precedence, loosest first, as the %left and %nonassoc lines of gram.y."""

    LOWEST = 0
    OR = 1
    AND = 2
    NOT = 3
    IS = 4
    COMPARISON = 5
    LIKE = 6
    OPERATOR = 7
    ADD = 8
    MULTIPLY = 9
    POWER = 10
    AT = 11
    COLLATE = 12
    UMINUS = 13
    SUBSCRIPT = 14
    TYPECAST = 15


_SYMBOLS: Final = {
    **dict.fromkeys(("=", "<", ">", "<=", ">=", "<>", "!="), Level.COMPARISON),
    **dict.fromkeys("+-", Level.ADD),
    **dict.fromkeys("*/%", Level.MULTIPLY),
    "^": Level.POWER,
    "[": Level.SUBSCRIPT,
    "::": Level.TYPECAST,
}
_WORDS: Final = {
    "or": Level.OR,
    "and": Level.AND,
    "is": Level.IS,
    "isnull": Level.IS,
    "notnull": Level.IS,
    **dict.fromkeys(("between", "in", "like", "ilike", "similar"), Level.LIKE),
    "operator": Level.OPERATOR,
    "at": Level.AT,
    "collate": Level.COLLATE,
}
_NEGATED: Final = frozenset({"between", "in", "like", "ilike", "similar"})
_LIKE_OPERATORS: Final = {
    ("like", False): (AExprKind.LIKE, "~~"),
    ("like", True): (AExprKind.LIKE, "!~~"),
    ("ilike", False): (AExprKind.ILIKE, "~~*"),
    ("ilike", True): (AExprKind.ILIKE, "!~~*"),
    ("similar", False): (AExprKind.SIMILAR, "~"),
    ("similar", True): (AExprKind.SIMILAR, "!~"),
}


def parse_expression(text: str) -> Expression:
    """The a_expr that is the whole text. Raises SqlSyntaxError."""
    grammar = ExpressionGrammar(Cursor(lex(text)))
    with limited_depth():
        expression = grammar.a_expr()
    grammar.cursor.expect_end()
    return expression


class ExpressionGrammar(PrimaryGrammar):
    """Reads expressions from a cursor."""

    def a_expr(self) -> Expression:
        return self._expression(Level.LOWEST, restricted=False)

    def b_expr(self) -> Expression:
        return self._expression(Level.LOWEST, restricted=True)

    def _expression(self, above: Level, *, restricted: bool) -> Expression:
        """An expression of operators that bind tighter than ``above``."""
        left = self._prefix(restricted)
        closed: Level | None = None
        while True:
            level = self._next_level(restricted)
            if level is None or level <= above:
                return left
            if level == closed:
                raise self.cursor.syntax_error()
            left, closed = self._infix(left, level, restricted)

    def _next_level(self, restricted: bool) -> Level | None:
        token = self.cursor.token
        if token.kind is Kind.SYMBOL:
            known = _SYMBOLS.get(token.value)
            if known is not None:
                return known
            return Level.OPERATOR if is_operator(token.value) else None
        if token.kind is not Kind.WORD:
            return None
        if restricted:
            ahead = (self.peek(1), self.peek(2))
            distinct = token.value == "is" and "distinct" in ahead
            return _WORDS[token.value] if distinct or token.value == "operator" else None
        if token.value == "not":
            return Level.LIKE if self.peek(1) in _NEGATED else None
        return _WORDS.get(token.value)

    def _prefix(self, restricted: bool) -> Expression:
        cursor = self.cursor
        token = cursor.token
        if not restricted and cursor.accept("not"):
            argument = self._expression(Level.NOT, restricted=False)
            return ABool(BoolOp.NOT, (argument,))
        if token.kind is Kind.SYMBOL and token.value in ("+", "-"):
            cursor.take()
            argument = self._expression(Level.UMINUS, restricted=restricted)
            return negated(argument) if token.value == "-" else _prefix_operator("+", argument)
        if token.kind is Kind.SYMBOL and is_operator(token.value) and token.value not in _SYMBOLS:
            cursor.take()
            return _prefix_operator(
                token.value, self._expression(Level.OPERATOR, restricted=restricted)
            )
        return self.c_expr()

    def _infix(
        self, left: Expression, level: Level, restricted: bool
    ) -> tuple[Expression, Level | None]:
        """The next operator applied; and the level that may not follow it (nonassoc)."""
        match level:
            case Level.OR | Level.AND:
                word = self.cursor.take().value
                operator = BoolOp.OR if word == "or" else BoolOp.AND
                return _flattened(operator, left, self._expression(level, restricted=False)), None
            case Level.IS:
                return self._is(left, restricted)
            case Level.LIKE:
                return self._like(left)
            case Level.TYPECAST:
                self.cursor.take()
                return TypeCast(left, type_name(self.cursor)), None
            case Level.COLLATE:
                self.cursor.take()
                return CollateClause(left, self.any_name()), None
            case Level.AT:
                return self._at(left), None
            case Level.SUBSCRIPT:
                skip_parens(self.cursor)
                return Indirection(left), None
        return self._operator(left, level, restricted)

    def _operator(
        self, left: Expression, level: Level, restricted: bool
    ) -> tuple[Expression, Level | None]:
        operator = self.qualified_operator() if self.cursor.word() else self.cursor.take().value
        operator = "<>" if operator == "!=" else operator
        quantified = self._quantified(left, operator)
        if quantified is not None:
            return quantified, None
        right = self._expression(level, restricted=restricted)
        closed = level if level is Level.COMPARISON else None
        return AExpr(AExprKind.OP, operator, left, right), closed

    def _quantified(self, left: Expression, operator: str) -> Expression | None:
        """``ANY (array)``, ``ALL (array)``: the right side of any operator."""
        word = self.cursor.word()
        if word not in ("any", "some", "all"):
            return None
        array_follows = self.peek(1) == "("
        self.cursor.take()
        if not array_follows:
            self.cursor.expect_symbol("(")  # raises: the words are reserved
        kind = AExprKind.OP_ALL if word == "all" else AExprKind.OP_ANY
        if is_subquery(self.cursor, self.peek(1)):
            return self.sublink()
        self.cursor.expect_symbol("(")
        right = self.a_expr()
        self.cursor.expect_symbol(")")
        return AExpr(kind, operator, left, right)

    def _is(self, left: Expression, restricted: bool) -> tuple[Expression, Level | None]:
        cursor = self.cursor
        if cursor.accept("isnull"):
            return ANullTest(left, False), None
        if cursor.accept("notnull"):
            return ANullTest(left, True), None
        cursor.expect("is")
        no = cursor.accept("not")
        if cursor.accept("distinct"):
            cursor.expect("from")
            kind = AExprKind.NOT_DISTINCT if no else AExprKind.DISTINCT
            right = self._expression(Level.IS, restricted=restricted)
            return AExpr(kind, "=", left, right), Level.IS
        if cursor.accept("null"):
            return ANullTest(left, no), None
        for word in ("true", "false", "unknown"):
            if cursor.accept(word):
                return ABooleanTest(left, f"{'NOT ' if no else ''}{word.upper()}"), None
        if cursor.word() in ("document", "json", "normalized", "nfc", "nfd", "nfkc", "nfkd"):
            raise FeatureNotSupported(f"IS {cursor.word()} is not supported in expressions")
        raise cursor.syntax_error()

    def _like(self, left: Expression) -> tuple[Expression, Level | None]:
        cursor = self.cursor
        no = cursor.accept("not")
        word = cursor.take().value
        if word == "in":
            return self._in(left, no), None
        if word == "between":
            return self._between(left, no), Level.LIKE
        if word == "similar":
            cursor.expect("to")
        kind, operator = _LIKE_OPERATORS[word, no]
        quantified = self._quantified(left, operator)
        if quantified is not None:
            return quantified, None
        right = self._expression(Level.LIKE, restricted=False)
        escape = None
        if cursor.accept("escape"):
            escape = self._expression(Level.LIKE, restricted=False)
        if word == "similar":
            arguments = (right,) if escape is None else (right, escape)
            right = FuncCall(("similar_to_escape",), arguments)
        elif escape is not None:
            right = FuncCall(("like_escape",), (right, escape))
        return AExpr(kind, operator, left, right), Level.LIKE

    def _in(self, left: Expression, no: bool) -> Expression:
        operator = "<>" if no else "="
        if is_subquery(self.cursor, self.peek(1)):
            return self.sublink()
        self.cursor.expect_symbol("(")
        items = expression_list(self)
        self.cursor.expect_symbol(")")
        return AExpr(AExprKind.IN, operator, left, items)

    def _between(self, left: Expression, no: bool) -> Expression:
        symmetric = self.cursor.accept("symmetric")
        if not symmetric:
            self.cursor.accept("asymmetric")
        low = self.b_expr()
        self.cursor.expect("and")
        high = self._expression(Level.LIKE, restricted=False)
        kind = {
            (False, False): AExprKind.BETWEEN,
            (True, False): AExprKind.NOT_BETWEEN,
            (False, True): AExprKind.BETWEEN_SYM,
            (True, True): AExprKind.NOT_BETWEEN_SYM,
        }[no, symmetric]
        return AExpr(kind, "between", left, (low, high))

    def _at(self, left: Expression) -> Expression:
        self.cursor.take()
        if self.cursor.accept("local"):
            return FuncCall(("timezone",), (left,), sql_syntax=True)
        self.cursor.expect("time", "zone")
        zone = self._expression(Level.AT, restricted=False)
        return FuncCall(("timezone",), (zone, left), sql_syntax=True)


def negated(argument: Expression) -> Expression:
    """``- argument``, folded into a number (doNegate)."""
    if isinstance(argument, AConst) and argument.kind in (ConstKind.INTEGER, ConstKind.FLOAT):
        value = argument.value
        if argument.kind is ConstKind.INTEGER and value == "0":
            return argument
        return AConst(argument.kind, value[1:] if value.startswith("-") else f"-{value}")
    return _prefix_operator("-", argument)


def _prefix_operator(operator: str, argument: Expression) -> Expression:
    return AExpr(AExprKind.OP, operator, None, argument)


def _flattened(operator: BoolOp, left: Expression, right: Expression) -> Expression:
    """``a AND b AND c`` is one list (makeAndExpr)."""
    if isinstance(left, ABool) and left.operator is operator:
        return ABool(operator, (*left.arguments, right))
    return ABool(operator, (left, right))
