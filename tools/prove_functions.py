"""Prove each row of functions.tsv beside PostgreSQL 18: on random and edge values of its types.

For every function, operator and cast with a row, a table of values of its arguments is made on a
server. The results and SQLSTATEs of the server and of DuckDB must be equal for every value: in
queries of the lake and in row filters, with columns, constants and other calls as arguments, and
without the arguments that have defaults. A call may also be refused, but only when it is compiled.
Prints what is proved with the number of values, what differs, what is always refused, and the
immutable functions over the lake's types that are left out. Ends with 1 if something differs, or is
always refused and not in ``REFUSED``.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from executor.lake_oracle import LakeOracle, Result
from penstock.embedded import EmbeddedPostgres
from penstock.sql.builtin import casts, functions, operators, types
from penstock.sql.to_duckdb import pg_proc
from publication.filters import ONLY_CONSTANTS, VALUES

TYPES: Final = {
    21: "smallint", 23: "integer", 20: "bigint", 700: "real", 701: "double precision",
    1700: "numeric", 16: "boolean", 25: "text", 1043: "varchar", 1042: "char(5)", 19: "name",
    17: "bytea", 1082: "date", 1114: "timestamp", 1184: "timestamptz", 2950: "uuid",
    1083: "time", 1186: "interval", 3802: "jsonb", 114: "json",
    1007: "integer[]", 1016: "bigint[]", 1009: "text[]", 1231: "numeric[]", 1022: "float8[]",
    1000: "boolean[]", 1182: "date[]", 1005: "smallint[]", 1021: "real[]", 1014: "char(5)[]",
    1115: "timestamp[]", 2951: "uuid[]", 1001: "bytea[]", 1183: "time[]", 1187: "interval[]",
    3807: "jsonb[]", 3904: "int4range", 3905: "int4range[]",
}  # fmt: skip
"""The types of docs/types.md, by oid."""
_ARRAYS: Final = (
    1007, 1009, 1022, 1231, 1005, 1021, 1014, 1182, 1115, 2951, 1001, 1000, 1183, 1187, 3807, 3905
)  # fmt: skip
_ELEMENTS: Final = tuple(types()[oid].element for oid in _ARRAYS)
_POLYMORPHIC: Final = {
    2277: _ARRAYS, 5078: _ARRAYS, 2283: _ELEMENTS, 5077: _ELEMENTS, 2776: _ELEMENTS
}  # fmt: skip
"""anyarray and the like: they stand for the first of these types, then for the second ..."""
_NAMES: Final = ("X", "i", "Item", "each", "select", "y", "e0")
"""Names of columns: of parameters of lambdas, and such as need quotes."""
REFUSED: Final = re.compile(
    r".*\b(?:time|interval|int4range)\[\].*|(?:array|jsonb)_(?:eq|ne|lt|le|gt|ge)\(jsonb.*"
    r"|array(?:_remove|_replace|_positions?|contain\w+|overlap)\((?:char\(5\)|jsonb|numeric)\[.*"
    r"|(?:varchar|bpchar|numeric|timestamp|timestamptz)\(.*, integer(?:, boolean)?\)"
)
"""Calls that are always refused: arrays that are held as text, or whose elements are, and casts to
a length by the function's name."""
_WORDS: Final = {
    "extract": "year Month day hour second epoch microseconds milliseconds decade century "
    "millennium julian isoyear dow isodow doy week quarter minute yrs timezone_hour timezone bad",
    "encode": "hex base64 escape bad HEX",
    "like": "% a% _b %a%b a\\% \\\\ aB%",
    "reg": "^a b$ a|b [a-c]+ \\d+ a.b ^$ (ab)* ab?(bc)? a* (a)(b?) b+ a?b*c .*b \\m",
    "timezone": "UTC gmt Europe/Berlin bad",
}
_HINTS: Final = {
    "date_part": "extract", "date_trunc": "extract",
    "extract": "extract", "encode": "encode", "decode": "encode", "timezone": "timezone",
    "substring": "reg",
}  # fmt: skip
_MAKERS: Final = ("repeat", "lpad", "rpad", "bpchar")
"""Functions whose results are as long as a number says."""
_FAILING: Final = 12
"""Rows on which a server fails that are evaluated one by one."""
_SHOWN: Final = 4
"""Differences of a function that are printed."""
_CONSTANTS: Final = 7
"""Draws of constants for a function."""
_NESTED: Final = 4
"""Draws of calls as an argument of a function."""
_SKIPPED: Final = re.compile(
    r".*(?:out|send|recv|typmodin|hash|_extended|cmp|larger|smaller|accum|inc|dec|_subdiff|combine"
    r"|_transfn|_accum_inv|statefunc|_cmp_\w+)|hash\w+|in_range|float8_(?:regr|var|std|covar|corr"
    r"|avg)\w*|int\w*_(?:sum|avg)|\w*_sum|gi[ns]t?_\w+|int8inc_\w+"
)
"""Functions for indexes, aggregates, windows and the wire, which nobody calls."""


