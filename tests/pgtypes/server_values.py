"""Values of every type as SQL, chosen for what goes wrong: ends of ranges, quotes, signs."""

from __future__ import annotations

from typing import Final

SCALARS: Final[dict[str, list[str]]] = {
    "smallint": ["0", "-32768", "32767"],
    "integer": ["0", "-2147483648", "2147483647"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807"],
    "real": ["0", "-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "0.1", "16777217"],
    "double precision": [
        "0",
        "-0",
        "NaN",
        "Infinity",
        "-Infinity",
        "1.7976931348623157e308",
        "5e-324",
        "0.1",
        "123456789.123456789",
    ],
    "numeric(18,4)": ["0", "-0.0001", "99999999999999.9999", "-99999999999999.9999", "1", "1e4"],
    "numeric(38,10)": ["0", "9999999999999999999999999999.9999999999", "-1e-10", "12345.678"],
    "numeric(5,-2)": ["0", "1234567", "-9999900", "150"],
    "numeric(2,5)": ["0", "0.00012", "-0.00099"],
    "numeric(40,5)": ["0", "1e34", "-0.00001", "NaN"],
    "numeric(18,5)": ["0", "10000.00001", "-9999999999999.99999", "0.12345", "0.00010"],
    "numeric": [
        "0",
        "0.000",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e131000",
        "-1e-16000",
        "10000.0001",
        "123456789012345678901234567890.098765432109876543210",
        "0.00001",
        "-5",
    ],
    "boolean": ["true", "false"],
    "text": ["", "NULL", "a,b", '"', "\\", "{}", " x ", "žluťoučký 🐘", "line\nbreak\ttab"],
    "varchar(9)": ["", "NULL", "naïve", 'q"q\\'],
    "char(5)": ["", "ab", "abcde"],
    "name": ["", "a name", "x" * 63],
    "bytea": ["", "\\x00ff", "\\xdeadbeef", "\\x5c22"],
    "date": ["0001-01-01", "9999-12-31", "1970-01-01", "2000-02-29", "1582-10-10"],
    "timestamp": [
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "1969-12-31 23:59:59.999999",
        "2024-02-29 12:30:00.5",
    ],
    "timestamp with time zone": [
        "0001-01-02 00:00:00+00",
        "9999-12-31 22:59:59.999999+00",
        "1800-06-15 12:00:00+00",
        "1938-03-01 00:00:00.25+00",
        "2024-07-01 12:30:00.123456+05:30",
    ],
    "timestamp(3)": ["2024-02-29 12:30:00.1234", "1970-01-01"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": ['{"a" : 1, "a": 2}', "[]", '"\\u00e9 \\"q\\""', "1.10"],
    "jsonb": ['{"b": 1, "a": {"x": [1.10, null]}}', "[]", '"é"', "12345678901234567890.5"],
}

UNFIT: Final[dict[str, list[str]]] = {
    "date": ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "294276-12-31 23:59:59", "0044-03-15 12:00:00 BC"],
    "timestamp with time zone": ["infinity", "-infinity", "10000-01-01 12:00:00+00"],
    "numeric(18,4)": ["NaN"],
    "numeric(38,10)": ["NaN"],
    "integer[]": ["{{1,2},{3,4}}", "[0:1]={1,2}"],
    "text[]": ['{{"a,b"}}', "[2:2]={x}"],
    "date[]": ["{2020-01-01,infinity}"],
    "numeric(18,4)[]": ["{1,NaN}"],
}
"""Values that a server holds and the target cannot."""

OTHERS: Final[dict[str, list[str]]] = {
    "mood": ["happy", "so, so"],
    "short_text": ["ab  ", "NULL"],
    "padded": ["ab"],
    "yes_no": ["true"],
    "pair": ["(1,x)", "(,)"],
    "inet": ["10.0.0.1", "10.1.0.0/16"],
    "cidr": ["10.0.0.0/8"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789", "-1 sec"],
    "time": ["00:00:00", "24:00:00", "12:34:56.789"],
    "time with time zone": ["12:34:56+05:30"],
    "money": ["-1234.50"],
    "point": ["(0.1,2)"],
    "box": ["(3,4),(1,2)"],
    "int4range": ["[1,5)", "empty"],
    "int4multirange": ["{[1,2),[5,7)}"],
    "bit(3)": ["101"],
    "bit varying": ["10", ""],
    "tsvector": ["fat cat"],
    "oid": ["4294967295"],
    '"char"': ["x", ""],
    "pg_lsn": ["16/B374D848"],
    "macaddr": ["08:00:2b:01:02:03"],
    "mood[]": ["{happy,NULL}"],
    "interval[]": ['{"1 day",NULL}'],
    "box[]": ["{(3,4),(1,2);(1,1),(0,0)}"],
}
"""Types that stay the text of their output function."""

TYPES_OF_OTHERS: Final = """
    CREATE TYPE mood AS ENUM ('happy', 'so, so');
    CREATE DOMAIN short_text AS varchar(10);
    CREATE DOMAIN padded AS char(5);
    CREATE DOMAIN yes_no AS boolean;
    CREATE TYPE pair AS (a int, b text);
"""

ARRAYS: Final[dict[str, list[str]]] = {
    f"{name}[]": [
        f"ARRAY[]::{name}[]",
        f"ARRAY[NULL]::{name}[]",
        "ARRAY[" + ",".join(f"$q${value}$q$" for value in values) + f",NULL]::{name}[]",
        f"ARRAY[$q${values[-1]}$q$]::{name}[]",
    ]
    for name, values in SCALARS.items()
}
"""Arrays of each scalar type, as expressions."""
