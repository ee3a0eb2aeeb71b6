"""Coercions: which type can become which, and how (parse_coerce.c).

The functions tell whether a coercion exists, or add it to a typed expression. ``literals`` reads
literals of unknown type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from enum import Enum, auto
from typing import Final

from penstock.pgtypes.pg_type import (
    ANY,
    ANYARRAY,
    ANYCOMPATIBLE,
    ANYCOMPATIBLEARRAY,
    ANYCOMPATIBLENONARRAY,
    ANYELEMENT,
    ANYENUM,
    ANYNONARRAY,
    BOOL,
    INT2VECTOR,
    INT8,
    INTEGERS,
    NUMERIC,
    OIDVECTOR,
    TEXT,
    UNKNOWN,
)
from penstock.sql.builtin import casts, functions
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.literals import read_literal, read_literals
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    BoundValue,
    CoerceViaIO,
    CollateExpr,
    Const,
    Constants,
    Form,
    FuncExpr,
    Node,
    Param,
    RelabelType,
    is_cast,
    typmod_of,
)
from penstock.sqlstate import (
    AmbiguousParameter,
    CannotCoerce,
    DatatypeMismatch,
    NumericValueOutOfRange,
)

_ARRAY_POLYMORPHIC: Final = frozenset({ANYARRAY, ANYCOMPATIBLEARRAY})
_SCALAR_POLYMORPHIC: Final = frozenset(
    {
        ANYELEMENT,
        ANYNONARRAY,
        ANYENUM,
        ANYCOMPATIBLE,
        ANYCOMPATIBLENONARRAY,
    }
)
POLYMORPHIC: Final = _ARRAY_POLYMORPHIC | _SCALAR_POLYMORPHIC
_NONARRAY: Final = frozenset({ANYNONARRAY, ANYCOMPATIBLENONARRAY})
_COMPATIBLE: Final = frozenset({ANYCOMPATIBLE, ANYCOMPATIBLEARRAY, ANYCOMPATIBLENONARRAY})
_CONTEXTS: Final = "iae"
_INT8_LIMIT: Final = 1 << 63
_VECTORS: Final = frozenset({INT2VECTOR, OIDVECTOR})
"""int2vector and oidvector: arrays cannot be coerced to them."""


class Path(Enum):
    """CoercionPathType."""

    NONE = auto()
    FUNC = auto()
    RELABEL = auto()
    ARRAY = auto()
    IO = auto()


def category(oid: int) -> str:
    """Return typcategory; X for an unknown type."""
    type_ = types().get(oid)
    return type_.category if type_ else "X"


def element(oid: int) -> int:
    """Return the element type; 0 if the type is not an array (get_element_type)."""
    type_ = types().get(oid)
    return type_.element if type_ else 0


def array_of(oid: int) -> int:
    """Return the array type; 0 if there is none (get_array_type)."""
    type_ = types().get(oid)
    return type_.array if type_ else 0


def is_preferred(category_: str, oid: int) -> bool:
    """Tell whether the type is preferred in its category (IsPreferredType)."""
    type_ = types().get(oid)
    return bool(type_ and type_.preferred and type_.category == category_)


def pathway(target: int, source: int, context: str) -> tuple[Path, int]:
    """Return how a value is cast in a context (i, a, e), and the oid of the cast function.

    Follows find_coercion_pathway.
    """
    if source == target:
        return Path.RELABEL, 0
    cast = casts().get((source, target))
    if cast is not None:
        if _CONTEXTS.index(context) < _CONTEXTS.index(cast.context):
            return Path.NONE, 0
        return {"f": Path.FUNC, "i": Path.IO, "b": Path.RELABEL}[cast.method], cast.function
    if element(target) and element(source) and target not in _VECTORS:
        path, function = pathway(element(target), element(source), context)
        if path is not Path.NONE:
            return Path.ARRAY, function
    wide = context == "e" and category(source) == "S"
    if wide or (context in "ae" and category(target) == "S"):
        return Path.IO, 0
    return Path.NONE, 0


def can_coerce(sources: Sequence[int], targets: Sequence[int], context: str = "i") -> bool:
    """Tell whether the types can be coerced (can_coerce_type)."""
    polymorphic = False
    for source, target in zip(sources, targets, strict=True):
        if source == target or target == ANY:
            continue
        if target in POLYMORPHIC:
            polymorphic = True
        elif source != UNKNOWN and pathway(target, source, context)[0] is Path.NONE:
            return False
    return not polymorphic or resolve_polymorphic(sources, targets) is not None


def resolve_polymorphic(sources: Sequence[int], targets: Sequence[int]) -> tuple[int, int] | None:
    """Return the types that anyelement and anycompatible stand for; None if they do not fit."""
    exact: set[int] = set()
    compatible: list[int] = []
    for source, target in zip(sources, targets, strict=True):
        if target not in POLYMORPHIC:
            continue
        if source == UNKNOWN:
            continue
        scalar = element(source) if target in _ARRAY_POLYMORPHIC else source
        if not scalar or (target in _NONARRAY and element(source)):
            return None
        if target == ANYENUM and not is_enum(source):
            return None
        if target in _COMPATIBLE:
            compatible.append(scalar)
        else:
            exact.add(scalar)
    common = common_type(compatible) if compatible else TEXT
    if len(exact) > 1 or common is None:
        return None
    if not exact and any(t in POLYMORPHIC - _COMPATIBLE for t in targets):
        return None
    return (exact.pop() if exact else TEXT), common


def concrete(target: int, resolved: tuple[int, int]) -> int:
    """Return a declared type with polymorphic ones replaced."""
    if target not in POLYMORPHIC:
        return target
    scalar = resolved[1] if target in _COMPATIBLE else resolved[0]
    return array_of(scalar) if target in _ARRAY_POLYMORPHIC else scalar


def common_type(oids: Sequence[int]) -> int | None:
    """Return the common type (select_common_type); None if the types cannot be matched."""
    chosen = oids[0]
    if chosen != UNKNOWN and all(oid == chosen for oid in oids):
        return chosen
    for oid in oids[1:]:
        if oid in (UNKNOWN, chosen):
            continue
        if chosen == UNKNOWN:
            chosen = oid
        elif category(oid) != category(chosen):
            return None
        elif (
            not is_preferred(category(chosen), chosen)
            and can_coerce([chosen], [oid])
            and not can_coerce([oid], [chosen])
        ):
            chosen = oid
    return TEXT if chosen == UNKNOWN else chosen


def select_common_type(nodes: Sequence[Node], context: str) -> int:
    """Return a type to which all can be coerced. Raises 42804 (types ... cannot be matched)."""
    oids = [node.type for node in nodes]
    found = common_type(oids)
    if found is not None:
        return found
    known = [oid for oid in oids if oid != UNKNOWN]
    other = next(oid for oid in known if category(oid) != category(known[0]))
    mine = common_type(known[: known.index(other)]) or known[0]
    raise DatatypeMismatch(
        f"{context} types {type_name(mine)} and {type_name(other)} cannot be matched",
    )


def to_common_type(node: Node, target: int, context: str) -> Node:
    """Coerce to the common type (coerce_to_common_type). Raises 42846."""
    if node.type == target:
        return node
    if node == Const(UNKNOWN, None) and target in POLYMORPHIC:  # of pg_attribute.attmissingval
        return Const(target, None)
    if can_coerce([node.type], [target]):
        return coerce(node, target, "i", Form.IMPLICIT)
    raise CannotCoerce(
        f"{context} could not convert type {type_name(node.type)} to {type_name(target)}",
    )


def to_boolean(node: Node, construct: str) -> Node:
    """Coerce to boolean (coerce_to_boolean). Raises 42804."""
    if node.type != BOOL:
        found = to_target(node, BOOL, -1, "a", Form.IMPLICIT)
        if found is None:
            raise DatatypeMismatch(
                f"argument of {construct} must be type boolean, not type {type_name(node.type)}",
            )
        return found
    return node


def to_target(node: Node, target: int, typmod: int, context: str, form: Form) -> Node | None:
    """Coerce to a type and modifier (coerce_to_target_type); None if there is no cast."""
    if node.type == target and typmod == typmod_of(node):
        return node
    if not can_coerce([node.type], [target], context):
        return None
    inner = node.argument if isinstance(node, CollateExpr) else node
    result = coerce(inner, target, context, form)
    result = _to_typmod(
        result, target, typmod, form, hide=result is not inner and not isinstance(result, Const)
    )
    if isinstance(node, CollateExpr) and types()[target].collation:
        return CollateExpr(target, result, node.collation)
    return result


def coerce(node: Node, target: int, context: str, form: Form) -> Node:
    """Coerce (coerce_type). The caller knows that there is a pathway."""
    if node.type == target or target in (ANY, *POLYMORPHIC):
        return node
    if isinstance(node, Const) and node.type == UNKNOWN:
        return read_literal(node.text, target)
    if isinstance(node, Constants) and node.type == UNKNOWN:
        return read_literals(node.texts, target)
    if isinstance(node, Param) and node.type == UNKNOWN:
        return _typed_parameter(node, target)
    if isinstance(node, CollateExpr):
        inner = coerce(node.argument, target, context, form)
        return CollateExpr(target, inner, node.collation) if types()[target].collation else inner
    if node.type == UNKNOWN:
        return CoerceViaIO(target, node, -1, form)
    path, function = pathway(target, node.type, context)
    match path:
        case Path.FUNC:
            return FuncExpr(target, function, functions()[function].name, (node,), form)
        case Path.ARRAY:
            return ArrayCoerceExpr(target, node, -1, form)
        case Path.IO if isinstance(node, BoundValue):
            return read_literal(node.text, target)
        case Path.IO:
            return CoerceViaIO(target, node, -1, form)
        case Path.RELABEL if isinstance(node, BoundValue):
            return Const(target, node.text)
        case Path.RELABEL:
            return RelabelType(target, node, -1, form)
    raise CannotCoerce(f"cannot cast type {type_name(node.type)} to {type_name(target)}")


def whole_constant(node: Node) -> Const | None:
    """Return the value of a bigint that is a constant, or the assignment of another number to it.

    Returns None for any other expression. Raises PenstockError (22003).
    """
    if isinstance(node, Const):
        return node
    given = node.arguments[0] if isinstance(node, FuncExpr) and is_cast(node) else None
    if not isinstance(given, Const):
        return None
    if given.text is None or given.type in INTEGERS:
        return Const(INT8, given.text)
    if given.type != NUMERIC or not (number := Decimal(given.text)).is_finite():
        return None
    count = int(number.to_integral_value(ROUND_HALF_UP))
    if not -_INT8_LIMIT <= count < _INT8_LIMIT:
        raise NumericValueOutOfRange("bigint out of range")
    return Const(INT8, str(count))


def _typed_parameter(node: Param, target: int) -> Node:
    """Give a parameter the first type that is asked of it (variable_coerce_param_hook)."""
    known = node.types.setdefault(node.number, target)
    if known != target:
        raise AmbiguousParameter(
            f"inconsistent types deduced for parameter ${node.number}",
            detail=f"{type_name(known)} versus {type_name(target)}",
        )
    return replace(node, type=target)


def _to_typmod(node: Node, target: int, typmod: int, form: Form, *, hide: bool) -> Node:
    """Apply the length coercion, or a RelabelType if there is none (coerce_type_typmod)."""
    if typmod == typmod_of(node):
        return node
    if hide:
        node = _hidden(node)
    cast = casts().get((target, target))
    if typmod >= 0 and element(target):
        return ArrayCoerceExpr(target, node, typmod, form)
    if typmod >= 0 and cast is not None and cast.function:
        name = functions()[cast.function].name
        return FuncExpr(target, cast.function, name, (node,), form, typmod)
    return _relabelled(node, target, typmod, form)


def _relabelled(node: Node, target: int, typmod: int, form: Form) -> Node:
    """Add a RelabelType, or merge it with the labels or constant below (applyRelabelType)."""
    while isinstance(node, RelabelType):
        node = node.argument
    if isinstance(node, Const):
        return Const(target, node.text, typmod)
    if node.type == target and typmod_of(node) == typmod:
        return node
    return RelabelType(target, node, typmod, form)


def _hidden(node: Node) -> Node:
    """Mark a coercion as implicit, so that it is not printed (hide_coercion_node)."""
    if isinstance(node, FuncExpr | RelabelType | CoerceViaIO | ArrayCoerceExpr):
        return replace(node, form=Form.IMPLICIT)
    return node