@dataclass(frozen=True)
class Subject:
    """A function, as it is called. ``text`` has a pair of braces for each argument."""

    oid: int
    text: str
    types: tuple[int, ...]


def subjects() -> Iterator[Subject]:
    """Yield every function, operator and cast that has a row."""
    known = pg_proc.rows()
    operator_of = {row.function: name for name, found in operators().items() for row in found}
    cast_of = {
        row.function: row
        for row in casts().values()
        if row.function
        and functions()[row.function].arguments[:1] == (row.source,)
        and functions()[row.function].result == row.target
    }
    for oid, function in functions().items():
        comparison = operator_of.get(oid) in pg_proc.COMPARISONS
        if oid not in known and not comparison:
            continue
        count = len(function.arguments)
        if oid in cast_of and count == 1:
            target = TYPES.get(cast_of[oid].target, types()[cast_of[oid].target].sql_name)
            text = f"({{}})::{target}"
        elif oid in operator_of:
            name = operator_of[oid]
            text = f"({{}} {name} {{}})" if count == 2 else f"({name} {{}})"
        elif function.name == "position":
            text = "position({1} IN {0})"
        elif function.name == "regexp_replace" and count == 4:
            text = "regexp_replace({}, {}, {}, 'g')"
        else:
            text = f'"{function.name}"({", ".join(["{}"] * count)})'
        yield from (Subject(oid, text, of) for of in _concrete(function.arguments))
        for given in range(max(count - function.defaults, 1), count):
            text = f'"{function.name}"({", ".join(["{}"] * given)})'
            yield from (Subject(oid, text, of) for of in _concrete(function.arguments[:given]))


