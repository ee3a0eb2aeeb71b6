"""The operands of expressions: c_expr, func_expr and AexprConst (gram.y).

In: a cursor. Out: raw trees. Subqueries are recognized and skipped: nobody who uses these trees
allows them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sql.cursor import Cursor
from penstock.sql.expression_type_grammar import CONST_TYPES, type_name
from penstock.sql.expressions import (
    AArray,
    ACase,
    ACoalesce,
    AConst,
    AExpr,
    AExprKind,
    AMinMax,
    ARow,
    ColumnRef,
    ConstKind,
    Expression,
    FuncCall,
    Indirection,
    ParamRef,
    SqlValueFunction,
    SubLink,
    TypeCast,
    TypeName,
)
from penstock.sql.keywords import COLUMN_NAME, RESERVED, TYPE_OR_FUNCTION_NAME, words
from penstock.sql.lexer import Kind

_WITHIN_TYPES: Final = words("( precision varying character char with without") | {""}
"""What may come after a ConstTypename's first word; "" for a string."""
_VALUE_FUNCTIONS: Final = words(
    """
    current_catalog current_date current_role current_schema current_time current_timestamp
    current_user localtime localtimestamp session_user system_user user
    """
)
_LITERALS: Final = {
    "true": AConst(ConstKind.BOOLEAN, "true"),
    "false": AConst(ConstKind.BOOLEAN, "false"),
    "null": AConst(ConstKind.NULL),
}
_TRIMS: Final = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}


