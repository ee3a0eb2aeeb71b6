"""Compile typed expressions to DuckDB's SQL that gives PostgreSQL's values (execExprInterp.c).

A typed tree, whose columns have the publisher's names, becomes SQL text that needs no extension and
no setting. A predicate gives a boolean or NULL. An operand that may raise an error is evaluated
only if PostgreSQL would evaluate it: AND and OR go from left to right. Expressions that may differ
from PostgreSQL are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from penstock.interrupts import check_for_interrupts
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    FLOATS,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    VARCHAR,
)
from penstock.sql.builtin import functions
from penstock.sql.dispatch import NodeMethod
from penstock.sql.grammar.parsenodes import BoolOp
from penstock.sql.text.array_literals import split_array
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.conditions import operands
from penstock.sql.to_duckdb.duckdb_patterns import like_escape
from penstock.sql.to_duckdb.duckdb_values import (
    EACH,
    LISTED,
    MANY,
    Value,
    aligned,
    array,
    column,
    comparable,
    constant,
    constants_of,
    duckdb_type,
    listed,
    refused,
)
from penstock.sql.to_duckdb.pg_proc import (
    PLAIN,
    Call,
    call,
    compare,
    computed,
    element_cast,
    operator,
)
from penstock.sql.typed.coercion import array_of, element
from penstock.sql.typed.function_analysis import with_defaults
from penstock.sql.typed.grouping import contains_subquery
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    ArrayExpr,
    BooleanTest,
    BoolExpr,
    CaseExpr,
    CaseTestExpr,
    CaseWhen,
    CoalesceExpr,
    CollateExpr,
    Const,
    Constants,
    DistinctExpr,
    Form,
    FuncExpr,
    MinMaxExpr,
    Node,
    NullIfExpr,
    NullTest,
    OperatorCall,
    OpExpr,
    RelabelType,
    ScalarArrayOpExpr,
    Var,
    children,
    is_cast,
    mutated,
)
from penstock.sql.typed.volatility import contains_mutable
from penstock.sqlstate import StatementTooComplex

_MAX_LENGTH: Final = 1_000_000
"""The most characters of an expression, which can grow fast: nested arithmetic repeats operands.
Each node adds to it, so that only growth is refused and not the length of the statement."""
_NODE_LENGTH: Final = 200
_TEXT_COPIES: Final = 4
_LONGEST: Final = 64 << 20
"""The most characters in any case, as many as the largest message has bytes."""
_GROUP: Final = 100
"""The most operands of AND or OR that DuckDB's optimizer sees at once. It moves conditions about in
quadratic time and memory: 5,000 took 80 seconds, 20,000 all the memory of the machine."""
_LABELS: Final = frozenset({TEXT, VARCHAR, BPCHAR})
_TEXTCAT: Final = "textcat"
_IN: Final = ("IN", "NOT IN")
_LISTED: Final = {
    ("=", True): "IN",
    ("<>", False): "NOT IN",
    **dict.fromkeys([("<", True), ("<=", True), (">", False), (">=", False)], "max"),
    **dict.fromkeys([("<", False), ("<=", False), (">", True), (">=", True)], "min"),
}
"""Comparisons with ANY (True) or ALL: their word, or which one element they need."""
_TESTS: Final = {"UNKNOWN": "NULL", "NOT UNKNOWN": "NOT NULL"}
_BOOLEANS: Final = ("FALSE", "TRUE")
_PASSING: Final = {
    (negated + test, want): passing if (want == "TRUE") is not bool(negated) else others
    for test, passing, others in (
        ("TRUE", ("TRUE",), ("FALSE",)),
        ("FALSE", ("FALSE",), ("TRUE",)),
        ("UNKNOWN", (), _BOOLEANS),
    )
    for negated in ("", "NOT ")
    for want in _BOOLEANS
}
"""Test and its result: the values, other than NULL, that give it."""


_COMPARISONS: Final[Mapping[str, Callable[..., bool]]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_COMPARED: Final = {
    (name, want): [
        pair for pair in product(_BOOLEANS, repeat=2) if holds(*pair) is (want == "TRUE")
    ]
    for name, holds in _COMPARISONS.items()
    for want in _BOOLEANS
}
"""Comparison and its result: the pairs of booleans that give it. The word FALSE is less than TRUE,
too."""


def predicate(node: Node) -> Value:
    """Compile a boolean expression. Raises FeatureNotSupported; 54001 if the SQL is too long."""
    return ExpressionCompiler().value(simplified(node))


def conjunction(values: Sequence[Value], operator: BoolOp = BoolOp.AND) -> Value:
    """Join operands by AND or OR. They are evaluated from left to right until one of them decides
    the result."""
    if not any(value.fails for value in values):
        return Value(_joined([value.sql for value in values], operator), BOOL)
    runs = [
        [value.sql for value in run] if fails else [_joined([value.sql for value in run], operator)]
        for fails, run in groupby(values, lambda value: value.fails)
    ]
    *first, last = (sql for run in runs for sql in run)
    decided = "FALSE" if operator is BoolOp.AND else "TRUE"
    whens = " ".join(f"WHEN ({sql}) IS {decided} THEN {decided}" for sql in first)
    joined = _joined([*first, last], operator)
    return Value(f"CASE {whens} ELSE {joined} END" if whens else joined, BOOL, None, True)


def _joined(operands: list[str], operator: BoolOp) -> str:
    """Join operands that DuckDB may evaluate in any order."""
    while len(operands) > _GROUP:
        groups = (operands[at : at + _GROUP] for at in range(0, len(operands), _GROUP))
        # The optimizer does not look into casts, which keep the value, NULL included.
        operands = [
            f"CAST(CAST({_joined(group, operator)} AS TINYINT) AS BOOLEAN)" for group in groups
        ]
    return operands[0] if len(operands) == 1 else f"({f' {operator.value} '.join(operands)})"


def strict(values: Sequence[Value], result: Value, nodes: Sequence[Node] = ()) -> Value:
    """Return a strict function of operands that may fail. ``nodes``: the operands.

    PostgreSQL evaluates every operand. DuckDB skips an operand if another one is NULL, or if a
    comparison with a constant is decided by the types alone; so failing operands are tested first.
    Operands without columns are tested even earlier: PostgreSQL's planner sees if they are NULL.
    """
    failing = [f"({value.sql}) IS NULL" for value in values if value.fails]
    if not failing:
        return result
    known = [
        f"WHEN ({value.sql}) IS NULL THEN NULL "
        for value, node in zip(values, nodes, strict=False)
        if not isinstance(node, Const) and _is_constant(node)
    ]
    sql = f"CASE {''.join(known)}WHEN {' AND '.join(failing)} THEN NULL ELSE {result.sql} END"
    return Value(sql, result.type, result.shape, True)


class ExpressionCompiler:
    """Compiles nodes to values, and keeps the argument of the CASE that contains the node."""

    catalog = False
    """Whether the rows of functions for queries of the catalogs are used, too."""

    def __init__(self) -> None:
        self._case: list[tuple[Node, Value]] = []
        self._depth = 0
        self._allowed = _MAX_LENGTH
        self._lists: list[str] = []
        self._with_columns: dict[int, tuple[Node, bool]] = {}

    def value(self, node: Node) -> Value:
        """Return the SQL of an expression. Raises as ``predicate``."""
        check_for_interrupts()
        if not self._depth:  # what is below is folded, too
            node = folded(node)
        self._depth += 1
        try:
            value = self._value(node)
        finally:
            self._depth -= 1
        self._allowed += _NODE_LENGTH
        if isinstance(node, Const):
            self._allowed += _TEXT_COPIES * len(value.sql)
        if isinstance(node, Constants):
            self._allowed += _TEXT_COPIES * len(self._lists[-1])
        if len(value.sql) > min(self._allowed, _LONGEST):
            raise StatementTooComplex("expression is too complex")
        if value.fails:
            self._check_failing(node)
        return value

    def _uses_column(self, node: Node) -> bool:
        """Return whether an expression uses a column (contain_vars_of_level). Each node is looked
        at once: its parents ask, too."""
        known = self._with_columns.get(id(node))
        if known is None:
            uses = isinstance(node, Var) or any(map(self._uses_column, children(node)))
            known = self._with_columns[id(node)] = (node, uses)  # the node keeps its id
        return known[1]

    def _check_failing(self, node: Node) -> None:
        """Refuse constants that may fail: PostgreSQL's planner fails on them even without rows."""
        if not self._uses_column(node) and not self._case:
            raise refused("an expression of constants that may fail")

    @NodeMethod
    def _value(self, node: Node) -> Value:
        raise refused(f"{type(node).__name__}")

    @_value.register
    def _var(self, node: Var) -> Value:
        return column(node.name, node.type, node.typmod)

    @_value.register
    def _const(self, node: Const) -> Value:
        return constant(node.text, node.type)

    @_value.register
    def _constants(self, node: Constants) -> Value:
        self._lists.append(listed(node.texts, node.type))
        return constants_of(f"k{len(self._lists)}", node.type, node.texts)

    def many(self, nodes: Sequence[Node]) -> tuple[Sequence[Value], str]:
        """Compile expressions of ``Constants``; return their values and, after FROM, the rows that
        they are of. "" if there are no ``Constants``."""
        around, self._lists = self._lists, []
        try:
            values = [self.value(node) for node in nodes]
            columns = ", ".join(f"{sql} AS k{n}" for n, sql in enumerate(self._lists, 1))
            return values, columns and f"(SELECT {columns}) AS constants"
        finally:
            self._lists = around

    @_value.register
    def _bool(self, node: BoolExpr) -> Value:
        node = replace(node, arguments=tuple(with_arrays(node)))
        values = [self.value(argument) for argument in node.arguments]
        if node.operator is BoolOp.NOT:
            return Value(f"(NOT {values[0].sql})", BOOL, None, values[0].fails)
        joined = conjunction(values, node.operator)
        decided = "TRUE" if node.operator is BoolOp.OR else "FALSE"
        # Constants alone are computed from left to right, as the planner does.
        mixed = joined.fails and self._uses_column(node)
        early = self._decided(node, decided) if mixed else None
        if early is None:
            return joined
        return Value(f"CASE WHEN {early} THEN {decided} ELSE {joined.sql} END", BOOL, None, True)

    def _decided(self, node: Node, want: str) -> str | None:
        """Return SQL that tells whether constants alone make the node ``want``; None if no SQL can.

        PostgreSQL's planner finds this out first, and then evaluates nothing else (clauses.c).
        """
        if not self._uses_column(node) and not self._case:
            return f"({self.value(node).sql}) IS {want}"
        if isinstance(node, CaseExpr) and node.argument is None:
            rest = self._decided(node.default, want) or "FALSE"
            for when in reversed(node.whens):
                if self._uses_column(when.condition):
                    rest = "FALSE"
                    continue
                branch = self._decided(when.result, want) or "FALSE"
                condition = self.value(when.condition).sql
                rest = f"CASE WHEN {condition} THEN {branch} ELSE {rest} END"
            return rest
        if isinstance(node, NullTest | BooleanTest) and node.argument.type == BOOL:
            ways = [((node.argument, each),) for each in _PASSING[_test(node), want]]
            return self._any_decided(ways)
        if isinstance(node, OpExpr | DistinctExpr) and {a.type for a in node.arguments} == {BOOL}:
            name = "<>" if isinstance(node, DistinctExpr) else node.name
            pairs = _COMPARED.get((name, want), [])
            return self._any_decided([tuple(zip(node.arguments, p, strict=True)) for p in pairs])
        if not isinstance(node, BoolExpr):
            return None
        if node.operator is BoolOp.NOT:
            return self._decided(node.arguments[0], "FALSE" if want == "TRUE" else "TRUE")
        found = [self._decided(argument, want) for argument in node.arguments]
        known = [sql for sql in found if sql is not None]
        if (node.operator is BoolOp.OR) == (want == "TRUE"):
            return f"({' OR '.join(known)})" if known else None
        return f"({' AND '.join(known)})" if len(known) == len(found) else None

    def _any_decided(self, ways: Sequence[Sequence[tuple[Node, str]]]) -> str | None:
        """Return SQL that tells whether constants alone decide all nodes of one of the ways."""
        found = [[self._decided(node, want) for node, want in way] for way in ways]
        known = [f"({' AND '.join(map(str, way))})" for way in found if None not in way]
        return f"({' OR '.join(known)})" if known else None

    @_value.register
    def _null_test(self, node: NullTest) -> Value:
        value = self.value(node.argument)
        test = "IS NOT NULL" if node.negated else "IS NULL"
        return Value(f"({value.sql} {test})", BOOL, None, value.fails)

    @_value.register
    def _boolean_test(self, node: BooleanTest) -> Value:
        value = self.value(node.argument)
        return Value(
            f"({value.sql} IS {_TESTS.get(node.test, node.test)})", BOOL, None, value.fails
        )

    @_value.register
    def _operator(self, node: OpExpr) -> Value:
        if functions()[node.function].name == _TEXTCAT:
            return self._concatenation(node)
        operands = [self._planned(argument) for argument in node.arguments]
        if any(map(_is_null, operands)) and functions()[node.function].strict:
            return constant(None, node.type)
        nodes = [self._pattern(argument) for argument in node.arguments]
        values = [self.value(argument) for argument in nodes]
        result = self._operator_of(node, values, [stripped(each) for each in nodes])
        alone = len(values) == 1 or not functions()[node.function].strict
        return result if alone else strict(values, result, operands)

    def _concatenation(self, node: OpExpr) -> Value:
        """Compile ``||`` of any number of texts, as a tree that is not too deep for DuckDB."""
        waiting: list[Node] = [node]
        nodes: list[Node] = []
        while waiting:
            each = waiting.pop()
            if isinstance(each, OpExpr) and each.function == node.function:
                waiting += each.arguments
            else:
                nodes.append(each)
        nodes.reverse()
        given = [self._planned(each) for each in nodes]
        if any(map(_is_null, given)):
            return constant(None, node.type)
        values = joined = [self.value(each) for each in nodes]
        while len(joined) > 1:
            pairs = (joined[at : at + 2] for at in range(0, len(joined), 2))
            joined = [
                pair[0] if len(pair) == 1 else self._operator_of(node, pair, node.arguments)
                for pair in pairs
            ]
        return strict(values, joined[0], given)

    def _operator_of(
        self, node: OperatorCall, values: Sequence[Value], nodes: Sequence[Node]
    ) -> Value:
        result = BOOL if isinstance(node, ScalarArrayOpExpr) else node.type
        return operator(node.name, node.function, values, nodes, result, catalog=self.catalog)

    def _planned(self, node: Node) -> Node:
        """Return the argument of the CASE in place of the node that stands for it."""
        return self._case[-1][0] if isinstance(stripped(node), CaseTestExpr) else node

    def _pattern(self, node: Node) -> Node:
        """Return the pattern of ``LIKE ... ESCAPE`` with constants, any other node as it is."""
        if not isinstance(node, FuncExpr) or node.name != "like_escape":
            return node
        pattern, escape = (stripped(argument) for argument in node.arguments)
        if not isinstance(pattern, Const) or not isinstance(escape, Const):
            return node
        if pattern.text is None or escape.text is None:
            return Const(TEXT, None)
        return Const(TEXT, like_escape(pattern.text, escape.text))

    @_value.register
    def _distinct(self, node: DistinctExpr) -> Value:
        left, right = (self.value(argument) for argument in node.arguments)
        if not left.fails and not right.fails:
            return compare("IS DISTINCT FROM", left, right)
        sql = (
            f"CASE WHEN ({left.sql}) IS NULL THEN ({right.sql}) IS NOT NULL"
            f" WHEN ({right.sql}) IS NULL THEN TRUE ELSE {compare('<>', left, right).sql} END"
        )
        return Value(sql, BOOL, None, True)

    @_value.register
    def _null_if(self, node: NullIfExpr) -> Value:
        left, right = (self.value(argument) for argument in node.arguments)
        if any(_is_null(self._planned(argument)) for argument in node.arguments):
            return left
        operands = [self._planned(argument) for argument in node.arguments]
        equal = strict([left, right], compare("=", left, right), operands)
        sql = f"{_case([equal], ['NULL', left.sql])}"
        return Value(sql, node.type, left.shape, equal.fails)

    @_value.register
    def _scalar_array(self, node: ScalarArrayOpExpr) -> Value:
        left_node, right_node = node.arguments
        left = self.value(left_node)
        elements = _elements(right_node)
        if elements is None:
            return self._any_of_list(node, left, right_node)
        if not elements:
            sql = f"({'FALSE' if node.any else 'TRUE'})"
            return Value(sql, BOOL, None, left.fails)
        how = _LISTED.get((node.name, node.any))
        if how and len(elements) >= MANY and (how in _IN or not any(map(_is_null, elements))):
            item = alike(elements)
            elements = elements if item is None else [item]
        values, rows = self.many(elements)
        if how and rows:
            return _of_rows(node.name, how, left, values[0], rows)
        fails = left.fails or any(value.fails for value in values)
        if how in _IN and not fails and {left.type, *(value.type for value in values)} <= PLAIN:
            compare("=", left, values[0])
            return Value(f"({left.sql} {how} ({', '.join(value.sql for value in values)}))", BOOL)
        compared = [
            strict(
                [left, value], self._operator_of(node, [left, value], [left_node, stripped(item)])
            )
            for value, item in zip(values, elements, strict=True)
        ]
        return conjunction(compared, BoolOp.OR if node.any else BoolOp.AND)

    def _any_of_list(self, node: ScalarArrayOpExpr, left: Value, right_node: Node) -> Value:
        """Compile ANY and ALL over an array column: element by element, in three-valued logic."""
        if isinstance(right_node, Const):
            return Value("CAST(NULL AS BOOLEAN)", BOOL, None, left.fails)
        right = self.value(right_node)
        if element(right.type) not in LISTED:
            raise refused(f"ANY or ALL over {type_name(right.type)}")
        item = Value(EACH, element(right.type), right.shape)
        given = contains_subquery(node.arguments[0])  # DuckDB allows none in a lambda
        if given:
            computed, left = left, replace(left, sql="searched.value")
        test = self._operator_of(node, [left, item], node.arguments)
        if test.fails and not self.catalog:
            raise refused("ANY or ALL over an array with a value that may fail")
        found = f"list_transform({right.sql}, lambda {EACH}: {test.sql})"
        decided, rest = ("TRUE", "FALSE") if node.any else ("FALSE", "TRUE")
        sql = (
            f"CASE WHEN {right.sql} IS NULL THEN NULL"
            f" WHEN list_contains({found}, {decided}) THEN {decided}"
            f" WHEN len(list_filter({found}, lambda {EACH}: {EACH} IS NULL)) > 0 THEN NULL"
            f" ELSE {rest} END"
        )
        if given:
            sql = f"(SELECT {sql} FROM (SELECT {computed.sql} AS value) AS searched)"
        return Value(sql, BOOL, None, right.fails)

    @_value.register
    def _function(self, node: FuncExpr) -> Value:
        if is_cast(node) and node.type == NUMERIC:
            argument = node.arguments[0]
            if isinstance(argument, Const) and argument.type in INTEGERS:
                return constant(argument.text, NUMERIC)
        node = with_defaults(node)
        called = functions().get(node.oid)
        if called is not None and called.strict and not called.returns_set and has_null(node):
            return constant(None, node.type)
        values = [self.value(argument) for argument in node.arguments]
        nodes = [stripped(argument) for argument in node.arguments]
        made = call(
            node.oid, Call(node.name, values, nodes, node.type, node.typmod), catalog=self.catalog
        )
        if made is None and is_cast(node):
            raise refused(f"the cast from {type_name(values[0].type)} to {type_name(node.type)}")
        if made is None:
            shown = ", ".join(type_name(value.type) for value in values)
            raise refused(f"function {node.name}({shown})")
        alone = len(values) == 1 or (called is not None and not called.strict)
        return made if alone else strict(values, made)

    @_value.register
    def _relabel(self, node: RelabelType) -> Value:
        value = self.value(node.argument)
        same = value.type == node.type or {value.type, node.type} <= _LABELS
        if not same:
            raise refused(f"the cast from {type_name(value.type)} to {type_name(node.type)}")
        return Value(value.sql, node.type, value.shape, value.fails)

    @_value.register
    def _array_coerce(self, node: ArrayCoerceExpr) -> Value:
        value = self.value(node.argument)
        if not {element(value.type), element(node.type)} <= LISTED:
            raise refused(f"the cast from {type_name(value.type)} to {type_name(node.type)}")
        item = Value(EACH, element(value.type), value.shape)
        explicit = node.form is not Form.IMPLICIT
        made = element_cast(item, element(node.type), node.typmod, explicit=explicit)
        sql = value.sql
        if made.sql != EACH:
            sql = f"list_transform({sql}, lambda {EACH}: {made.sql})"
        return Value(sql, node.type, made.shape, value.fails or made.fails)

    @_value.register
    def _collate(self, node: CollateExpr) -> Value:
        return self.value(node.argument)

    @_value.register
    def _case_expr(self, node: CaseExpr) -> Value:
        if node.argument is not None:
            self._case.append((node.argument, self.value(node.argument)))
        found = self._looked_up(node)
        if found is not None:
            if node.argument is not None:
                self._case.pop()
            return found
        conditions = [self.value(when.condition) for when in node.whens]
        if node.argument is not None:
            self._case.pop()
        nodes = [*(when.result for when in node.whens), node.default]
        return _branches(conditions, nodes, [self.value(each) for each in nodes], node.type)

    def _looked_up(self, node: CaseExpr) -> Value | None:
        """Compile many branches ``WHEN expression = constant THEN constant`` as a search in a list;
        None if there are others."""
        first = node.whens[0].condition
        if len(node.whens) < MANY or not isinstance(first, OpExpr) or first.name != "=":
            return None
        operand = first.arguments[0]
        keys, results = [], []
        for when in node.whens:
            match when:
                case CaseWhen(
                    condition=OpExpr(oid=oid, arguments=(left, Const(text=str()) as key)),
                    result=Const() as known,
                ) if oid == first.oid and left == operand:
                    keys.append(key)
                    results.append(known)
        made = [alike(keys), alike(results)] if len(keys) == len(node.whens) else [None]
        columns = [each for each in made if each is not None]
        if len(columns) < 2 or contains_mutable(operand):
            return None
        (item, result), rows = self.many(columns)
        value = self.value(operand)
        compare("=", value, item)
        place = "list_position((SELECT list({1}) FROM {rows}), {0})".format(
            *comparable(value, item), rows=rows
        )
        (result, default), shape = aligned([result, self.value(node.default)])
        held = duckdb_type(node.type, shape)
        sql = (
            f"CASE WHEN {place} > 0 THEN CAST((SELECT list({result.sql}) FROM {rows})[{place}]"
            f" AS {held}) ELSE CAST({default.sql} AS {held}) END"
        )
        return Value(sql, node.type, shape, value.fails or default.fails)

    @_value.register
    def _case_test(self, node: CaseTestExpr) -> Value:
        return self._case[-1][1]

    @_value.register
    def _array(self, node: ArrayExpr) -> Value:
        return array([self.value(item) for item in node.elements], node.type)

    @_value.register
    def _coalesce(self, node: CoalesceExpr) -> Value:
        values, shape = aligned([self.value(argument) for argument in node.arguments])
        fails = any(value.fails for value in values)
        return Value(_first_known(values), node.type, shape, fails)

    @_value.register
    def _min_max(self, node: MinMaxExpr) -> Value:
        values, shape = aligned([self.value(argument) for argument in node.arguments])
        name = "greatest" if node.greatest else "least"
        given = ", ".join(value.sql for value in values)
        sql = f"{name}({given})"
        if node.type == NUMERIC and shape is None:
            sql = f"pg_text('numeric_{name}', CAST([{given}] AS VARCHAR[]))"
        elif node.type not in PLAIN | {NUMERIC}:
            raise refused(f"{name.upper()} of {type_name(node.type)}")
        return Value(sql, node.type, shape, any(value.fails for value in values))


