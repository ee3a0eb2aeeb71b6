"""Types of parameters by their places, and their values in place of them."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.sql.grammar.parsenodes import ParamValue, ResTarget, nodes_of
from penstock.sql.grammar.raw_statements import parse_query, parse_select
from penstock.sql.typed.expression_analysis import parameter_constant
from penstock.sql.typed.parameters import last_parameter, parameter_types, with_values
from penstock.sql.typed.primnodes import BoundValue, Const

_INT4, _INT8, _TEXT, _NUMERIC, _BOOL, _DATE = 23, 20, 25, 1700, 16, 1082
_COLUMNS = {"id": _INT4, "name": _TEXT, "price": _NUMERIC, "ok": _BOOL, "added": _DATE}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM t WHERE id = $1 AND $2 < price", (_INT4, _NUMERIC)),
        ("SELECT 1 FROM t a JOIN t b ON a.id = b.id WHERE b.added IN ($1,$2)", (_DATE, _DATE)),
        ("SELECT 1 FROM t WHERE id = ANY ($1) AND id BETWEEN $2 AND $3", (1007, _INT4, _INT4)),
        ("SELECT $1, $2::int8, upper($3)", (_TEXT, _INT8, _TEXT)),
        ("SELECT 1 FROM t WHERE coalesce($1, id) = $2 LIMIT $3", (_INT4, _INT4, _INT8)),
        ("INSERT INTO t VALUES ($1, $2, $3)", (_INT4, _TEXT, _NUMERIC)),
        ("INSERT INTO t (ok, id) VALUES ($1, $2), ($3, $4)", (_BOOL, _INT4, _BOOL, _INT4)),
        ("INSERT INTO t (added) SELECT $1", (_DATE,)),
        ("UPDATE t SET price = $1, ok = $2 WHERE name LIKE $3", (_NUMERIC, _BOOL, _TEXT)),
        ("DELETE FROM t WHERE NOT $1 OR added > $2", (_BOOL, _DATE)),
        ("SELECT count(*) FROM t GROUP BY ok HAVING count(*) > $1 AND sum(id) > $2", (_INT8,) * 2),
    ],
)
def test_types(text: str, expected: tuple[int, ...]) -> None:
    count = last_parameter(parse_query(text))
    assert count == len(expected)
    assert parameter_types(parse_query(text), count, (), lambda schema, table: _COLUMNS) == expected


def test_what_the_client_says_counts() -> None:
    columns = {"id": _INT4}
    text = "SELECT 1 FROM t WHERE id = $1 AND id = $2"
    assert parameter_types(parse_query(text), 2, (21, 0), lambda schema, table: columns) == (
        21,
        _INT4,
    )


def test_values_take_the_place_of_parameters() -> None:
    query = parse_select("SELECT $1 FROM t WHERE a = $3 AND b = ANY($2) LIMIT $1")
    found = with_values(query, (b"-7", b"{1,NULL}", None), (_INT8, 1007, _TEXT))
    number, array = ParamValue(_INT8, "-7"), ParamValue(1007, "{1,NULL}")
    assert found.targets == (ResTarget(number),) and found.limit == number
    assert {node for node in nodes_of(found.where) if isinstance(node, ParamValue)} == {
        array,
        ParamValue(_TEXT, None),
    }


@pytest.mark.parametrize(
    ("value", "type_oid", "constant"),
    [
        ("-7", _INT4, Const(_INT4, "-7")),
        (None, _INT4, Const(_INT4, None)),
        ("yes", _BOOL, Const(_BOOL, "t")),
        ("{1,NULL}", 1007, Const(1007, "{1,NULL}")),
        ("it's", _TEXT, BoundValue(_TEXT, "it's")),
        (None, _TEXT, BoundValue(_TEXT, None)),
        ("it's", 705, Const(705, "it's")),
        ("<a/>", 142, Const(705, "<a/>")),
    ],
    ids=str,
)
def test_a_value_is_a_constant_of_its_type(
    value: str | None, type_oid: int, constant: Const
) -> None:
    assert parameter_constant(ParamValue(type_oid, value)) == constant


def test_there_is_no_parameter_0() -> None:
    with pytest.raises(PenstockError, match=r"there is no parameter \$0"):
        last_parameter(parse_query("SELECT $0"))
