"""Turn raw expressions over one table's columns into typed ones (parse_expr.c, parse_func.c).

A raw tree becomes a typed tree (``primnodes``) with PostgreSQL's coercions, or raises PostgreSQL's
error: 42703, 42883, 42804 and others. Callers decide which expressions their clause allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    SqlSyntaxError,
    UndefinedObject,
    WrongObjectType,
)
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    CID,
    DATE,
    INT4,
    INT8,
    NAME,
    NUMERIC,
    OID,
    TEXT,
    TID,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    UNKNOWN,
    VARCHAR,
    XID,
)
from penstock.pgtypes.type_names import typmod_in
from penstock.sql.builtin.type_cache import named_type, types
from penstock.sql.dispatch import NodeMethod
from penstock.sql.grammar.parsenodes import (
    AArray,
    ABool,
    ABooleanTest,
    ACase,
    ACoalesce,
    AConst,
    AExpr,
    ALiterals,
    AMinMax,
    ANullTest,
    ARow,
    ASubLink,
    CollateClause,
    ColumnRef,
    ConstKind,
    Default,
    Expression,
    FuncCall,
    Indirection,
    NamedArg,
    ParamRef,
    ParamValue,
    SqlValueFunction,
    SubLinkKind,
    TypeCast,
    TypeName,
)
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import (
    array_of,
    coerce,
    element,
    select_common_type,
    to_boolean,
    to_common_type,
    to_target,
)
from penstock.sql.typed.function_analysis import call, has_set
from penstock.sql.typed.literals import canonical
from penstock.sql.typed.operator_analysis import make_operator, transform_operator
from penstock.sql.typed.primnodes import (
    ArrayExpr,
    BooleanTest,
    BoolExpr,
    BoundValue,
    CaseExpr,
    CaseTestExpr,
    CaseWhen,
    CoalesceExpr,
    CollateExpr,
    Const,
    Constants,
    Form,
    MinMaxExpr,
    Node,
    NullTest,
    OtherNode,
    Var,
    typmod_of,
)
from penstock.sqlstate import (
    CannotCoerce,
    DatatypeMismatch,
    IndeterminateDatatype,
    UndefinedColumn,
    UndefinedParameter,
    UndefinedTable,
)

_VALUE_FUNCTIONS: Final = {
    "current_date": DATE,
    "current_time": TIMETZ,
    "current_timestamp": TIMESTAMPTZ,
    "localtime": TIME,
    "localtimestamp": TIMESTAMP,
}
"""The types of SQLValueFunctions such as CURRENT_DATE; those of type name are left out."""
_INT4_LIMIT: Final = 1 << 31
_INT8_LIMIT: Final = 1 << 63
SYSTEM_COLUMNS: Final = {
    "ctid": TID,
    "xmin": XID,
    "cmin": CID,
    "xmax": XID,
    "cmax": CID,
    "tableoid": OID,
}
_STRINGS: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME})
BINARY_COLLATIONS: Final = frozenset({"C", "POSIX", "default", "ucs_basic"})
"""Collations that compare bytes, ``default`` being the node's own."""