def _test(node: NullTest | BooleanTest) -> str:
    """Return the words after IS, with UNKNOWN for NULL."""
    if isinstance(node, BooleanTest):
        return node.test
    return "NOT UNKNOWN" if node.negated else "UNKNOWN"


def _first_known(values: list[Value]) -> str:
    """Compile COALESCE. If a value may fail, use CASE: it evaluates one value after another."""
    if not any(value.fails for value in values):
        return f"COALESCE({', '.join(value.sql for value in values)})"
    sql = values[-1].sql
    for value in reversed(values[:-1]):
        sql = f"CASE WHEN ({value.sql}) IS NOT NULL THEN {value.sql} ELSE {sql} END"
    return sql


def _branches(
    conditions: list[Value], nodes: list[Node], results: list[Value], type_: int
) -> Value:
    results, shape = aligned(results)
    held = duckdb_type(type_, shape)
    fails = any(value.fails for value in [*conditions, *results])
    texts = [
        # A constant's SQL is a cast itself.
        result.sql if isinstance(node, Const) else f"CAST({result.sql} AS {held})"
        for node, result in zip(nodes, results, strict=True)
    ]
    return Value(_case(conditions, texts), type_, shape, fails)


def _case(conditions: list[Value], results: list[str]) -> str:
    # As a whole condition, DuckDB takes NULL for false, and does not evaluate what AND joins to it.
    whens = " ".join(
        f"WHEN {f'({condition.sql}) IS TRUE' if condition.fails else condition.sql} THEN {result}"
        for condition, result in zip(conditions, results[:-1], strict=True)
    )
    return f"CASE {whens} ELSE {results[-1]} END"