class PrimaryGrammar(ABC):
    """Operands; what stands in them is read by ``a_expr``."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    @abstractmethod
    def a_expr(self) -> Expression:
        """Any expression."""

    def peek(self, offset: int) -> str:
        """The word or symbol ``offset`` tokens ahead."""
        return self.cursor.peek(offset)

    def c_expr(self) -> Expression:
        """An operand with fields and subscripts behind it."""
        token = self.cursor.token
        match token.kind:
            case Kind.INTEGER:
                return AConst(ConstKind.INTEGER, self.cursor.take().value)
            case Kind.FLOAT:
                return AConst(ConstKind.FLOAT, self.cursor.take().value.replace("_", ""))
            case Kind.STRING:
                return AConst(ConstKind.STRING, self.cursor.take().value)
            case Kind.SYMBOL if token.value == "(":
                return self._parenthesized()
            case Kind.OTHER if token.value[:1] == "$" and token.value[1:].isdigit():
                return ParamRef(int(self.cursor.take().value[1:]))
            case Kind.OTHER if token.value[:2].lower() in ("b'", "x'"):
                raise FeatureNotSupported("bit strings are not supported in expressions")
            case Kind.QUOTED:
                return self._name_or_call()
            case Kind.WORD:
                return self._word(token.value)
        raise self.cursor.syntax_error()

    def any_name(self) -> tuple[str, ...]:
        """``any_name``: a name with dots, without pg_catalog in front."""
        names = [self.cursor.name()]
        while self.cursor.accept_symbol("."):
            names.append(self._attribute())
        return tuple(names[1:] if names[0] == "pg_catalog" and len(names) > 1 else names)

    def qualified_operator(self) -> str:
        """``OPERATOR(pg_catalog.+)``."""
        self.cursor.expect("operator")
        self.cursor.expect_symbol("(")
        while self.cursor.token.kind in (Kind.WORD, Kind.QUOTED):
            schema = self.cursor.name()
            if schema != "pg_catalog":
                raise FeatureNotSupported(f'operators of schema "{schema}" are not supported')
            self.cursor.expect_symbol(".")
        operator = self.cursor.take().value
        self.cursor.expect_symbol(")")
        return operator

    def sublink(self, boolean: bool = True) -> Expression:
        """A subquery in parentheses, skipped."""
        skip_parens(self.cursor)
        return SubLink(boolean)

    def _parenthesized(self) -> Expression:
        if is_subquery(self.cursor, self.peek(1)):
            return self.sublink(boolean=False)
        self.cursor.expect_symbol("(")
        inner = expression_list(self)
        self.cursor.expect_symbol(")")
        if len(inner) > 1:
            return ARow(inner)
        return self._with_fields(inner[0])

    def _with_fields(self, expression: Expression) -> Expression:
        if self.cursor.accept_symbol("."):
            self._attribute()
            return Indirection(expression)
        return expression

    def _word(self, word: str) -> Expression:
        if word in _LITERALS:
            self.cursor.take()
            return _LITERALS[word]
        if word in _VALUE_FUNCTIONS and not (
            word == "current_schema" and self.peek(1) in ("(", "")
        ):
            self.cursor.take()
            if self.cursor.accept_symbol("("):
                self.cursor.take()
                self.cursor.expect_symbol(")")
            return SqlValueFunction(word)
        if word == "exists" and self.peek(1) == "(":
            self.cursor.take()
            return self.sublink()
        if special := self._special(word):
            return special
        if word in CONST_TYPES and word in COLUMN_NAME | {"double"}:
            literal = self._typed_literal(word)
            if literal is not None:
                return literal
        return self._name_or_call()

    def _special(self, word: str) -> Expression | None:
        """Expressions with words of their own."""
        if word == "case":
            return self._case()
        if word == "array":
            return self._array()
        if word == "row" and self.peek(1) == "(":
            self.cursor.take()
            self.cursor.expect_symbol("(")
            fields = () if self.peek(0) == ")" else expression_list(self)
            self.cursor.expect_symbol(")")
            return ARow(fields)
        if self.peek(1) != "(":
            return None
        calls = {
            "cast": self._cast,
            "coalesce": lambda: ACoalesce(expression_list(self)),
            "greatest": lambda: AMinMax(True, expression_list(self)),
            "least": lambda: AMinMax(False, expression_list(self)),
            "nullif": self._nullif,
            "extract": self._extract,
            "position": self._position,
            "substring": self._substring,
            "trim": self._trim,
        }
        if word not in calls:
            if word in COLUMN_NAME and word not in CONST_TYPES:
                raise FeatureNotSupported(f"{word} is not supported in expressions")
            return None
        self.cursor.take()
        self.cursor.expect_symbol("(")
        expression = calls[word]()
        self.cursor.expect_symbol(")")
        return expression

    def _typed_literal(self, word: str) -> Expression | None:
        """``ConstTypename Sconst``; None where a column of such a name is meant."""
        if self.peek(1) not in _WITHIN_TYPES or (word == "double" and self.peek(1) != "precision"):
            return None
        type_ = type_name(self.cursor, literal=True)
        return TypeCast(AConst(ConstKind.STRING, self.cursor.string()), type_)

    def _name_or_call(self) -> Expression:
        token = self.cursor.token
        word = token.value if token.kind is Kind.WORD else None
        if word in RESERVED:
            raise self.cursor.syntax_error()
        callable_ = word not in COLUMN_NAME
        names = [self.cursor.take().value]
        while self.cursor.accept_symbol("."):
            names.append("*" if self.cursor.accept_symbol("*") else self._attribute())
        if len(names) > 1 and word in TYPE_OR_FUNCTION_NAME:
            raise self.cursor.syntax_error()
        if callable_ and self.peek(0) == "(":
            return self._call(tuple(names))
        if callable_ and self.cursor.token.kind is Kind.STRING:
            plain = names[1:] if names[0] == "pg_catalog" and len(names) > 1 else names
            literal = AConst(ConstKind.STRING, self.cursor.string())
            return TypeCast(literal, TypeName(tuple(plain)))
        if word in TYPE_OR_FUNCTION_NAME:
            raise self.cursor.syntax_error()
        return ColumnRef(tuple(names))

    def _call(self, names: tuple[str, ...]) -> Expression:
        cursor = self.cursor
        cursor.expect_symbol("(")
        name = names[1:] if names[0] == "pg_catalog" and len(names) > 1 else names
        star = decorated = False
        arguments: tuple[Expression, ...] = ()
        if cursor.accept_symbol("*"):
            star = True
        elif self.peek(0) != ")":
            decorated = (
                cursor.accept("distinct") or cursor.accept("all") or cursor.accept("variadic")
            )
            arguments = expression_list(self)
            if cursor.token.value in (":=", "=>", "order"):
                raise FeatureNotSupported("named and ordered arguments are not supported")
        cursor.expect_symbol(")")
        if cursor.word() in ("filter", "within") and self.peek(1) in ("(", "group"):
            cursor.accept("within")
            cursor.take()
            skip_parens(cursor)
            decorated = True
        window = cursor.accept("over")
        if window and self.peek(0) == "(":
            skip_parens(cursor)
        elif window:
            cursor.name()
        return FuncCall(name, arguments, star=star, window=window, decorated=decorated)

    def _case(self) -> Expression:
        self.cursor.expect("case")
        argument = None if self.cursor.word() == "when" else self.a_expr()
        whens = []
        while self.cursor.accept("when"):
            condition = self.a_expr()
            self.cursor.expect("then")
            whens.append((condition, self.a_expr()))
        if not whens:
            raise self.cursor.syntax_error()
        default = self.a_expr() if self.cursor.accept("else") else None
        self.cursor.expect("end")
        return ACase(argument, tuple(whens), default)

    def _array(self) -> Expression:
        self.cursor.expect("array")
        if is_subquery(self.cursor, self.peek(1)):
            return self.sublink()
        return self._array_elements()

    def _array_elements(self) -> Expression:
        self.cursor.expect_symbol("[")
        elements: list[Expression] = []
        while self.peek(0) != "]":
            nested = self.peek(0) == "["
            elements.append(self._array_elements() if nested else self.a_expr())
            if not self.cursor.accept_symbol(","):
                break
            if self.peek(0) == "]":
                raise self.cursor.syntax_error()
        self.cursor.expect_symbol("]")
        return AArray(tuple(elements))

    def _cast(self) -> Expression:
        argument = self.a_expr()
        self.cursor.expect("as")
        return TypeCast(argument, type_name(self.cursor))

    def _nullif(self) -> Expression:
        left = self.a_expr()
        self.cursor.expect_symbol(",")
        return AExpr(AExprKind.NULLIF, "=", left, self.a_expr())

    def _extract(self) -> Expression:
        token = self.cursor.token
        if token.kind not in (Kind.WORD, Kind.QUOTED, Kind.STRING):
            raise self.cursor.syntax_error()
        field = AConst(ConstKind.STRING, self.cursor.take().value)
        self.cursor.expect("from")
        return FuncCall(("extract",), (field, self.a_expr()), sql_syntax=True)

    def _position(self) -> Expression:
        needle = self._operand_before_in()
        self.cursor.expect("in")
        return FuncCall(("position",), (self._operand_before_in(), needle), sql_syntax=True)

    @abstractmethod
    def b_expr(self) -> Expression:
        """An expression without the operators that are words."""

    def _operand_before_in(self) -> Expression:
        return self.b_expr()

    def _substring(self) -> Expression:
        arguments = [self.a_expr()]
        if self.cursor.accept_symbol(","):
            arguments += expression_list(self)
            return FuncCall(("substring",), tuple(arguments))
        if self.cursor.word() == "similar":
            raise FeatureNotSupported("substring(... similar ...) is not supported in expressions")
        start: Expression | None = None
        length: Expression | None = None
        for _ in range(2):
            if start is None and self.cursor.accept("from"):
                start = self.a_expr()
            elif length is None and self.cursor.accept("for"):
                length = self.a_expr()
        if length is not None:
            start = start or AConst(ConstKind.INTEGER, "1")
            length = TypeCast(length, TypeName(("int4",)))
        arguments += [argument for argument in (start, length) if argument is not None]
        return FuncCall(("substring",), tuple(arguments), sql_syntax=True)

    def _trim(self) -> Expression:
        function = "btrim"
        for word, name in _TRIMS.items():
            if self.cursor.accept(word):
                function = name
                break
        if self.cursor.accept("from"):
            return FuncCall((function,), expression_list(self), sql_syntax=True)
        characters = self.a_expr()
        if self.cursor.accept("from"):
            arguments = (*expression_list(self), characters)
        elif self.cursor.accept_symbol(","):
            arguments = (characters, *expression_list(self))
        else:
            arguments = (characters,)
        return FuncCall((function,), arguments, sql_syntax=True)

    def _attribute(self) -> str:
        """``ColLabel``: any word."""
        if self.cursor.token.kind not in (Kind.WORD, Kind.QUOTED):
            raise self.cursor.syntax_error()
        return self.cursor.take().value


def expression_list(grammar: PrimaryGrammar) -> tuple[Expression, ...]:
    """``expr_list``: one or more."""
    items = [grammar.a_expr()]
    while grammar.cursor.accept_symbol(","):
        items.append(grammar.a_expr())
    return tuple(items)


def is_subquery(cursor: Cursor, ahead: str) -> bool:
    """Whether a parenthesis with a query comes next."""
    return cursor.peek(0) == "(" and ahead in ("select", "with", "values", "table")


def skip_parens(cursor: Cursor) -> None:
    """Read over a balanced group in any kind of brackets."""
    depth = 0
    while True:
        token = cursor.token
        if token.kind is Kind.END:
            raise cursor.syntax_error()
        depth += (token.value in ("(", "[")) - (token.value in (")", "]"))
        cursor.take()
        if depth <= 0:
            return
