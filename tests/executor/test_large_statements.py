"""Statements of thousands of operands, branches, items and rows: as on a server.

The ratios of both times are printed (``-s``), and judged by nobody: machines differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from executor.lake_oracle import LakeOracle, Rows
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.publication.row_filter import compile_row_filter
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import InsertStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.to_duckdb.duckdb_change import compile_insert
from penstock.sql.typed.change_analysis import analyze_insert

pytestmark = pytest.mark.postgres

_T = TypeVar("_T")
_ROWS: list[list[str | None]] = [
    ["1", "0", "a", "t"],
    ["2", "7", "b'c", "f"],
    ["3", None, None, None],
    ["4", "-5", "\x01\x02", "t"],
    ["5", "49999", "", None],
]
_COLUMNS = {"id": "int", "a": "int", "v": "text", "ok": "boolean"}
_NEW = {"id": "int", "b": "bigint", "n": "numeric(10,2)", "m": "numeric", "v": "varchar(30)"}


@pytest.fixture
def tables(database: Database) -> LakeOracle:
    made = LakeOracle(database.connect())
    made.create("t", _COLUMNS, _ROWS)
    made.create(
        "n", {**_NEW, "d": "date", "f": "float8", "s": "timestamptz", "x": "bytea", "o": "bool"}, []
    )
    return made


def _joined(word: str, operand: str, count: int) -> str:
    return f" {word} ".join(operand.format(n) for n in range(count))


def _right_deep(operand: str, count: int) -> str:
    """AND and OR in turn, each in parentheses of its own."""
    text = operand.format(count)
    for number in range(count - 1, -1, -1):
        text = f"{operand.format(number)} {('AND', 'OR')[number % 2]} ({text})"
    return text


_CONDITIONS = {
    "AND": _joined("AND", "a > -10 - {}", 520),
    "OR": _joined("OR", "a = 8 + {}", 520),
    "AND, may fail": _joined("AND", "a + 1 > -10 - {}", 700),
    "OR, may fail": _joined("OR", "a - 1 = 48000 + {}", 2000),
    "5,000 AND": _joined("AND", "a > -10 - {}", 5000),
    "5,000 OR": _joined("OR", "a = 45000 + {}", 5000),
    "20,000 AND": _joined("AND", "a <> 8 + {}", 20_000),
    "OR of ANDs": _joined("OR", "(a > {0} AND v <> 'b{0}' AND ok)", 1000),
    "AND of ORs": _joined("AND", "(a < {0} OR NOT ok OR v IS NULL)", 1000),
    "left parentheses": "(" * 300 + "a > 0" + " AND a < 100000)" * 300,
    "right parentheses": "a > 0 AND (" * 300 + "a < 50" + ")" * 300,
    "in turn": _right_deep("a > {}", 150),
    "IN": f"a IN ({', '.join(map(str, range(7, 50_007)))})",
    "NOT IN": f"a NOT IN ({', '.join(map(str, range(-3, 50_000)))})",
    "IN with NULL": f"a NOT IN ({', '.join(map(str, range(500)))}, NULL)",
    "IN of texts": "v IN (" + ", ".join(f"'b''c{n}'" for n in range(9999)) + ", 'a', '')",
    "ANY": f"a = ANY ('{{{','.join(map(str, range(7, 50_007)))}}}')",
    "OR <": _joined("OR", "a < {} - 300", 300),
    "AND >=": _joined("AND", "a >= {} - 6", 300) + " OR " + _joined("OR", "a > {}", 300),
    "AND <> texts": _joined("AND", "v <> 'b{}'", 150) + " AND id > 1 AND " + "ok AND " * 99 + "ok",
    "OR of sums": _joined("OR", "a + 1 = {}", 150) + " OR " + _joined("OR", "v = 'x{}'", 150),
    "OR, decided early": "a = 0 OR " + _joined("OR", "7 / a = {}", 150),
    "AND, decided early": "a <> 0 AND " + _joined("AND", "7 / a <> {}", 150),
    "ALL": f"a > ALL (ARRAY[{', '.join(map(str, range(-3, 200)))}])",
    "ANY with NULL": f"(a < ANY ('{{1,-3,NULL{',4' * 99}}}')) IS NULL",
    "1,000 ||": "v || " + _joined("||", "'{}'", 999) + " <> 'x'",
    "1,000 || NULL": "(v || " + _joined("||", "'{}'", 500) + " || NULL || a::text) IS NULL",
    "300 ||": "v || " + _joined("||", "'{}'", 300) + " <> 'x'",
    "CASE": f"CASE {' '.join(f'WHEN a = {n} THEN {n} > 3' for n in range(5000))} END",
    "CASE of a": f"CASE a {' '.join(f'WHEN {n} THEN {n % 2} = 1' for n in range(5000))} END",
    "CASE of texts": "CASE v WHEN 'a' THEN NULL "
    + "".join(f"WHEN 'b''{n}' THEN {n} " for n in range(300))
    + "WHEN '' THEN 1 WHEN 'a' THEN 2 ELSE a END IS NULL",
    "CASE of sums": f"CASE a + 1 {' '.join(f'WHEN {n % 99} THEN {n}.5' for n in range(300))}"
    " ELSE 7 / a END > 0",
    "a literal": f"v || '{'x' * 1_100_000}' <> v",
}


_LONGEST = ("20,000 AND", "5,000 OR", "CASE", "AND of ORs", "NOT IN")


@pytest.mark.parametrize(
    "name", [in_make_faults(name) if name in _LONGEST else name for name in _CONDITIONS]
)
def test_conditions(tables: LakeOracle, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    condition = _CONDITIONS[name]
    query = f"SELECT id FROM t WHERE {condition} ORDER BY id"
    theirs, took_theirs = _timed(lambda: tables.theirs(query))
    ours, took_ours = _timed(lambda: tables.ours(query))
    with capsys.disabled():
        print(f"{name}: {took_ours:.2f} s, {took_ours / took_theirs:.1f} times a server's")
    assert ours.sqlstate == theirs.sqlstate == "", ours.message
    assert ours.rows == theirs.rows


@pytest.mark.parametrize(
    "name", ["AND, may fail", in_make_faults("5,000 OR"), "IN", "300 ||", in_make_faults("CASE")]
)
def test_changes(tables: LakeOracle, name: str) -> None:
    for change in ("UPDATE t SET a = 1, v = 'new'", "DELETE FROM t"):
        assert tables.compare_change(f"{change} WHERE {_CONDITIONS[name]}") == "equal"
    assert not tables.tally.differences


def test_a_long_literal_is_set(tables: LakeOracle) -> None:
    assert tables.compare_change(f"UPDATE t SET v = '{'x' * 1_100_000}' WHERE id = 2") == "equal"


@pytest.mark.parametrize(
    "name",
    [
        *("AND", "OR, may fail", "OR of ANDs", "right parentheses", "IN"),
        *map(in_make_faults, ("20,000 AND", "CASE")),
    ],
)
def test_row_filters(tables: LakeOracle, name: str) -> None:
    """The predicate of a filter, beside a server's WHERE."""
    condition = _CONDITIONS[name]
    columns = tables.find(RangeVar("t"))
    compiled = compile_row_filter(condition, columns, table="t")
    theirs = tables.theirs(f"SELECT id FROM t WHERE {condition} ORDER BY id").rows
    assert tables.filtered("t", compiled.predicate) == [(row[0] or b"").decode() for row in theirs]