def stripped(node: Node) -> Node:
    """Return the node below labels and collations, which do not change a constant."""
    while isinstance(node, RelabelType | CollateExpr):
        node = node.argument
    return node


def has_null(node: OpExpr | FuncExpr) -> bool:
    """Tell whether a strict function gets a constant NULL, which alone decides its result."""
    return any(map(_is_null, node.arguments))


def _is_null(node: Node) -> bool:
    node = stripped(node)
    return isinstance(node, Const) and node.text is None


def _is_constant(node: Node) -> bool:
    """Tell whether the planner knows the value, unless it may fail."""
    if isinstance(node, Var | CaseTestExpr):
        return False
    return all(map(_is_constant, children(node)))


def _elements(node: Node) -> Sequence[Node] | None:
    """Return the elements of ARRAY[...] or an array constant; None for a column or NULL."""
    if isinstance(node, ArrayExpr):
        return node.elements
    if isinstance(node, Const) and node.text is not None:
        return [Const(element(node.type), item) for item in split_array(node.text)]
    return None


def with_arrays(node: BoolExpr) -> Sequence[Node]:
    """Return the operands, with many comparisons of a column with constants as one comparison with
    an array, as PostgreSQL does for OR. Other expressions may fail, so the order of operands
    matters: their comparisons are joined if there is nothing else."""
    found: list[Node | None] = list(operands(node))
    any_ = node.operator is BoolOp.OR
    compared: dict[tuple[int, Node], list[tuple[int, Const]]] = {}
    for at, each in enumerate(found):
        match each:
            case OpExpr(arguments=(left, Const(text=str()) as item)) if (
                each.name,
                any_,
            ) in _LISTED:
                compared.setdefault((each.oid, left), []).append((at, item))
    for (_, left), items in compared.items():
        first = found[items[0][0]]
        array = array_of(items[0][1].type)
        if len(items) < MANY or not array or not isinstance(first, OpExpr):
            continue
        alone = len(items) == len(found) and not contains_mutable(left)
        if not alone and not isinstance(stripped(left), Var):
            continue
        for at, _ in items:
            found[at] = None
        arguments = (left, ArrayExpr(array, tuple(item for _, item in items)))
        found[items[0][0]] = ScalarArrayOpExpr(
            BOOL, first.oid, first.function, first.name, arguments, any_
        )
    return [each for each in found if each is not None]


