"""Random tables, rows and row filters, with values at the edges of every type."""

from __future__ import annotations

from random import Random

VALUES: dict[str, list[str]] = {
    "smallint": ["0", "1", "-1", "2", "7", "-32768", "32767", "100"],
    "integer": ["0", "1", "-1", "2", "7", "-2147483648", "2147483647", "100", "32768"],
    "bigint": [
        "0",
        "1",
        "-1",
        "2",
        "7",
        "-9223372036854775808",
        "9223372036854775807",
        "2147483648",
    ],
    "numeric(10,2)": [
        "0.00",
        "1.00",
        "-1.00",
        "1.50",
        "2.50",
        "-2.50",
        "99999999.99",
        "-99999999.99",
        "0.01",
    ],
    "numeric(5,0)": ["0", "1", "-1", "99999", "-99999", "7"],
    "numeric(38,10)": ["0", "1.0000000001", "-1.5", "9999999999999999999999999999.9999999999", "7"],
    "numeric": [
        "0",
        "1",
        "-1",
        "1.0",
        "1.50",
        "1.5",
        "0.01",
        "-0.01",
        "NaN",
        "Infinity",
        "-Infinity",
        "100",
        "99999999999999999999999999999999999999999.5",
        "-99999999999999999999999999999999999999999.5",
        "0.00000000000000000000000000000000000000001",
        "9",
        "10",
        "-9",
        "-10",
        "1.51",
        "-1.5",
        "-1.51",
    ],
    "real": [
        "0",
        "-0",
        "1",
        "-1",
        "1.1",
        "1.5",
        "2.5",
        "3.4028235e38",
        "-3.4028235e38",
        "1.4e-45",
        "NaN",
        "Infinity",
        "-Infinity",
        "16777216",
        "0.1",
    ],
    "double precision": [
        "0",
        "-0",
        "1",
        "-1",
        "1.1",
        "1.5",
        "2.5",
        "3.5",
        "1.7976931348623157e308",
        "5e-324",
        "NaN",
        "Infinity",
        "-Infinity",
        "2147483647.5",
        "9007199254740993",
        "0.1",
    ],
    "boolean": ["t", "f"],
    "text": [
        "",
        "a",
        "A",
        "ab",
        "aB",
        "abc",
        "b",
        " a",
        "a ",
        "a  ",
        "é",
        "É",
        "Z",
        "_",
        "%",
        "a%",
        "a_b",
        "\\",
        "a\\b",
        "a\nb",
        "'",
        "ß",
        "日本",
        "\U0001f600",
        "~",
        "NULL",
        "axxb",
        "1",
        "aab",
        "\t",
    ],
    "varchar(20)": ["", "a", "A", "ab", "abc", "b", "a ", "é", "Z", "%", "a_b", "日本", "1", "aab"],
    "char(5)": ["", "a", "A", "ab", "abc", "b", "a b", "é", "Z", "abcde", "日本", "\t"],
    "name": ["", "a", "A", "ab", "b", "é", "Z", "a "],
    "bytea": ["\\x", "\\x00", "\\x00ff", "\\x61", "\\xff", "\\x6162", "\\x7f80"],
    "date": [
        "0001-01-01",
        "9999-12-31",
        "1970-01-01",
        "1969-12-31",
        "2000-02-29",
        "2020-01-01",
        "2020-12-31",
        "2021-01-01",
    ],
    "timestamp": [
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "1970-01-01 00:00:00",
        "2020-01-01 00:00:00",
        "2020-01-01 00:00:00.000001",
        "2020-01-01 12:34:56.789",
        "1969-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
        "1970-01-01 00:00:00+00",
        "2020-01-01 00:00:00+00",
        "2020-01-01 02:00:00+02",
        "2020-01-01 00:00:00.000001+00",
    ],
    "uuid": [
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12",
    ],
    "integer[]": ["{}", "{1}", "{1,2}", "{1,NULL}", "{NULL}", "{2,1}", "{-1}", "{1,2,3}"],
    "bigint[]": ["{}", "{1}", "{1,2}", "{NULL,7}"],
    "text[]": ["{}", "{a}", "{a,b}", "{NULL}", "{a,NULL}", '{"",b}', '{"a b"}'],
    "char(5)[]": ["{}", "{a}", '{"a "}', "{a,NULL}"],
    "numeric[]": ["{}", "{1.0}", "{1}", "{NaN}", "{1,NULL}", "{1.50,-2}"],
    "numeric(10,2)[]": ["{}", "{1.0}", "{1.5,NULL}"],
    "double precision[]": ["{}", "{NaN}", "{1,NaN}", "{-0}", "{0}", "{1.5,NULL}"],
    "date[]": ["{}", "{2020-01-01}", "{2020-01-01,NULL}"],
}
ONLY_CONSTANTS = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 01:02:03 BC", "20000-01-01"],
    "timestamptz": ["infinity", "-infinity", "2020-01-01 00:00:00-08", "1969-12-31 16:00-08"],
}
ARRAYS = tuple(name for name in VALUES if name.endswith("[]"))
SCALARS = tuple(name for name in VALUES if not name.endswith("[]"))
FAMILIES = [
    ("smallint", "integer", "bigint"),
    ("numeric(10,2)", "numeric(5,0)", "numeric(38,10)", "numeric", "smallint", "integer", "bigint"),
    ("real", "double precision", "integer", "numeric(10,2)", "bigint"),
    ("text", "varchar(20)", "name"),
    ("char(5)",),
    ("boolean",),
    ("bytea",),
    ("date", "timestamp"),
    ("timestamptz",),
    ("uuid",),
    *((name,) for name in ARRAYS),
]
"""Types that are compared with one another."""
PATTERNS = [
    "%",
    "a%",
    "%b",
    "_",
    "a_",
    "A%",
    "%é%",
    "a\\_b",
    "",
    "%a%b%",
    "\\\\",
    "É",
    "__",
    "a\\%",
]
REGEXES = [
    "^a",
    "b$",
    "a.b",
    "^$",
    "[ab]+",
    "a|b",
    "(ab)+c?",
    "^[^a]",
    "\\.",
    "a{2}",
    "^.$",
    "x*b",
    "é",
    "\\d",
    "^\\w+$",
    "^a.*b$",
    "[A-Z]",
    "[0-9a-z]",
]


