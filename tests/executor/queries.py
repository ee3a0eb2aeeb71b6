"""Random SELECTs, UPDATEs and DELETEs over small tables with NULLs.

In: a random source. Out: texts. A SELECT orders its rows by all of its columns, so that two engines
must give the same rows in the same order.
"""

from __future__ import annotations

from random import Random
from typing import Final

TABLES: Final = {
    "t": {
        "id": "integer", "i": "integer", "b": "bigint", "s": "text", "p": "numeric(8,2)",
        "f": "double precision", "d": "date", "ok": "boolean", "v": "varchar(50)", "c": "char(3)",
        "n": "smallint", "ts": "timestamp(3)",
    },
    "u": {"id": "integer", "i": "integer", "s": "text", "q": "numeric(6,3)", "d": "date"},
}  # fmt: skip
_EDGES: Final = {
    "integer": ["0", "1", "2", "3", "-1", "7"],
    "bigint": ["0", "1", "-2", "5000000000"],
    "smallint": ["0", "1", "-1", "30000"],
    "text": ["", "a", "b", "ab", "B", "é", "a b", "a ", "x" * 40, "x" * 32 + "y", "x" * 32],
    "varchar(50)": ["", "a", "a ", "B", "x" * 40, "x" * 33],
    "char(3)": ["", "a", "ab", "é", "xyz"],
    "numeric(8,2)": ["0.00", "1.50", "-1.50", "10.00", "2.25"],
    "numeric(6,3)": ["0.000", "1.500", "-2.125", "10.000"],
    "double precision": ["0", "-0", "1.5", "NaN", "Infinity", "2"],
    "date": ["2024-02-29", "1999-12-31", "2024-03-01"],
    "timestamp(3)": ["2024-02-29 00:00:00", "2024-02-29 00:00:00.001", "1969-12-31 23:59:59.999"],
    "boolean": ["t", "f"],
}
STRINGS: Final = ("text", "varchar(50)", "char(3)")
_NUMBERS: Final = ("integer", "bigint", "numeric(8,2)", "numeric(6,3)")


def rows(random: Random, table: str, count: int) -> list[list[str | None]]:
    """``id`` is a number of its own."""
    found = []
    for number in range(count):
        row: list[str | None] = [str(number)]
        for type_ in list(TABLES[table].values())[1:]:
            # -0 equals 0: rows that have them in no order that is told
            edges = [edge for edge in _EDGES[type_] if edge != "-0"]
            row.append(None if random.random() < 0.2 else random.choice(edges))
        found.append(row)
    return found