class ExpressionAnalysis:
    """The analysis of names and types. ``columns``: name to (type oid, typmod)."""

    clause: str = "WHERE"
    """The clause that contains the expression, as named in error messages."""

    def __init__(self, columns: Mapping[str, tuple[int, int]], table: str) -> None:
        self._columns = columns
        self._table = tuple(table.split("."))

    @NodeMethod
    def transform(self, raw: Expression) -> Node:
        """Return the typed tree of a raw one."""
        raise FeatureNotSupported(f"{type(raw).__name__} is not supported in expressions")

    @transform.register
    def _column(self, raw: ColumnRef) -> Node:
        *qualifier, name = raw.fields
        if qualifier and tuple(qualifier) != self._table[-len(qualifier) :]:
            raise UndefinedTable(f'missing FROM-clause entry for table "{qualifier[-1]}"')
        if name in self._columns:
            return Var(self._columns[name][0], name, self._columns[name][1])
        if name in SYSTEM_COLUMNS:
            return Var(SYSTEM_COLUMNS[name], name, system=True)
        if not qualifier and name == self._table[-1]:
            raise FeatureNotSupported("whole rows are not supported in expressions")
        shown = f"{qualifier[-1]}.{name}" if qualifier else f'"{name}"'
        raise UndefinedColumn(f"column {shown} does not exist")

    @transform.register
    def _param(self, raw: ParamRef) -> Node:
        raise UndefinedParameter(f"there is no parameter ${raw.number}")

    @transform.register
    def _param_value(self, raw: ParamValue) -> Node:
        return parameter_constant(raw)

    @transform.register
    def _const(self, raw: AConst) -> Node:
        return constant(raw)

    @transform.register
    def _literals(self, raw: ALiterals) -> Node:
        return constants(raw)

    @transform.register
    def _operator(self, raw: AExpr) -> Node:
        return transform_operator(self, raw)

    @transform.register
    def _bool(self, raw: ABool) -> Node:
        name = raw.operator.value
        arguments = tuple(to_boolean(self.transform(a), name) for a in raw.arguments)
        return BoolExpr(BOOL, raw.operator, arguments)

    @transform.register
    def _null_test(self, raw: ANullTest) -> Node:
        return NullTest(BOOL, self.transform(raw.argument), raw.negated)

    @transform.register
    def _boolean_test(self, raw: ABooleanTest) -> Node:
        argument = to_boolean(self.transform(raw.argument), f"IS {raw.test}")
        return BooleanTest(BOOL, argument, raw.test)

    @transform.register
    def _cast(self, raw: TypeCast) -> Node:
        target, typmod = find_type(raw.type)
        if isinstance(raw.argument, AArray) and element(target):
            node = self._array_of(raw.argument, target, element(target), typmod)
        else:
            node = self.transform(raw.argument)
        found = to_target(node, target, typmod, "e", Form.EXPLICIT)
        if found is None:
            raise CannotCoerce(
                f"cannot cast type {type_name(node.type)} to {type_name(target)}",
            )
        return found

    @transform.register
    def _collate(self, raw: CollateClause) -> Node:
        node = self.transform(raw.argument)
        type_ = types().get(node.type)
        if node.type != UNKNOWN and not (type_ and type_.collation):
            raise DatatypeMismatch(f"collations are not supported by type {type_name(node.type)}")
        name = raw.collation[-1]
        if len(raw.collation) > 1 or name not in BINARY_COLLATIONS:
            raise FeatureNotSupported(
                f'collation "{name}" is not supported in expressions',
                hint='Strings are compared by their bytes, as by collation "C".',
            )
        return CollateExpr(node.type, node, name)

    @transform.register
    def _named_argument(self, raw: NamedArg) -> Node:
        return self.transform(raw.argument)  # the call itself reads the name

    @transform.register
    def _call(self, raw: FuncCall) -> Node:
        if raw.variadic:
            raise FeatureNotSupported("VARIADIC is not supported in expressions")
        arguments = [self.transform(argument) for argument in raw.arguments]
        return call(raw, arguments, self.clause)

    @transform.register
    def _case(self, raw: ACase) -> Node:
        argument = None if raw.argument is None else self.transform(raw.argument)
        if argument is not None and argument.type == UNKNOWN:
            argument = to_common_type(argument, TEXT, "CASE")
        test = argument and CaseTestExpr(argument.type, typmod_of(argument))
        conditions = []
        for when, _ in raw.whens:
            condition = self.transform(when)
            if test is not None:
                condition = make_operator("=", test, condition)
            conditions.append(to_boolean(condition, "CASE/WHEN"))
        results = [self.transform(result) for _, result in raw.whens]
        default = self.transform(raw.default) if raw.default else Const(UNKNOWN, None)
        if any(map(has_set, (default, *results, *conditions))):
            raise FeatureNotSupported("set-returning functions are not allowed in CASE")
        type_ = select_common_type([default, *results], "CASE")
        default = to_common_type(default, type_, "CASE/ELSE")
        whens = tuple(
            CaseWhen(type_, condition, to_common_type(result, type_, "CASE/WHEN"))
            for condition, result in zip(conditions, results, strict=True)
        )
        return CaseExpr(type_, argument, whens, default)

    @transform.register
    def _coalesce(self, raw: ACoalesce) -> Node:
        nodes = [self.transform(argument) for argument in raw.arguments]
        if any(map(has_set, nodes)):
            raise FeatureNotSupported("set-returning functions are not allowed in COALESCE")
        type_ = select_common_type(nodes, "COALESCE")
        return CoalesceExpr(type_, tuple(to_common_type(n, type_, "COALESCE") for n in nodes))

    @transform.register
    def _min_max(self, raw: AMinMax) -> Node:
        name = "GREATEST" if raw.greatest else "LEAST"
        nodes = [self.transform(argument) for argument in raw.arguments]
        type_ = select_common_type(nodes, name)
        common = tuple(to_common_type(node, type_, name) for node in nodes)
        return MinMaxExpr(type_, raw.greatest, common)

    @transform.register
    def _array(self, raw: AArray) -> Node:
        if not raw.elements:
            raise IndeterminateDatatype(
                "cannot determine type of empty array",
                hint="Explicitly cast to the desired type, for example ARRAY[]::integer[].",
            )
        nodes = [self._element(item) for item in raw.elements]
        type_ = select_common_type(nodes, "ARRAY")
        elements = tuple(to_common_type(node, type_, "ARRAY") for node in nodes)
        if not array_of(type_):
            raise UndefinedObject(f"could not find array type for data type {type_name(type_)}")
        return ArrayExpr(array_of(type_), elements)

    def _array_of(self, raw: AArray, target: int, element_type: int, typmod: int) -> Node:
        """Analyze ARRAY[...]::type: each element is cast, so the array may even be empty."""
        elements = []
        for item in raw.elements:
            node = self._element(item)
            found = to_target(node, element_type, typmod, "e", Form.EXPLICIT)
            if found is None:
                raise CannotCoerce(
                    f"cannot cast type {type_name(node.type)} to {type_name(element_type)}",
                )
            elements.append(found)
        return ArrayExpr(target, tuple(elements))

    def _element(self, raw: Expression) -> Node:
        node = self.transform(raw)
        if isinstance(raw, AArray) or element(node.type):
            raise FeatureNotSupported("arrays of more than one dimension are not supported")
        return node

    @transform.register
    def _row(self, raw: ARow) -> Node:
        raise FeatureNotSupported("rows are not supported in expressions")

    @transform.register
    def _sublink(self, raw: ASubLink) -> Node:
        tests = (SubLinkKind.EXISTS, SubLinkKind.ANY, SubLinkKind.ALL)
        return OtherNode(BOOL if raw.kind in tests else UNKNOWN, "subquery")

    @transform.register
    def _default(self, raw: Default) -> Node:
        raise SqlSyntaxError("DEFAULT is not allowed in this context")

    @transform.register
    def _value_function(self, raw: SqlValueFunction) -> Node:
        return OtherNode(_VALUE_FUNCTIONS.get(raw.name, NAME), raw.name, mutable=True)

    @transform.register
    def _indirection(self, raw: Indirection) -> Node:
        node = self.transform(raw.argument)
        if raw.field:
            raise WrongObjectType(
                f"column notation .{raw.field} applied to type {type_name(node.type)}, which is"
                " not a composite type",
            )
        if not element(node.type):
            raise DatatypeMismatch(
                f"cannot subscript type {type_name(node.type)} because it does not support"
                " subscripting",
            )
        return OtherNode(node.type if raw.slice else element(node.type), "subscript")