def _of_rows(name: str, how: str, left: Value, item: Value, rows: str) -> Value:
    """Compile a comparison with many constants. ``how``: of ``_LISTED``; ``item``: one of ``rows``.

    DuckDB hashes the constants of IN. But it does so early: an operand that may fail is searched in
    a list, in its place.
    """
    compare(name, left, item)
    first, second = comparable(left, item)
    if how in ("min", "max"):
        sql = f"({first} {name} (SELECT {how}({second}) FROM {rows}))"
        return Value(sql, BOOL, None, left.fails)
    if not left.fails:
        return Value(f"({first} {how} (SELECT {second} FROM {rows}))", BOOL)
    items = f"(SELECT list({second}) FROM {rows})"
    sql = (
        f"CASE WHEN ({first}) IS NULL THEN NULL WHEN list_contains({items}, {first}) THEN TRUE"
        f" WHEN len({items}) = len(list_filter({items}, lambda x: x IS NOT NULL)) THEN FALSE END"
    )
    return Value(sql if how == "IN" else f"(NOT {sql})", BOOL, None, True)


def alike(cells: Sequence[Node]) -> Node | None:
    """Return the one expression that all cells are of constants, with ``Constants`` in their place;
    None if there is no such expression."""
    found: tuple[int, tuple[Node, ...]] | None = None
    texts: list[str | None] = []
    for cell in cells:
        check_for_interrupts()
        casts: tuple[Node, ...] = ()
        inner = folded(cell)
        while isinstance(inner, FuncExpr) and is_cast(inner):
            argument = inner.arguments[0]
            if inner.type == NUMERIC and inner.typmod < 0 and argument.type in INTEGERS:
                inner = Const(NUMERIC, argument.text) if isinstance(argument, Const) else argument
                continue
            casts = (*casts, replace(inner, arguments=()))
            inner = argument
        if not isinstance(inner, Const) or element(inner.type):
            return None
        texts.append(inner.text)
        if inner.text is not None:
            found = found or (inner.type, casts)
            if found != (inner.type, casts):
                return None
    if found is None:
        return Constants(cells[0].type, tuple(texts))
    type_, around = found
    expression: Node = Constants(type_, tuple(texts))
    for cast in reversed(around):
        assert isinstance(cast, FuncExpr)
        expression = replace(cast, arguments=(expression,))
    return expression