def random_rows(random: Random, types: list[str], count: int) -> list[list[str | None]]:
    """Rows of values of the types, one in eight NULL."""
    return [
        [None if random.random() < 0.125 else random.choice(VALUES[t]) for t in types]
        for _ in range(count)
    ]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Filters:
    """Strategies over a table: ``columns`` are names by type."""

    def __init__(self, columns: dict[str, list[str]]) -> None:
        self.columns = columns

    def draw(self, random: Random) -> str:
        return self.boolean(random, 3)

    def boolean(self, random: Random, depth: int) -> str:
        if depth and random.randint(0, 2) == 0:
            return self._joined(random, depth - 1)
        kind = random.randint(0, 11)
        family = random.choice(FAMILIES)
        if kind == 8 or kind == 9:
            return self._pattern(random)
        if kind == 10:
            return self._boolean_value(random)
        left_type = random.choice(family)
        right_type = random.choice(family)
        left, right = (
            self.operand(random, left_type, depth),
            self.operand(random, right_type, depth),
        )
        match kind:
            case 0:
                return f"({left} IS {random.choice(['', 'NOT '])}NULL)"
            case 1:
                word = random.choice(["IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
                return f"({left} {word} {right})"
            case 2:
                third = self.operand(random, random.choice(family), 0)
                word = random.choice(["BETWEEN", "NOT BETWEEN", "BETWEEN SYMMETRIC"])
                return f"({left} {word} {right} AND {third})"
            case 3 | 4:
                return self._list(random, left, family)
            case 5:
                return self._any(random)
        operator = random.choice(["=", "<>", "<", "<=", ">", ">="])
        return f"({left} {operator} {right})"

    def _joined(self, random: Random, depth: int) -> str:
        kind = random.randint(0, 5)
        first = self.boolean(random, depth)
        if kind == 0:
            return f"(NOT {first})"
        if kind == 1:
            test = random.choice(
                ["TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"]
            )
            return f"({first} IS {test})"
        second = self.boolean(random, depth)
        if kind == 2:
            third = random.choice(["true", "false", "NULL"])
            return f"(CASE WHEN {first} THEN {second} ELSE {third} END)"
        return f"({first} {random.choice(['AND', 'OR'])} {second})"

    def _boolean_value(self, random: Random) -> str:
        names = self.columns.get("boolean", [])
        return random.choice([*names, "true", "false", "NULL::boolean"])

    def _list(self, random: Random, left: str, family: tuple[str, ...]) -> str:
        type_ = random.choice(family)
        values = random.choices(self._constants(type_), k=random.randint(1, 4))
        items = [quoted(v) if len(family) == 1 else f"{quoted(v)}::{type_}" for v in values]
        if random.randint(0, 5) == 0:
            items.append("NULL")
        word = random.choice(["IN", "NOT IN"])
        return f"({left} {word} ({', '.join(items)}))"

    def _any(self, random: Random) -> str:
        array_type = random.choice(ARRAYS)
        array = self.operand(random, array_type, 0)
        item = (
            self.operand(random, array_type.removesuffix("[]"), 0)
            if array_type != "char(5)[]"
            else "'a'::char(5)"
        )
        operator = random.choice(["=", "<>", "<", ">="])
        return f"({item} {operator} {random.choice(['ANY', 'ALL'])} ({array}))"

    def _pattern(self, random: Random) -> str:
        type_ = random.choice(["text", "varchar(20)", "char(5)", "name"])
        text = self.operand(random, type_, 1)
        if random.random() < 0.5:
            word = random.choice(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
            pattern = random.choice(PATTERNS)
            escape = random.choice(["", "", " ESCAPE '#'", " ESCAPE 'a'", " ESCAPE ''"])
            return f"({text} {word} {quoted(pattern)}{escape})"
        operator = random.choice(["~", "!~", "~*", "!~*"])
        return f"({text} {operator} {quoted(random.choice(REGEXES))})"

    def operand(self, random: Random, type_: str, depth: int) -> str:
        names = self.columns.get(type_, [])
        kind = random.randint(0, 9)
        if depth and kind > 5:
            return self._computed(random, type_, depth - 1)
        if names and kind > 1:
            return random.choice(names)
        value = random.choice(self._constants(type_))
        return f"{quoted(value)}::{type_}"

    def _constants(self, type_: str) -> list[str]:
        return VALUES[type_] + ONLY_CONSTANTS.get(type_, [])

    def _computed(self, random: Random, type_: str, depth: int) -> str:
        def operand(other: str = type_) -> str:
            return self.operand(random, other, depth)

        kind = random.randint(0, 9)
        if kind == 0:
            return f"COALESCE({operand()}, {operand()})"
        if kind == 1:
            return f"NULLIF({operand()}, {operand()})"
        if kind == 2:
            return f"{random.choice(['GREATEST', 'LEAST'])}({operand()}, {operand()})"
        if kind == 3 and random.random() < 0.5:
            return f"(CASE WHEN {self.boolean(random, 0)} THEN {operand()} ELSE {operand()} END)"
        choices = COMPUTED.get(type_)
        if not choices:
            return operand()
        template = random.choice(choices)
        for mark, other in MARKS.items():
            while mark in template:
                template = template.replace(mark, operand(other), 1)
        return f"({template})"


MARKS = {
    "@2": "smallint",
    "@4": "integer",
    "@8": "bigint",
    "@n": "numeric(10,2)",
    "@f": "real",
    "@d": "double precision",
    "@t": "text",
    "@v": "varchar(20)",
    "@c": "char(5)",
    "@D": "date",
    "@s": "timestamp",
    "@b": "boolean",
    "@y": "bytea",
    "@a": "integer[]",
    "@5": "numeric(5,0)",
}
COMPUTED: dict[str, list[str]] = {
    "smallint": ["@2 + @2", "@2 * @2", "@2 / @2", "@2 % @2", "- @2", "abs(@2)", "@4::smallint"],
    "integer": [
        "@4 + @4",
        "@4 - @2",
        "@4 * @4",
        "@4 / @4",
        "@4 % @4",
        "- @4",
        "abs(@4)",
        "@8::integer",
        "mod(@4, @4)",
        "length(@t)",
        "length(@c)",
        "octet_length(@t)",
        "strpos(@t, @t)",
        "@n::int",
        "@d::int",
        "@f::int",
        "@D - @D",
        "cardinality(@a)",
        "array_length(@a, 1)",
        "length(@y)",
        "@b::int",
        "position(@t in @t)",
    ],
    "bigint": [
        "@8 + @4",
        "@8 - @8",
        "@4 * @8",
        "@8 / @4",
        "@8 % @8",
        "- @8",
        "@4::bigint",
        "@d::bigint",
    ],
    "numeric(10,2)": [
        "@n + @n",
        "@n - @5",
        "@n * @n",
        "- @n",
        "abs(@n)",
        "@4::numeric",
        "@n::numeric(5,1)",
        "@n * @4",
        "floor(@n)",
        "ceil(@n)",
        "extract(year from @D)",
        "extract(month from @s)",
        "extract(dow from @D)",
        "extract(week from @D)",
        "extract(doy from @s)",
        "extract(hour from @s)",
        "extract(isodow from @s)",
        "extract(quarter from @D)",
        "+ @n",
        "@n::numeric(12,3)",
    ],
    "real": ["@f + @f", "@f * @f", "@f / @f", "- @f", "@d::real", "@n::real", "@4::real"],
    "double precision": [
        "@d + @d",
        "@d - @f",
        "@d * @d",
        "@d / @d",
        "- @d",
        "abs(@d)",
        "@f::float8",
        "@n::float8",
        "@8::float8",
        "floor(@d)",
        "ceil(@d)",
        "date_part('year', @D)",
    ],
    "text": [
        "lower(@t)",
        "upper(@t)",
        "@t || @t",
        "left(@t, 2)",
        "right(@t, 1)",
        "left(@t, -1)",
        "substr(@t, 2)",
        "substring(@t, 1, 2)",
        "btrim(@t)",
        "ltrim(@t, 'a')",
        "rtrim(@t)",
        "replace(@t, 'a', @t)",
        "@v::text",
        "@c::text",
        "@b::text",
        '@t COLLATE "C"',
        "trim(both 'ab' from @t)",
        "lower(@v)",
        "@c || @v",
    ],
    "varchar(20)": ["@v::varchar(2)", "@t::varchar(3)", "@t::varchar"],
    "char(5)": ["@c::char(3)", "@t::char(4)"],
    "boolean": ["starts_with(@t, @t)", "@t ^@ @v", "@4::boolean"],
    "date": ["@D + @4", "@D - 1", "@D + @2", "@s::date"],
    "timestamp": [
        "@D::timestamp",
        "date_trunc('month', @s)",
        "date_trunc('hour', @s)",
        "date_trunc('week', @s)",
        "@s + interval '1 mon -2 days 03:00'",
        "@D - 1.5 * interval '1 month 1 day'",
    ],
}
