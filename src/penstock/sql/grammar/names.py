"""Names of tables and roles, and options (gram.y: qualified_name, RoleSpec, definition).

They are read from the fields of raw nodes into ``RangeVar``, ``RoleSpec`` and ``DefElem``.
``penstock.commands`` looks up the tables and roles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.grammar.parsenodes import DefElem, RangeVar, RoleKind, RoleSpec, Statement
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source

Reader = Callable[[RawNode, Source], Statement]
Readers = dict[str, Reader]
"""Readers by the node's kind, such as ``CopyStmt``. If a node serves several kinds of object, the
kind of object is added, as in ``DropStmt OBJECT_TABLE``."""

HINT: Final = (
    "Penstock knows the statements for subscriptions, publications, roles and tables of the lake, "
    "COPY TO STDOUT, and queries."
)
_ROLES: Final = {
    "ROLESPEC_CURRENT_ROLE": RoleKind.CURRENT_ROLE,
    "ROLESPEC_CURRENT_USER": RoleKind.CURRENT_USER,
    "ROLESPEC_SESSION_USER": RoleKind.SESSION_USER,
    "ROLESPEC_PUBLIC": RoleKind.PUBLIC,
}
_PERSISTENCE: Final = {"t": "TEMPORARY", "u": "UNLOGGED"}
_MAX_PARTS: Final = 3


def not_supported(what: str) -> FeatureNotSupported:
    """Return the error for syntax that PostgreSQL has and Penstock does not."""
    return FeatureNotSupported(f"{what} is not supported", hint=HINT)


def range_var(fields: Json) -> RangeVar:
    """Read the fields of a RangeVar."""
    raw = RawNode("RangeVar", fields)
    persistence = raw.take("relpersistence")
    if persistence != "p":
        raise not_supported(f"{_PERSISTENCE.get(persistence, persistence)} tables")
    found = RangeVar(
        raw.take("relname"),
        raw.take("schemaname"),
        raw.take("catalogname"),
        only=not raw.take("inh"),
    )
    raw.done()
    return found


def relation(raw: RawNode, name: str = "relation") -> RangeVar:
    """Read a field that holds a RangeVar without its kind."""
    fields = raw.node(name)
    assert fields is not None
    return range_var(fields)


def relations(raw: RawNode, name: str) -> tuple[RangeVar, ...]:
    """Read a field that holds a list of RangeVar."""
    return tuple(range_var(node["RangeVar"]) for node in raw.nodes(name))


def any_name(names: tuple[str, ...]) -> RangeVar:
    """Read ``any_name``: one to three names with dots between them. Raises SqlSyntaxError."""
    if len(names) > _MAX_PARTS:
        shown = ".".join(names)
        raise SqlSyntaxError(f"improper qualified name (too many dotted names): {shown}")
    catalog, schema, name = (None, None, *names)[-3:] if len(names) < _MAX_PARTS else names
    assert name is not None
    return RangeVar(name, schema, catalog)


def any_names(raw: RawNode, name: str) -> tuple[RangeVar, ...]:
    """Read a field that holds a list of lists of String."""
    return tuple(any_name(RawNode.of(node).names("items")) for node in raw.nodes(name))


def role_spec(fields: Json) -> RoleSpec:
    """Read the fields of a RoleSpec."""
    raw = RawNode("RoleSpec", fields)
    kind, name = _ROLES.get(raw.take("roletype")), raw.take("rolename")
    raw.done()
    return RoleSpec(name) if kind is None else RoleSpec(kind=kind)


def role_specs(raw: RawNode, name: str) -> tuple[RoleSpec, ...]:
    """Read a field that holds a list of RoleSpec."""
    return tuple(role_spec(node["RoleSpec"]) for node in raw.nodes(name))


def cascades(raw: RawNode) -> bool:
    """Read ``opt_drop_behavior``: True for CASCADE."""
    return bool(raw.take("behavior") == "DROP_CASCADE")


def options(raw: RawNode, name: str = "options") -> tuple[DefElem, ...]:
    """Read a field that holds a list of DefElem."""
    found = []
    for option, argument in def_elems(raw, name):
        found.append(DefElem(option, None if argument is None else option_text(argument)))
    return tuple(found)


def def_elems(raw: RawNode, name: str = "options") -> list[tuple[str, Json | None]]:
    """Read a field that holds a list of DefElem, with the nodes of the values."""
    found = []
    for node in raw.nodes(name):
        element = RawNode.of(node)
        element.expect("defaction", "DEFELEM_UNSPEC")
        found.append((element.take("defname"), element.node("arg")))
        element.done()
    return found


def option_text(node: Json) -> str | int:
    """Return an option's value as defGetString does, except that an integer stays an int."""
    ((kind, fields),) = node.items()
    match kind:
        case "Integer":
            return int(fields.get("ival", 0))
        case "Float":
            return str(fields["fval"])
        case "String":
            return str(fields.get("sval", ""))
        case "Boolean":
            return "true" if fields.get("boolval") else "false"
        case "A_Star":
            return "*"
        case "TypeName":  # TypeNameToString
            brackets = "[]" if fields.get("arrayBounds") else ""
            return ".".join(RawNode(kind, fields).names("names")) + brackets
        case "List":
            return ", ".join(str(option_text(item)) for item in fields["items"])
    raise not_supported(f"{kind} as the value of an option")


def constant(node: Json) -> str | int | bool | None:
    """Return the value of an A_Const; a float is returned as text. Raises FeatureNotSupported."""
    raw = RawNode.of(node)
    if raw.kind != "A_Const":
        raise not_supported("an expression in place of a constant")
    if raw.take("isnull"):
        return None
    for field, zero in (("ival", 0), ("fval", ""), ("sval", ""), ("boolval", False)):
        value: Any = raw.take(field)
        if value is not None:
            found: str | int | bool = value.get(field, zero)
            return found
    raise not_supported("a bit string")