def _truths() -> Iterator[list[str | None]]:
    values = ("t", "f", None)
    divisors = ("1", "0", None)
    number = 0
    for p in values:
        for q in values:
            for x in divisors:
                number += 1
                yield [str(number), p, q, x]


@part_of_make_faults
def test_truth_and_errors_of_many_operands(tables: LakeOracle) -> None:
    """Row by row: NULL is neither true nor false, and what decides comes before what fails."""
    rows = list(_truths())
    tables.create("b", {"id": "int", "p": "bool", "q": "bool", "x": "int"}, rows)
    for word in ("AND", "OR"):
        other = "OR" if word == "AND" else "AND"
        many = [f"(q {other} id <> {n + 100})" for n in range(120)]
        for operands in (
            [*many, "p"],
            ["p", *many],
            ["p", *many, "1 / x = 1"],
            ["1 / x = 1", *many, "p"],
            [*many[:60], "1 / x = 1", *many[60:], "p"],
            [*many, "q", "1 / x = 1", "p"],
        ):
            condition = f" {word} ".join(operands)
            for row in rows:
                # Not in WHERE, whose operands a server sorts by their costs.
                query = f"SELECT id, ({condition}) AS c FROM b WHERE id = {row[0]}"
                assert tables.compare(query) in ("equal", "both failed"), query[-80:]
    assert not tables.tally.differences