def simplified(node: Node) -> Node:
    """Return the expression without what constants decide before any row is read
    (eval_const_expressions), as far as it is known here."""
    node = _folded(mutated(node, simplified))
    match node:
        case OpExpr(function=oid) | FuncExpr(oid=oid) if has_null(node):
            called = functions().get(oid)
            if called is not None and called.strict and not called.returns_set:
                return Const(node.type, None)
        case NullIfExpr(arguments=(left, _)) if any(map(_is_null, node.arguments)):
            return left
        case CoalesceExpr(arguments=arguments):
            return _first_of(node, [each for each in arguments if not _is_null(each)])
        case CaseExpr(whens=whens):
            return _without_known(node, whens)
    return node


def _first_of(node: CoalesceExpr, arguments: Sequence[Node]) -> Node:
    """Drop what follows the first constant of COALESCE. ``arguments``: without constant NULLs."""
    known = next((n for n, each in enumerate(arguments) if isinstance(stripped(each), Const)), None)
    kept = arguments[: None if known is None else known + 1]
    if not kept:
        return Const(node.type, None)
    return kept[0] if known == 0 else replace(node, arguments=tuple(kept))


def _without_known(node: CaseExpr, whens: Sequence[CaseWhen]) -> Node:
    """Drop branches of CASE whose condition is a constant; a true one becomes its ELSE."""
    kept: list[CaseWhen] = []
    default = node.default
    for when in whens:
        if not isinstance(when.condition, Const):
            kept.append(when)
        elif when.condition.text == "t":
            default = when.result
            break
    return replace(node, whens=tuple(kept), default=default) if kept else default


