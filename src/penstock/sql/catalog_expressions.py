"""Expressions of a catalog query in DuckDB's SQL (parse_expr.c).

In: sqlglot's tree and the names that are known. Out: ``Typed`` text. Queries within expressions are
given back to whoever translates SELECT. Raises PostgreSQL's errors for unknown columns, functions
and types, FeatureNotSupported for what no client asks of a catalog.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError, SqlSyntaxError
from penstock.sql.catalog_calls import call, ordered
from penstock.sql.catalog_operators import Operators
from penstock.sql.catalog_typed import Typed, cast_type, coerce, parameter, quote
from penstock.sql.catalog_types import (
    EXPANDED,
    UNKNOWN,
    array_type,
    catalog_type,
    common_type,
    element_type,
)

_MAX_PARAMETERS: Final = 65_535
"""What Bind can give."""
_COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
_ARITHMETIC: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}
_MATCHES: Final[dict[type[exp.Expression], str]] = {
    exp.RegexpLike: "regexp_matches({0}, {1})",
    exp.RegexpILike: "regexp_matches({0}, {1}, 'i')",
    exp.Like: "({0} LIKE {1} ESCAPE '\\')",
    exp.ILike: "({0} ILIKE {1} ESCAPE '\\')",
}
_WORDS: Final[dict[str, str]] = {
    "currentuser": "current_user",
    "sessionuser": "session_user",
    "currentrole": "current_user",
    "currentcatalog": "current_database",
    "currentdatabase": "current_database",
    "currentschema": "current_schema",
    "currenttimestamp": "now",
    "currentversion": "version",
}


class Expressions(Operators):
    """Translates expressions within one scope."""

    def translate(self, node: exp.Expression) -> Typed:
        """One expression."""
        kind = type(node)
        if kind in _COMPARISONS:
            return self._comparison(node, _COMPARISONS[kind])
        if kind in _ARITHMETIC:
            return self._arithmetic(node, _ARITHMETIC[kind])
        if kind in _MATCHES:
            return self._match(node, _MATCHES[kind])
        method = getattr(self, f"_{kind.__name__.lower()}", None)
        if method is not None:
            return method(node)  # type: ignore[no-any-return]
        word = _WORDS.get(kind.__name__.lower())
        if word is not None:
            return self._call(word, [])
        raise FeatureNotSupported(f"{kind.__name__} is not supported in queries of the catalogs")

    # Leaves

    def _column(self, node: exp.Column) -> Typed:
        if isinstance(node.this, exp.Star):
            raise FeatureNotSupported("* is not supported here")
        sql, kind = self.scope.column(node.name, node.table or None)
        return Typed(sql, kind)

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed(quote(node.this), UNKNOWN, literal=node.this)
        number = str(node.this)
        if number.isdigit():
            return Typed(number, "int4" if int(number) < 1 << 31 else "int8")
        return Typed(number, "numeric")

    def _boolean(self, node: exp.Boolean) -> Typed:
        return Typed("TRUE" if node.this else "FALSE", "bool")

    def _null(self, _: exp.Null) -> Typed:
        return Typed("NULL", UNKNOWN)

    def _parameter(self, node: exp.Parameter) -> Typed:
        if not node.name.isdigit():
            raise SqlSyntaxError('syntax error at or near "$"')
        number = int(node.name)
        if not 1 <= number <= _MAX_PARAMETERS:
            raise PenstockError(f"there is no parameter ${number}", sqlstate="42P02")
        self.found.last_parameter = max(number, self.found.last_parameter)
        kind = self.found.parameters.get(number, UNKNOWN)
        if kind != UNKNOWN:
            return parameter(number, kind, self.found)
        return Typed(f"CAST(${number} AS VARCHAR)", UNKNOWN, parameter=number)

    def _paren(self, node: exp.Paren) -> Typed:
        inner = self.translate(node.this)
        return Typed(f"({inner.sql})", inner.type, inner.literal, inner.parameter)

    # Everything else

    def _alias(self, node: exp.Alias) -> Typed:
        return self.translate(node.this)

    def _case(self, node: exp.Case) -> Typed:
        subject = None if node.this is None else self.translate(node.this)
        conditions: list[str] = []
        results: list[Typed] = []
        for branch in node.args["ifs"]:
            if subject is None:
                conditions.append(self.boolean(branch.this))
            else:
                left, right = self._pair(subject, self.translate(branch.this))
                conditions.append(f"{left.sql} = {right.sql}")
            results.append(self.translate(branch.args["true"]))
        default = node.args.get("default")
        last = Typed("NULL", UNKNOWN) if default is None else self.translate(default)
        kind = common_type([value.type for value in (*results, last)])
        branches = " ".join(
            f"WHEN {condition} THEN {coerce(value, kind, self.found).sql}"
            for condition, value in zip(conditions, results, strict=True)
        )
        return Typed(f"CASE {branches} ELSE {coerce(last, kind, self.found).sql} END", kind)

    def _cast(self, node: exp.Cast) -> Typed:
        target = type_name(node.args["to"])
        value = self.translate(node.this)
        kind = cast_type(value.type, target)
        return coerce(value, kind, self.found)

    def _bracket(self, node: exp.Bracket) -> Typed:
        array = self.translate(node.this)
        element = element_type(array.type)
        if element is None:
            raise PenstockError(f"cannot subscript type {array.type}", sqlstate="42804")
        (subscript,) = node.expressions
        first = 0 if array.type in ("int2vector", "oidvector", "_int2 from 0") else 1
        index = coerce(self.translate(subscript), "int4", self.found).sql
        shifted = index if first else f"({index}) + 1"
        return Typed(f"list_extract({array.sql}, {shifted})", element)

    def _array(self, node: exp.Array) -> Typed:
        items = node.expressions
        if len(items) == 1 and isinstance(items[0], exp.Query):
            inner: Any = items[0]
            query = self._query(inner, self.scope)
            return Typed(f"ARRAY({query.sql})", array_type(query.columns[0].type))
        values = [self.translate(item) for item in items]
        kind = common_type([value.type for value in values])
        sql = ", ".join(coerce(value, kind, self.found).sql for value in values)
        held = catalog_type(array_type(kind)).held
        return Typed(f"CAST([{sql}] AS {held})", array_type(kind))

    def _subquery(self, node: exp.Subquery) -> Typed:
        query = self._query(node, self.scope)
        if len(query.columns) != 1:
            raise PenstockError("subquery must return only one column", sqlstate="42601")
        return Typed(f"({query.sql})", query.columns[0].type)

    def _select(self, node: exp.Select) -> Typed:
        return self._subquery(node)  # type: ignore[arg-type]

    def _exists(self, node: exp.Exists) -> Typed:
        return Typed(f"EXISTS ({self._query(node.this, self.scope).sql})", "bool")

    def _dot(self, node: exp.Dot) -> Typed:
        """``schema.function()``, ``(row).field``"""
        inner: Any = node.this
        if isinstance(node.expression, exp.Anonymous) and isinstance(inner, exp.Identifier):
            return self._call(str(node.expression.this).lower(), node.expression.expressions)
        row, field = self.translate(inner), node.name
        if not row.type.startswith(EXPANDED) or field not in ("x", "n"):
            raise FeatureNotSupported("fields of a row are not supported in catalog queries")
        kind = row.type.removeprefix(EXPANDED) if field == "x" else "int4"
        return Typed(f"struct_extract({row.sql}, '{field}')", kind)

    def _window(self, node: exp.Window) -> Typed:
        if node.args.get("spec") or node.args.get("alias"):
            raise FeatureNotSupported("frames of windows are not supported in catalog queries")
        inner = self.translate(node.this)
        parts = [self.translate(part).sql for part in node.args.get("partition_by") or []]
        over = f"PARTITION BY {', '.join(parts)}" if parts else ""
        order = node.args.get("order")
        if order is not None:
            over += " ORDER BY " + ", ".join(ordered(self, key) for key in order.expressions)
        return Typed(f"{inner.sql} OVER ({over})", inner.type)

    # Functions with words between their arguments

    def _substring(self, node: exp.Substring) -> Typed:
        given = (node.this, node.args.get("start"), node.args.get("length"))
        return self._call("substring", [argument for argument in given if argument is not None])

    def _trim(self, node: exp.Trim) -> Typed:
        side = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")))
        given = (node.this, node.args.get("expression"))
        arguments = [argument for argument in given if argument is not None]
        return self._call(side or "btrim", arguments)

    def _strposition(self, node: exp.StrPosition) -> Typed:
        return self._call("strpos", [node.this, node.args["substr"]])

    def _filter(self, node: exp.Filter) -> Typed:
        inner = self.translate(node.this)
        return Typed(f"{inner.sql} FILTER (WHERE {self.boolean(node.expression.this)})", inner.type)

    def _anonymous(self, node: exp.Anonymous) -> Typed:
        return self._call(str(node.this).lower(), node.expressions)

    def _call(self, name: str, arguments: list[Any]) -> Typed:
        return call(self, name, arguments)


def type_name(node: Any) -> str:
    """The name of a type in a cast, as pg_type has it. Raises UndefinedObject."""
    if isinstance(node, exp.DataType) and node.this == exp.DType.ARRAY:
        return f"_{type_name(node.expressions[0])}"
    if isinstance(node, exp.DataType) and node.this == exp.DType.USERDEFINED:
        kind = node.args.get("kind")
        name = kind.name if isinstance(kind, exp.Expression) else str(kind)
        return catalog_type(name.strip('"')).name
    text = node.sql(dialect="postgres").partition("(")[0].lower()
    if text == "char":
        return "bpchar"
    return catalog_type(text).name