def _values(count: int) -> str:
    """Rows of constants, of several forms in each column."""
    return ", ".join(
        f"({n}, {n * 3 if n % 2 else n << 33}, {('1.5', '2', '-0.125', 'NULL')[n % 4]}, "
        f"{('1', '2.50', 'NULL', '1e3')[n % 4]}, 'text {n}''', '2024-02-{n % 28 + 1:02}', "
        f"{n}.25, '2024-01-01 00:00:00+0{n % 9}', '\\x{n % 256:02x}', {('true', 'false')[n % 2]})"
        for n in range(count)
    )


@pytest.mark.parametrize("count", [99, 100, 10_000, in_make_faults(50_000)])
def test_rows_of_values(tables: LakeOracle, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    statement = f"INSERT INTO n VALUES {_values(count)}"
    theirs, took_theirs = _timed(lambda: tables.inserted_by_server(statement, "n"))
    ours, took_ours = _timed(lambda: _inserted(tables, statement))
    with capsys.disabled():
        print(f"{count} rows: {took_ours:.2f} s, {took_ours / took_theirs:.1f} times a server's")
    assert ours == theirs


def test_queries_of_values(tables: LakeOracle) -> None:
    for query in (
        f"SELECT * FROM (VALUES {_values(300)}) AS v ORDER BY 1",
        f"SELECT * FROM (VALUES {', '.join(f'({n}.{n}, NULL)' for n in range(200))}) AS v (a, b)"
        " ORDER BY a, b",
        f"SELECT sum(a), min(b) FROM (VALUES {', '.join(f'({n}, {n}.5)' for n in range(200))})"
        " AS v (a, b)",
        f"SELECT * FROM (VALUES {', '.join(f'({n}, {n} + 1)' for n in range(200))}) AS v"
        " ORDER BY 1",
        "SELECT * FROM (VALUES " + ", ".join(f"('\x01{n}')" for n in range(200)) + ", (NULL)) AS v"
        " ORDER BY 1",
        f"SELECT * FROM (VALUES {'(NULL), ' * 200}(NULL)) AS v",
    ):
        assert tables.compare(query) == "equal", tables.tally


_N = ", ".join(map(str, range(-3, 300)))
_D = ", ".join(f"{n}.5" for n in range(200))
_S = ", ".join(f"'b''{n}'" for n in range(150))
_ROWS_OF = ", ".join(f"({n}, 'x''{n}')" for n in range(150))
_LISTS = [
    f"SELECT id FROM t WHERE a IN ({_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE a + 1 IN ({_N}) OR v IN ({_S}, 'a') ORDER BY 1",
    f"SELECT id FROM t WHERE a IN ({_N}, {1 << 40}) OR a NOT IN ({_D}) ORDER BY 1",
    f"SELECT id, a IN ({_N}, NULL), a NOT IN ({_N}, NULL) FROM t ORDER BY 1",
    f"SELECT id, a + 1 IN ({_N}, NULL), a + 1 NOT IN ({_N}, NULL), a * 1 NOT IN ({_N}) FROM t"
    " ORDER BY 1",
    f"SELECT id, CASE WHEN a <> 0 THEN 7 / a IN ({_N}) END FROM t ORDER BY 1",
    f"SELECT id FROM t WHERE 7 / a IN ({_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE id IN ({_N}) AND a = ANY (ARRAY[{_N}]) ORDER BY 1",
    f"SELECT id FROM t WHERE a::numeric IN ({_D}) OR a::numeric(9, 1) IN ({_D}, 7.0) ORDER BY 1",
    f"SELECT id FROM t WHERE a::float8 IN ({_N}) OR a::bigint IN ({_D}) ORDER BY 1",
    f"SELECT id FROM t WHERE v IN ({_N})",
    f"SELECT id FROM t WHERE a IN ({_S})",
    f"SELECT id FROM t WHERE ok IN ({_N})",
    f"SELECT id FROM t WHERE v::char(5) IN ({_S}, 'a  ') ORDER BY 1",
    "SELECT id FROM t WHERE DATE '2024-01-01' + a IN ("
    + ", ".join(f"'2024-1-{n % 31 + 1}'" for n in range(200))
    + ") ORDER BY 1",
    f"SELECT t.id, u.id FROM t LEFT JOIN t AS u ON t.id = u.id AND u.a IN ({_N}) ORDER BY 1",
    f"SELECT t.id, u.id FROM t JOIN t AS u ON t.id = u.id AND u.a NOT IN ({_N}) ORDER BY 1",
    f"SELECT a IN ({_N}), count(*) FILTER (WHERE id IN ({_N})) FROM t GROUP BY 1"
    f" HAVING count(*) IN ({_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE a IN (VALUES {', '.join(f'({n})' for n in range(150))}) ORDER BY 1",
    f"SELECT id, '{_N} IN ({_N})' FROM t WHERE v <> 'in (' ORDER BY 1",
    f"SELECT id AS \"in ({_N[:40]})\", 'VALUES {_N}' FROM t WHERE a IN ({_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE v = E'b\\'c' AND 1 IN ({_N}) AND a IN ({_N})",
    f"SELECT id FROM t WHERE v = $$ IN ('$$ OR a IN ({_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE a IN ({_N}) -- IN (",
    f"SELECT id FROM t WHERE a IN ({_N}) /* IN ( */ ORDER BY 1",
    f"SELECT id FROM t WHERE a IN ({_N}, 1 + 1) OR a IN ({_N}, 007, 1_0, 0x1F) ORDER BY 1",
    f"SELECT id FROM t WHERE a IN ({_N}, 1e3, 5.) OR a IN (- 5, {_N}) ORDER BY 1",
    f"SELECT id FROM t WHERE v IN ('b'\n'''c', {_S}) ORDER BY 1",
    f"SELECT id FROM t WHERE a IN ({_N},) ORDER BY 1",
    f"SELECT id FROM t WHERE IN ({_N}) ORDER BY 1",
    f"SELECT position(v IN ({_N})) FROM t",
    f"SELECT * FROM (VALUES {_ROWS_OF}) AS v ORDER BY 1",
    f"VALUES {_ROWS_OF} ORDER BY 1 LIMIT 5",
    f"VALUES {_ROWS_OF}, (1 + 1, NULL) ORDER BY 1, 2 LIMIT 5",
    f"VALUES {_ROWS_OF}, (1, NULL), (NULL, 'b') ORDER BY 1, 2 LIMIT 5",
    f"VALUES {_ROWS_OF}, (1.5, NULL), ({1 << 50}, '') ORDER BY 1, 2",
    f"VALUES {_ROWS_OF}, (1, 2)",
    f"VALUES {_ROWS_OF}, (1, 2, 3)",
    f"VALUES {_ROWS_OF},",
    f"SELECT v.a + 1, v.b || 'y' FROM (VALUES {_ROWS_OF}) AS v (a, b) WHERE v.a IN ({_N})"
    " ORDER BY 1",
    f"SELECT * FROM (VALUES {', '.join(f'({n % 2 == 0}, NULL, -{n}.50)' for n in range(150))}) v"
    " ORDER BY 3",
    f"SELECT sum(x) FROM (VALUES {', '.join(f'({n})' for n in range(150))}) AS v (x)"
    f" WHERE EXISTS (SELECT 1 FROM t WHERE a = x AND a IN ({_N}))",
]


@pytest.mark.parametrize("number", range(len(_LISTS)))
def test_lists_are_what_the_parser_reads(tables: LakeOracle, number: int) -> None:
    query = _LISTS[number]
    assert tables.compare(query) in ("equal", "both failed", "refused"), tables.tally
    ours, parsed = tables.ours(query), tables.ours(f"{query} /* so the parser reads it */")
    assert (ours.rows, ours.sqlstate) == (parsed.rows, parsed.sqlstate)
    if "position" not in query:
        assert ours.message == parsed.message


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (f"{_ROWS_OF}, ('7', 'b')", "equal"),
        (f"{_ROWS_OF}, ('x', 'b')", "22P02"),
        (f"{_ROWS_OF}, ({1 << 40}, 'b')", "22003"),
        (f"{_ROWS_OF}, (true, 'b')", "42804"),
        (f"{_ROWS_OF}, (DEFAULT, 'b')", "equal"),
    ],
)
def test_inserted_lists(tables: LakeOracle, rows: str, says: str) -> None:
    tables.create("i", {"a": "int", "b": "varchar(9)"}, [])
    statement = f"INSERT INTO i VALUES {rows}"
    if says == "equal":
        ours = _inserted(tables, statement)
        assert sorted(ours, key=repr) == sorted(tables.inserted_by_server(statement, "i"), key=repr)
        return
    with pytest.raises(PenstockError) as error:
        _inserted(tables, statement)
    assert error.value.sqlstate == says


def _inserted(tables: LakeOracle, statement: str) -> Rows:
    raw = parse_query(statement)
    assert isinstance(raw, InsertStmt)
    plan = analyze_insert(raw, tables.find(raw.relation), tables.find)
    return tables.run(compile_insert(plan))


def _timed(call: Callable[[], _T]) -> tuple[_T, float]:
    began = time.perf_counter()
    return call(), time.perf_counter() - began