# Fold arithmetic of constants: ``24 * 60 * 60``, ``3 * interval '1 h'`` (clauses.c).
#
# A typed expression of integers becomes a constant if it has a value; so does a call of a Python
# function. Any other expression stays as it is. So does one that fails (``1 / 0``).

_BITS: Final = {INT2: 16, INT4: 32, INT8: 64}


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_OPERATORS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
    "%": lambda left, right: left - right * _divide(left, right),
}


def folded(node: Node) -> Node:
    """Return the constant to which the expression folds, or the expression itself."""
    if isinstance(node, Const):
        return node
    return _folded(mutated(node, folded))


def _folded(node: Node) -> Node:
    """Return the constant to which a call of constants folds, or the call itself."""
    value = _integer(node)
    if value is not None:
        return Const(node.type, str(value))
    if isinstance(node, OpExpr) and node.type == BOOL and node.name in _COMPARISONS:
        numbers = [number for each in node.arguments if (number := _number(each)) is not None]
        if len(numbers) == 2:
            return Const(BOOL, "t" if _COMPARISONS[node.name](*numbers) else "f")
    called = functions().get(_function_of(node))
    if called is None or called.volatility != "i" or not called.strict:
        return node
    complete = with_defaults(node) if isinstance(node, FuncExpr) else node
    arguments = [stripped(argument) for argument in children(complete)]
    given = [each for each in arguments if isinstance(each, Const) and each.text is not None]
    if len(given) < len(arguments):
        return node
    if isinstance(node, FuncExpr) and is_cast(node) and node.type in FLOATS:
        return Const(node.type, given[0].text) if given[0].type in INTEGERS else node
    return computed(called.oid, given, node.type) or node