def _concrete(arguments: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the argument types, with concrete types for polymorphic ones."""
    kinds = len(_ARRAYS) if set(arguments) & _POLYMORPHIC.keys() else 1
    for kind in range(kinds):
        of = tuple(_POLYMORPHIC[oid][kind] if oid in _POLYMORPHIC else oid for oid in arguments)
        if set(of) <= TYPES.keys():
            yield of


class Values:
    """Draws values as PostgreSQL's text."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self, oid: int, name: str) -> str:
        """Return a value of a type; an edge as often as any other. ``name``: the function's."""
        hint = _HINTS.get(name) or next((word for word in ("like", "reg") if word in name), None)
        if oid == 25 and hint is not None and self._random.random() < 0.5:
            return self._random.choice(_WORDS[hint].split())
        if oid == 23 and name in _MAKERS and self._random.random() < 0.98:
            return str(self._random.randint(-3, 60))
        edges = _EDGES.get(oid) or VALUES.get(TYPES[oid].replace("float8", "double precision"))
        if edges and self._random.random() < 0.5:
            return self._random.choice(edges)
        type_ = types()[oid]
        if type_.element:
            items = [self._item(type_.element) for _ in range(self._random.randint(0, 4))]
            return "{" + ",".join(items) + "}"
        return (
            _DRAWN[oid](self._random) if oid in _DRAWN else str(self._random.choice(edges or [""]))
        )

    def _item(self, oid: int) -> str:
        if self._random.random() < 0.2:
            return "NULL"
        if self._random.random() < 0.5 and oid in (23, 20):
            return str(self._random.randint(0, 3))
        text = self.draw(oid, "")
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _integer(bits: int) -> Callable[[Random], str]:
    def draw(random: Random) -> str:
        if random.random() < 0.4:
            return str(random.randint(-12, 40))
        size = random.randint(1, bits - 1)
        return str(random.randrange(-(1 << size), 1 << size))

    return draw


def _float(code: str, size: int) -> Callable[[Random], str]:
    def draw(random: Random) -> str:
        if random.random() < 0.5:
            return repr(round(random.uniform(-50, 50), random.randint(0, 3)))
        return repr(struct.unpack(code, random.randbytes(size))[0])

    return draw


def _numeric(random: Random) -> str:
    digits = str(random.randint(0, 10 ** random.choice([1, 3, 8, 25])))
    scale = random.choice([0, 0, 1, 2, 5, 20])
    text = digits.rjust(scale + 1, "0")
    whole, part = (text[: len(text) - scale], text[len(text) - scale :]) if scale else (text, "")
    return random.choice(["", "-"]) + whole + (f".{part}" if part else "")


def _text(random: Random) -> str:
    return "".join(random.choice("abAB cé_%-0 1'日") for _ in range(random.randint(0, 9)))


def _date(random: Random) -> str:
    return f"{random.randint(1, 9999):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _clock(random: Random) -> str:
    clock = f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"
    return clock + random.choice(["", "", f".{random.randint(1, 999999):06}", ".5"])


def _moment(random: Random) -> str:
    return f"{_date(random)} {_clock(random)}"


def _interval(random: Random) -> str:
    parts = [f"{random.randint(-40, 400)} {unit}" for unit in ("mons", "days", "hours")]
    end = random.choice(["", "2.5 secs"])
    return " ".join([*random.sample(parts, random.randint(1, 3)), end])


_DRAWN: Final[dict[int, Callable[[Random], str]]] = {
    21: _integer(16), 23: _integer(32), 20: _integer(64), 700: _float("f", 4), 701: _float("d", 8),
    1700: _numeric, 25: _text, 1043: _text, 1042: lambda r: _text(r)[:5], 19: _text,
    17: lambda r: "\\x" + r.randbytes(r.randint(0, 9)).hex(),
    1082: _date, 1114: _moment, 1184: lambda r: f"{_moment(r)}+00", 1083: _clock, 1186: _interval,
    16: lambda r: r.choice("tf"),
    2950: lambda r: f"{r.getrandbits(128):032x}",
}  # fmt: skip
_EDGES: Final[dict[int, Sequence[str]]] = {
    1083: ["00:00:00", "23:59:59.999999", "24:00:00", "12:00:00", "12:00:00.5"],
    3904: ["empty", "[1,5)", "(,)", "[2,)", "(,7)", "[10,20)"],
    1186: ["infinity", "-infinity", "9007199254740993 us", "0", "1 mon", "30 days", "-1 day",
           "1 mon -30 days", "24:00:00", "-00:00:00.000001", "1 year 2 mons 3 days 04:05:06.789",
           "100000 years", "1 day 25:00:00"],
    3802: ['{"a": 1}', "[]", "null", '"a"', "1.50", '{"b": [1, {"c": null}], "a": "x"}'],
    114: ['{"a": 1}', "[]", "null", '"a"', "1.50", '{"b":[1, {"c":null}],"a":"x", "a":2}'],
}  # fmt: skip


class Proof:
    """Compares functions. ``proved``: values by function; ``wrong``: what differs."""

    def __init__(self, oracle: LakeOracle, connection: Any, random: Random, rows: int) -> None:
        self._oracle = oracle
        self._connection = connection
        self._random = random
        self._values = Values(random)
        self._rows = rows
        self._makers: dict[int, list[Subject]] = {}
        for subject in subjects():
            self._makers.setdefault(functions()[subject.oid].result, []).append(subject)
        self.proved: dict[str, int] = {}
        self.wrong: dict[str, list[str]] = {}
        self.refused: dict[str, str] = {}

    def prove(self, number: int, subject: Subject) -> None:
        """Compare a function over columns, constants and other calls."""
        name = functions()[subject.oid].name
        table = f"p{number}"
        names = [f'"{each}"' for each in self._random.sample(_NAMES, len(subject.types))]
        columns = {each: TYPES[oid] for each, oid in zip(names, subject.types, strict=True)}
        rows = [
            [str(n), *(self._value(oid, name) for oid in subject.types)] for n in range(self._rows)
        ]
        self._oracle.create(table, {"n": "integer", **columns}, rows)
        self._compare(subject, table, names)
        for _ in range(_CONSTANTS if subject.types else 0):
            kept = self._random.randrange(len(names) + 1)  # or none
            cells = [
                each if n == kept else self._constant(oid, name)
                for n, (each, oid) in enumerate(zip(names, subject.types, strict=True))
            ]
            self._compare(subject, table, cells)
        for _ in range(_NESTED if subject.types else 0):
            cells = list(names)
            place = self._random.randrange(len(names))
            made = self._made(subject.types[place], dict(zip(subject.types, names, strict=True)))
            if made:
                cells[place] = made
                self._compare(subject, table, cells)

    def _made(self, oid: int, known: dict[int, str]) -> str:
        """Return a call that gives the type, of columns if they fit, else of constants."""
        makers = self._makers.get(oid)
        if not makers:
            return ""
        inner = self._random.choice(makers)
        name = functions()[inner.oid].name
        cells = [known.get(each) or self._constant(each, name) for each in inner.types]
        return f"({inner.text.format(*cells)})"

    def _value(self, oid: int, name: str) -> str | None:
        return None if self._random.random() < 0.06 else self._values.draw(oid, name)

    def _constant(self, oid: int, name: str) -> str:
        value = self._values.draw(oid, name)
        if TYPES[oid] in ONLY_CONSTANTS and self._random.random() < 0.2:
            value = self._random.choice(ONLY_CONSTANTS[TYPES[oid]])
        quoted = value.replace("'", "''")
        return f"'{quoted}'::{TYPES[oid]}"

    def _compare(self, subject: Subject, table: str, cells: Sequence[str]) -> None:
        call = subject.text.format(*cells)
        shown = _signature(subject)
        theirs = dict(
            self._connection.execute("SELECT n, proof(%s, %s, n) FROM " + table, [call, table])
        )
        good = [n for n, text in theirs.items() if not (text or "").startswith("ERROR ")]
        bad = [n for n in theirs if n not in set(good)]
        query = f"SELECT n, {call} FROM {table}"
        if self._oracle.refuses(query):
            self.refused.setdefault(shown, self._oracle.ours(query, skipping=False).message)
            return
        where = f" WHERE n = ANY ('{{{','.join(map(str, good))}}}'::int[])" if bad else ""
        ours = self._oracle.ours(f"{query}{where} ORDER BY n", skipping=False)
        wanted = [(n, theirs[n]) for n in sorted(good)]
        self._check(
            subject, table, call, wanted, replace(ours, rows=[row[1:] for row in ours.rows])
        )
        listed = f"WHERE n IN ({','.join(map(str, good))})" if good else "WHERE false"
        filtered = self._oracle.by_name(call, table, listed)
        if filtered.sqlstate != "0A000":
            self._check(subject, table, f"filter {call}", wanted, filtered)
        for n in self._random.sample(bad, min(len(bad), _FAILING)):
            single = self._oracle.ours(f"SELECT {call} FROM {table} WHERE n = {n}", skipping=False)
            said = (theirs[n] or "").removeprefix("ERROR ")
            if single.sqlstate != said:
                got = single.sqlstate or single.rows
                self._differs(shown, f"{call} {self._row(table, n)}: {said}, ours {got}")
        self.proved[shown] = self.proved.get(shown, 0) + len(good) + min(len(bad), _FAILING)

    def _check(
        self,
        subject: Subject,
        table: str,
        call: str,
        wanted: Sequence[tuple[int, str | None]],
        ours: Result,
    ) -> None:
        """Compare the values of all rows that a server computes."""
        shown = _signature(subject)
        if ours.sqlstate and wanted:
            self._differs(shown, f"{call}: {ours.sqlstate} {ours.message}, not on a server")
            return
        found = [None if value is None else value.decode() for (value,) in ours.rows]
        different = [
            (n, value, mine)
            for (n, value), mine in zip(wanted, found, strict=False)
            if mine != value
        ]
        for n, value, mine in different[:3]:
            self._differs(shown, f"{call} {self._row(table, n)}: {value!r}, ours {mine!r}")

    def _row(self, table: str, n: int) -> str:
        (row,) = self._connection.execute(f"SELECT * FROM {table} WHERE n = {n}")
        return str(row[1:])

    def _differs(self, shown: str, text: str) -> None:
        found = self.wrong.setdefault(shown, [])
        found.append(text)
        if len(found) <= _SHOWN:
            print(f"DIFFERS {shown}: {text}", flush=True)


_PROOF: Final = """
CREATE FUNCTION proof(call text, of text, n integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE made text;
BEGIN
  EXECUTE format('SELECT format(''%%s'', %s) || CASE WHEN (%s) IS NULL THEN NULL ELSE '''' END'
                 ' FROM %I WHERE n = %s', call, call, of, n) INTO made;
  RETURN made;
EXCEPTION WHEN OTHERS THEN RETURN 'ERROR ' || SQLSTATE;
END $$
"""


def _signature(subject: Subject) -> str:
    of = ", ".join(TYPES[oid] for oid in subject.types)
    return f"{functions()[subject.oid].name}({of})"


def left_out() -> Iterator[str]:
    """Yield the immutable functions over the types that have no row and that users may call."""
    known = pg_proc.rows()
    compared = {row.function for name in pg_proc.COMPARISONS for row in operators().get(name, ())}
    reachable = TYPES.keys() | _POLYMORPHIC.keys()
    for oid, function in sorted(functions().items(), key=lambda item: item[1].name):
        inner = _SKIPPED.fullmatch(function.name)
        if function.kind != "f" or function.volatility != "i" or function.returns_set or inner:
            continue
        if oid not in known and oid not in compared and set(function.arguments) <= reachable:
            of = ", ".join(types()[each].sql_name for each in function.arguments)
            yield f"{function.name}({of})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400, help="rows of values for a function")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only functions with this in their name")
    parser.add_argument("--part", default="0/1", help="2/5: the third fifth of the functions")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    chosen = [
        (number, subject)
        for number, subject in enumerate(subjects())
        if options.only in _signature(subject) and number % parts == part
    ]
    with EmbeddedPostgres(18) as server:
        with psycopg.connect(server.conninfo(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE proof TEMPLATE template0 LOCALE 'C'")
        with psycopg.connect(server.conninfo("proof"), autocommit=True) as connection:
            connection.execute(_PROOF)
            proof = Proof(LakeOracle(connection), connection, Random(options.seed), options.rows)
            for number, subject in chosen:
                proof.prove(number, subject)
    for name, values in sorted(proof.proved.items()):
        if name not in proof.wrong:
            print(f"proved {name}: {values} values")
    for name, message in sorted(proof.refused.items()):
        if name not in proof.proved:
            print(f"refused {name}: {message}")
    omitted = list(left_out())
    print(f"left out: {len(omitted)}: {'; '.join(omitted)}")
    always = proof.refused.keys() - proof.proved.keys()
    never = sorted(name for name in always if not REFUSED.fullmatch(name))
    print(f"{len(proof.proved)} proved with {sum(proof.proved.values())} values,", end=" ")
    print(f"{len(proof.wrong)} differ, always refused: {never}")
    return 1 if proof.wrong or never else 0


if __name__ == "__main__":
    sys.exit(main())