def constant(raw: AConst) -> Const:
    """Return the constant of a literal (make_const)."""
    match raw.kind:
        case ConstKind.BOOLEAN:
            return Const(BOOL, raw.value[0])
        case ConstKind.STRING:
            return Const(UNKNOWN, raw.value)
        case ConstKind.NULL:
            return Const(UNKNOWN, None)
    return number(raw.value)


def constants(raw: ALiterals) -> Constants:
    """Return many constants, of one type that all of them fit."""
    match raw.kind:
        case ConstKind.BOOLEAN:
            return Constants(BOOL, tuple(text and text[0] for text in raw.values))
        case ConstKind.STRING:
            return Constants(UNKNOWN, raw.values)
        case ConstKind.FLOAT:
            return Constants(NUMERIC, raw.values)
    numbers = [int(text) for text in raw.values if text is not None]
    small = min(numbers) >= -_INT4_LIMIT and max(numbers) < _INT4_LIMIT
    return Constants(INT4 if small else INT8, raw.values)


def parameter_constant(raw: ParamValue) -> Node:
    """Return the constant that replaces a parameter. A value whose type is unknown, or is only read
    later, takes the type from its surroundings."""
    type_ = types().get(raw.type_oid)
    if type_ is None or raw.type_oid == UNKNOWN:
        return Const(UNKNOWN, raw.text)
    text = raw.text
    if raw.type_oid in _STRINGS:
        return BoundValue(raw.type_oid, None if text is None else canonical(text, raw.type_oid))
    if text is not None:
        try:
            text = canonical(text, raw.type_oid)
        except FeatureNotSupported:
            return Const(UNKNOWN, text)
    found = to_target(Const(UNKNOWN, text), raw.type_oid, -1, "e", Form.EXPLICIT)
    assert found is not None
    return found


def find_type(name: TypeName) -> tuple[int, int]:
    """Return oid and typmod of a type as written. Raises 42704, and the errors of typmodin."""
    *schema, last = name.names
    type_ = None if len(schema) > 1 else named_type(last, *schema)
    if type_ is None:
        shown = ".".join(name.names) + ("[]" if name.array else "")
        raise UndefinedObject(f'type "{shown}" does not exist')
    typmod = typmod_in(type_.name, name.typmods)
    return (type_.array if name.array else type_.oid), typmod


def number(text: str) -> Const:
    """Make a constant of the smallest type that fits: integer, bigint or numeric (make_const)."""
    digits = text[1:] if text[:1] == "-" else text
    if digits.isdigit() or digits[:2].lower() in ("0x", "0o", "0b"):
        value = int(text, 0 if not digits.isdigit() else 10)
        if -_INT4_LIMIT <= value < _INT4_LIMIT:
            return Const(INT4, str(value))
        if -_INT8_LIMIT <= value < _INT8_LIMIT:
            return Const(INT8, str(value))
        return Const(NUMERIC, str(value))
    numeric = coerce(Const(UNKNOWN, text), NUMERIC, "i", Form.IMPLICIT)
    assert isinstance(numeric, Const)
    return numeric