def _function_of(node: Node) -> int:
    return node.function if isinstance(node, OpExpr) else int(getattr(node, "oid", 0))


def _integer(node: Node) -> int | None:
    """Return the value of an operator or a cast of integer constants; None if there is none."""
    if node.type not in _BITS or isinstance(node, Const):
        return None
    value = _evaluated(node)
    bits = _BITS[node.type]
    return value if value is not None and -(1 << bits - 1) <= value < 1 << bits - 1 else None


def _evaluated(node: Node) -> int | None:
    if isinstance(node, RelabelType):
        return _number(node.argument)
    if isinstance(node, FuncExpr) and is_cast(node):
        return _number(node.arguments[0])
    if not isinstance(node, OpExpr):
        return None
    numbers = [number for each in node.arguments if (number := _number(each)) is not None]
    if len(numbers) < len(node.arguments):
        return None
    if len(numbers) == 1:
        return {"-": -numbers[0], "+": numbers[0]}.get(node.name)
    if node.name in ("/", "%") and numbers[1] == 0:
        return None
    operation = _OPERATORS.get(node.name)
    return None if operation is None else operation(*numbers)


def _number(node: Node) -> int | None:
    known = isinstance(node, Const) and node.text is not None and node.type in _BITS
    return int(node.text or "") if known else None  # type: ignore[attr-defined]