class Queries:
    """Draws queries."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self) -> str:
        """Any query."""
        kind = self._random.random()
        if kind < 0.1:
            return self._set_operation()
        if kind < 0.2:
            return self._with()
        if kind < 0.3:
            return self._windows()
        return self._select()

    def draw_change(self) -> str:
        """An UPDATE or a DELETE of ``t`` that leaves ``id`` as it is."""
        columns = list(TABLES["t"].items())
        where = f" WHERE {self._condition(columns)}" if self._random.random() < 0.95 else ""
        if self._random.random() < 0.3:
            return f"DELETE FROM t{where}"
        name = self._one(*(name for name, type_ in columns[1:] if type_ in ("integer", "text")))
        own = [(n, t) for n, t in columns if t == TABLES["t"][name]]
        return f"UPDATE t SET {name} = {self._one(*(n for n, _ in own), 'NULL')}{where}"

    # Parts

    def _one(self, *items: str) -> str:
        return self._random.choice(items)

    def _from(self) -> tuple[str, list[tuple[str, str]]]:
        """FROM, and its columns with their types."""
        t = [(f"t.{name}", type_) for name, type_ in TABLES["t"].items()]
        u = [(f"u.{name}", type_) for name, type_ in TABLES["u"].items()]
        join = self._one("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        condition = self._one("t.i = u.i", "t.id = u.id", "t.s = u.s", "t.d = u.d")
        sub = "(SELECT id, i, s, q, d FROM u WHERE q > 0) AS u"
        choices = [
            ("t", t),
            ("u", u),
            ("t, u", t + u),
            (f"t {join} u ON {condition}", t + u),
            (f"t {join} u USING (i)", [("i", "integer"), ("t.s", "text"), ("u.q", "numeric(6,3)")]),
            ("t NATURAL JOIN u", [("id", "integer"), ("s", "text"), ("p", "numeric(8,2)")]),
            (f"t {join} {sub} ON {condition}", t + u),
            ("t CROSS JOIN LATERAL (SELECT max(u.q) AS m FROM u WHERE u.i = t.i) AS l",
             [*t, ("l.m", "numeric(6,3)")]),
            ("t JOIN generate_series(0, 3) AS g(n) ON t.i = g.n", [*t, ("g.n", "integer")]),
        ]  # fmt: skip
        return self._random.choice(choices)

    def _of(self, columns: list[tuple[str, str]], *types: str) -> str | None:
        fitting = [name for name, type_ in columns if type_ in types]
        return self._random.choice(fitting) if fitting else None

    def _value(self, columns: list[tuple[str, str]], depth: int = 2) -> str:
        number = self._of(columns, *_NUMBERS) or "1"
        whole = self._of(columns, "integer") or "2"
        text = self._of(columns, "text") or "'x'"
        name = self._random.choice(columns)[0]
        deeper = self._value(columns, depth - 1) if depth else name
        return self._one(
            name,
            name,
            f"{whole} + 1",
            f"{number} * 2",
            f"{number} - {number}",
            f"{number} / 7.00",
            f"round({number} / -0.30, 3)",
            f"-{whole}",
            f"{whole} % 3",
            f"abs({number})",
            f"upper({text})",
            f"{text} || 'z'",
            f"length({text})",
            f"left({text}, 1)",
            f"{whole}::text",
            f"coalesce({text}, 'none')",
            f"nullif({whole}, 1)",
            f"greatest({whole}, 2)",
            f"CASE WHEN {self._condition(columns, 0)} THEN {whole} ELSE 0 END",
            f"CASE {whole} WHEN 1 THEN 'one' WHEN 2 THEN 'two' END",
            f"({deeper}) IS NULL",
            f"length(repeat({text}, {self._one('3', '20000', whole)}))",
            f"substr({text}, {whole})",
            f"substring({text} FROM {whole} FOR abs({whole}))",
            f"rpad({text}, {self._one('5', whole)}, 'xy')",
            f"({text})::bytea",
            f"split_part({text}, ' ', 1)",
            f"translate({text}, 'ab', 'x')",
            f"coalesce({number}, 2.0625)",
            f"greatest({number}, 1.0625)",
            f"sqrt(abs({number})::numeric)",
            f"({number})::text::numeric + 0.50",
            f"({whole})::float8 ^ 2",
            f"to_hex({whole})",
            f"array_to_string(ARRAY[{whole}, 1], ',')",
            f"concat({text}, {number}, {whole})",
            f"{whole} * interval '1 day 02:00'",
            "interval '1 mon' + interval '3 days'",
            "'[1,5]'::int4range",
            f"({text}) LIKE ('%' || {text})",
            *self._of_times(columns),
        )

    def _of_times(self, columns: list[tuple[str, str]]) -> list[str]:
        """Values of dates and timestamps, which not every FROM has."""
        day, moment = self._of(columns, "date"), self._of(columns, "timestamp(3)")
        found = []
        if day is not None:
            found += [
                f"extract(epoch FROM {day})",
                f"{day}::timestamptz",
                f"{day} - interval '1 h'",
            ]
        if moment is not None:
            found += [
                f"extract(second FROM {moment})",
                f"date_trunc('decade', {moment})",
                f"{moment} > timestamptz '2000-01-01'",
                f"{moment} - timestamp '2000-01-01 10:00'",
                f"age({moment}, timestamp '1999-05-05')",
                f"{moment}::text",
                f"{moment}::time",
            ]
        return found

    def _condition(self, columns: list[tuple[str, str]], depth: int = 2) -> str:
        number = self._of(columns, *_NUMBERS) or "1"
        whole = self._of(columns, "integer") or "2"
        text = self._of(columns, "text") or "'x'"
        simple = self._one(
            f"{number} > 1",
            f"{whole} IN (1, 2, NULL)",
            f"{text} LIKE 'a%'",
            f"{number} BETWEEN 0 AND 5",
            f"{text} IS NOT NULL",
            f"{whole} IS DISTINCT FROM 1",
            f"{whole} = ANY (ARRAY[1, 7])",
            f"{number} <> {whole}",
            f"{whole} IN (SELECT u2.i FROM u u2)",
            f"{whole} NOT IN (SELECT u2.i FROM u u2 WHERE u2.i IS NOT NULL)",
            f"EXISTS (SELECT FROM u u2 WHERE u2.i = {whole})",
            f"NOT EXISTS (SELECT 1 FROM t t2 WHERE t2.s = {text} AND t2.i > 1)",
            f"{number} > (SELECT avg(u2.q) FROM u u2)",
            f"{number} >= ALL (SELECT u2.i FROM u u2 WHERE u2.i < 3)",
            f"{whole} = (SELECT max(u2.i) FROM u u2 WHERE u2.s = {text})",
        )
        if self._random.random() < 0.4:
            simple = self._comparison(columns)
        if not depth or self._random.random() < 0.5:
            return simple
        other = self._condition(columns, depth - 1)
        return self._one(f"{simple} AND {other}", f"({simple} OR {other})", f"NOT ({simple})")

    def _comparison(self, columns: list[tuple[str, str]]) -> str:
        """A column with a constant: equality, and all that looks like it."""
        name, type_ = self._random.choice(columns)
        other, other_type = self._random.choice(columns)
        value = f"{self._literal(type_)}::{type_}"
        if self._random.random() < 0.5:
            value = self._literal(type_)
        elif type_ in STRINGS:
            value = f"{self._literal(type_)}::{self._one(*STRINGS)}"
        elif type_ in ("integer", "smallint"):
            value = self._one(
                "1", "0", "100000", "5000000000", "1::bigint", "(-1)::smallint", "1.0"
            )
        one, two = (name, value) if self._random.random() < 0.7 else (value, name)
        another = f"{other} = {self._literal(other_type)}"
        return self._one(
            f"{one} = {two}",
            f"{one} = {two}",
            f"{one} <> {two}",
            f"{one} IS DISTINCT FROM {two}",
            f"{one} IS NOT DISTINCT FROM {two}",
            f"{one} = {two} AND {another}",
            f"{one} IS DISTINCT FROM {two} AND {another}",
            f"({one} = {two} OR {another})",
            f"NOT {one} = {two}",
            f"({one} = {two}) IS NOT TRUE",
            f"({one} = {two}) IS UNKNOWN",
            f"({one} = {two}) = ({another})",
            f"coalesce({one} = {two}, true)",
            f"nullif({name}, {self._literal(type_)}) IS NULL",
            f"nullif({one} = {two}, {another})",
            f"{name} IN ({value}, NULL)",
            f"{name} NOT IN ({value}, {self._literal(type_)})",
            f"CASE WHEN {one} = {two} THEN {another} ELSE true END",
            f"{one} <= {two} AND {one} >= {two}",
            f"{name} = NULL",
            f"{name} = {self._one(*(each for each, of in columns if of == type_))}",
        )

    def _literal(self, type_: str) -> str:
        return f"'{self._one(*_EDGES[type_])}'"

    def _aggregate(self, columns: list[tuple[str, str]]) -> str:
        number = self._of(columns, *_NUMBERS) or "1"
        text = self._of(columns, "text") or "'x'"
        name = self._random.choice(columns)[0]
        call = self._one(
            "count(*)",
            f"count({name})",
            f"count(DISTINCT {number})",
            f"sum({number})",
            f"avg({number})",
            f"min({name})" if name.rpartition(".")[2] != "ok" else f"bool_or({name})",
            f"max({text})",
            f"sum(DISTINCT {number})",
            f"string_agg({text}, ',' ORDER BY {text}, {number})",
        )
        if self._random.random() < 0.2:
            call += f" FILTER (WHERE {self._condition(columns, 0)})"
        return call

    # Whole queries

    def _select(self) -> str:
        from_, columns = self._from()
        where = f" WHERE {self._condition(columns)}" if self._random.random() < 0.6 else ""
        if self._random.random() < 0.4:
            return self._grouped(from_, columns, where)
        targets = [self._value(columns) for _ in range(self._random.randint(1, 3))]
        distinct = self._one("", "", "DISTINCT ")
        if self._random.random() < 0.1:
            return self._distinct_on(from_, columns, where, targets)
        return (
            f"SELECT {distinct}{', '.join(targets)} FROM {from_}{where}"
            f" ORDER BY {self._order(len(targets))}{self._limit()}"
        )

    def _distinct_on(
        self, from_: str, columns: list[tuple[str, str]], where: str, targets: list[str]
    ) -> str:
        """Rows that are alike in all that they are ordered by may differ in nothing."""
        key = self._value(columns, 0)
        on = self._one("1", key, f"{key}, 1")
        order = {"1": "1 DESC", key: key}.get(on, f"1 NULLS FIRST, {key}")
        rest = ", ".join(name for name, _ in columns)
        return (
            f"SELECT DISTINCT ON ({on}) {', '.join(targets)} FROM {from_}{where}"
            f" ORDER BY {order}, {rest}{self._limit()}"
        )

    def _grouped(self, from_: str, columns: list[tuple[str, str]], where: str) -> str:
        keys = [self._value(columns, 0) for _ in range(self._random.randint(0, 2))]
        keys = list(dict.fromkeys(keys))
        targets = [*keys, *(self._aggregate(columns) for _ in range(self._random.randint(1, 3)))]
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = (
            f" HAVING {self._aggregate(columns)} IS NOT NULL" if self._random.random() < 0.3 else ""
        )
        return (
            f"SELECT {', '.join(targets)} FROM {from_}{where}{group}{having}"
            f" ORDER BY {self._order(len(targets))}{self._limit()}"
        )

    def _set_operation(self) -> str:
        column = self._one("i", "s", "d", "id")
        word = self._one("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
        where = self._condition([(n, t) for n, t in TABLES["t"].items()], 0)
        return (
            f"SELECT {column} FROM t WHERE {where} {word} SELECT {column} FROM u"
            f" ORDER BY {self._order(1)}{self._limit()}"
        )

    def _with(self) -> str:
        columns = [(n, t) for n, t in TABLES["t"].items()]
        where = self._condition(columns, 1)
        return (
            f"WITH q AS (SELECT id, i, s, p FROM t WHERE {where}), r(a, n) AS"
            " (SELECT i, count(*) FROM q GROUP BY i)"
            f" SELECT q.id, r.n, r.a FROM q JOIN r ON q.i = r.a {self._one('', 'WHERE r.n > 1')}"
            f" ORDER BY {self._order(3)}{self._limit()}"
        )

    def _windows(self) -> str:
        partition = self._one("", "PARTITION BY i ", "PARTITION BY ok ")
        order = self._one(
            "ORDER BY id", "ORDER BY id DESC", "ORDER BY s, id", "ORDER BY p DESC, id"
        )
        frame = self._one("", " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                          " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                          " ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW",
                          " GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES",
                          " RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING")  # fmt: skip
        if "RANGE" in frame:
            order = self._one("ORDER BY i", "ORDER BY id DESC", "ORDER BY n")
        calls = ["sum(i)", "count(*)", "row_number()", "rank()", "lag(s)", "lead(i, 2)",
                 "first_value(s)", "last_value(p)", "ntile(3)", "avg(p)", "max(d)",
                 "dense_rank()", "percent_rank()", "nth_value(i, 2)"]  # fmt: skip
        if "RANGE" in frame:  # with peers, whose order nothing tells
            calls = ["sum(i)", "count(*)", "avg(p)", "max(d)"]
        call = self._one(*calls)
        return (
            f"SELECT id, {call} OVER ({partition}{order}{frame}) FROM t ORDER BY {self._order(2)}"
        )

    def _order(self, count: int) -> str:
        return ", ".join(
            f"{number}{self._one('', ' DESC', ' NULLS FIRST', ' DESC NULLS LAST')}"
            for number in range(1, count + 1)
        )

    def _limit(self) -> str:
        return self._one("", "", " LIMIT 5", " LIMIT 3 OFFSET 2", " OFFSET 4")
