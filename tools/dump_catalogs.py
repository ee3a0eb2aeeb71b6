"""Writes what stands in this repository of PostgreSQL's catalogs, or compares it with servers.

In: embedded servers of PostgreSQL 14 to 18. Out: the tables of ``FILES`` below. To be run when a
new major version is to be known: ``python tools/dump_catalogs.py builtin sessions`` writes, with
``--check`` it tells what differs and ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from penstock.embedded import EmbeddedPostgres

VERSIONS: Final = (14, 15, 16, 17, 18)
TARGET: Final = Path(__file__).parents[1] / "src" / "penstock"
BUILTIN: Final = {
    "pgtypes/pg_type.tsv": """
        SELECT t.oid, typname, format_type(t.oid, NULL), typlen, left(typbyval::text, 1), typtype,
               typcategory, left(typispreferred::text, 1), typdelim, typelem, typarray, typalign,
               typstorage, typcollation, typinput, typoutput, typreceive, typreceive::oid
          FROM pg_type t
         WHERE t.oid < 16384 AND typtype IN ('b', 'p', 'r', 'm') AND (typelem = 0 OR EXISTS (
               SELECT FROM pg_type e WHERE e.oid = t.typelem AND e.typtype IN ('b', 'p', 'r', 'm')))
         ORDER BY t.oid""",
    "sql/builtin/pg_operator.tsv": """
        SELECT oid, oprname, oprleft, oprright, oprresult, oprcode::oid
          FROM pg_operator WHERE oid < 16384 AND oprcode <> 0 ORDER BY oid""",
    "sql/builtin/pg_proc.tsv": """
        SELECT oid, proname, prokind, proretset::int, provolatile, proisstrict::int, prorettype,
               provariadic, pronargdefaults, array_to_string(proargtypes::oid[], ' '),
               (SELECT coalesce(string_agg(a.name, ' ' ORDER BY a.n), '')
                  FROM unnest(proargnames) WITH ORDINALITY AS a (name, n)
                 WHERE proargmodes IS NULL OR proargmodes[a.n] IN ('i', 'b', 'v')),
               (SELECT coalesce(string_agg(pg_get_function_arg_default(oid, n), ';' ORDER BY n), '')
                  FROM generate_series(pronargs - pronargdefaults + 1, pronargs) AS n)
          FROM pg_proc
         WHERE oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace
           AND NOT (proargtypes::oid[] && '{2275,2281}'::oid[] AND prokind <> 'w')
           AND prorettype NOT IN (2279, 3838, 325, 3115, 269, 3310) ORDER BY oid""",
    "sql/text/keywords.tsv": """
        SELECT catcode, string_agg(word, ' ' ORDER BY word COLLATE "C")
          FROM pg_get_keywords() GROUP BY catcode ORDER BY catcode""",
    "sql/builtin/pg_cast.tsv": """
        SELECT castsource, casttarget, castfunc, castcontext, castmethod
          FROM pg_cast WHERE oid < 16384 ORDER BY castsource, casttarget""",
}
"""Of the newest version."""
SETTINGS: Final = """
    SELECT name, context, vartype, coalesce(unit, ''), coalesce(min_val, ''),
           coalesce(max_val, ''), coalesce(array_to_string(enumvals, ','), ''),
           coalesce(boot_val, '')
      FROM pg_settings WHERE name !~ '[.]' ORDER BY lower(name)"""
COLUMNS: Final = """
    SELECT c.relname, string_agg(a.attname || ':' ||
           coalesce(b.typname, t.typname), ' ' ORDER BY a.attnum)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
      JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
     WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'v')
       AND c.relname !~ '^(_|sql_)' GROUP BY c.relname ORDER BY c.relname"""
HEADS: Final = {
    "pg_catalog": ("columns.toml", "Columns of PostgreSQL's catalogs and system views, as servers"
                   " of 14 to 18 have them"),
    "information_schema": ("information_schema.toml", "Columns of information_schema's views, by"
                           " the types beneath their domains"),
}  # fmt: skip
"""By schema: the file of its columns, and what that says of itself."""
Texts = Mapping[str, str]
"""Path below ``TARGET`` -> the file's text."""


def builtin() -> Texts:
    """Types, operators, functions, casts and key words."""
    with _server(VERSIONS[-1]) as connection:
        return {
            path: "".join(
                "\t".join(map(str, row)) + "\n" for row in connection.execute(query).fetchall()
            )
            for path, query in BUILTIN.items()
        }


def sessions() -> Texts:
    """What sessions see: settings, and columns of catalogs and of information_schema's views."""
    settings: dict[tuple[str, ...], list[int]] = defaultdict(list)
    columns: dict[str, _Tables] = {schema: defaultdict(_versions) for schema in HEADS}
    for version in VERSIONS:
        with _server(version) as connection:
            for row in connection.execute(SETTINGS).fetchall():
                settings[row].append(version)
            for schema, tables in columns.items():
                for table, text in connection.execute(COLUMNS, (schema,)).fetchall():
                    tables[table][text].append(version)
    lines = [
        "\t".join((str(seen[0]), str(seen[-1]), *row))
        for row, seen in sorted(settings.items(), key=lambda item: (item[0][0].lower(), item[1]))
    ]
    return {
        "guc/settings.tsv": "\n".join(lines) + "\n",
        **{
            f"pg_catalog/{file}": _toml(head, columns[schema])
            for schema, (file, head) in HEADS.items()
        },
    }


_Tables = defaultdict[str, dict[str, list[int]]]
"""By table and the text of its columns: the versions that have them."""


def _versions() -> dict[str, list[int]]:
    return defaultdict(list)


def _toml(head: str, tables: _Tables) -> str:
    out = [f"# {head}:", "# key: first and last major version with these columns."]
    for table, texts in sorted(tables.items()):
        out.append(f"\n[{table}]")
        for text, seen in texts.items():
            lines = textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False)
            out.append("\n".join((f'{seen[0]}-{seen[-1]} = """', *lines)) + '"""')
    return "\n".join(out) + "\n"


FILES: Final[Mapping[str, Callable[[], Texts]]] = {"builtin": builtin, "sessions": sessions}


def differences(texts: Texts) -> Iterator[str]:
    """What the files have and servers have not (``-``), and the other way round (``+``)."""
    for path, text in texts.items():
        kept, found = ((TARGET / path).read_text("utf-8").splitlines(), text.splitlines())
        yield from (f"{path}: - {line}" for line in kept if line not in set(found))
        yield from (f"{path}: + {line}" for line in found if line not in set(kept))


def main() -> None:
    """Writes the files, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=sorted(FILES))
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    wrong = False
    for what in arguments.what:
        texts = FILES[what]()
        if not arguments.check:
            for path, text in texts.items():
                (TARGET / path).write_text(text, "utf-8")
        for line in differences(texts):
            print(line)
            wrong = True
    sys.exit(wrong)


@contextmanager
def _server(version: int) -> Iterator[psycopg.Connection[tuple[str, ...]]]:
    """A connection to a server of its own."""
    with EmbeddedPostgres(version) as server, psycopg.connect(server.conninfo()) as connection:
        yield connection


if __name__ == "__main__":
    main()
