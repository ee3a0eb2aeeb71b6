"""Writes what sessions know of PostgreSQL 14 to 18: settings, and columns of information_schema.

In: embedded servers of these versions. Out: src/penstock/walsender/settings.tsv, one line a setting
(first and last version, name, context, type, unit, least, greatest, values of an enum, built-in
value), and src/penstock/walsender/pg_catalog/information_schema.toml, columns of the views as
``columns.toml`` has those of the catalogs. Run it again when a new major version is to be known.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import psycopg

from penstock.embedded import EmbeddedPostgres

VERSIONS = (14, 15, 16, 17, 18)
TARGET = Path(__file__).parents[1] / "src" / "penstock" / "walsender"
SETTINGS = """
    SELECT name, context, vartype, coalesce(unit, ''), coalesce(min_val, ''),
           coalesce(max_val, ''), coalesce(array_to_string(enumvals, ','), ''),
           coalesce(boot_val, '')
      FROM pg_settings WHERE name !~ '[.]' ORDER BY lower(name)"""
COLUMNS = """
    SELECT c.relname, string_agg(a.attname || ':' ||
           coalesce(b.typname, t.typname), ' ' ORDER BY a.attnum)
      FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
      JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
     WHERE c.relnamespace = 'information_schema'::regnamespace AND c.relkind = 'v'
       AND c.relname !~ '^_' GROUP BY c.relname ORDER BY c.relname"""
Seen = dict[tuple[str, ...], list[int]]


def main() -> None:
    """Writes both files."""
    settings: Seen = defaultdict(list)
    columns: dict[str, Seen] = defaultdict(lambda: defaultdict(list))
    for version in VERSIONS:
        with EmbeddedPostgres(version) as server, psycopg.connect(server.conninfo()) as connection:
            for row in connection.execute(SETTINGS).fetchall():
                settings[row].append(version)
            for view, text in connection.execute(COLUMNS).fetchall():
                columns[view][(text,)].append(version)
    lines = [
        "\t".join((str(seen[0]), str(seen[-1]), *row))
        for row, seen in sorted(settings.items(), key=lambda item: (item[0][0].lower(), item[1]))
    ]
    (TARGET / "settings.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    out = ["# Columns of information_schema's views, by the types beneath their domains:"]
    out.append("# key: first and last major version with these columns.")
    for view, texts in sorted(columns.items()):
        out.append(f"\n[{view}]")
        out += [f'{seen[0]}-{seen[-1]} = "{text}"' for (text,), seen in texts.items()]
    path = TARGET / "pg_catalog" / "information_schema.toml"
    path.write_text("\n".join(out) + "\n", "utf-8")


if __name__ == "__main__":
    main()
