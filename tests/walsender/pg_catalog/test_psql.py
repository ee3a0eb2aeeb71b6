"""psql prints of a node what it prints of a server with the same objects."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from walsender.pg_catalog import objects
from walsender.pg_catalog.catalog_server import catalog_server, run_psql
from walsender.pg_catalog.test_subscriber_queries import drop_subscription, server_oids

from penstock.embedded import clients, find_installation
from penstock.walsender.pg_catalog import CatalogDatabase

VERSIONS = (14, 15, 16, 17, 18)
COMMANDS = [
    r"\dRp",
    r"\dRp p_*",
    r"\dRp nothing",
    r"\dRp+",
    r"\dRp+ p_f",
    r"\dRp+ nothing",
    r"\dRs",
    r"\dRs+",
    r"\dRs+ s*",
    r"\d",
    r"\d t*",
    *(rf"\d {name}" for name in ("t1", "t2", "t3", "t4", "gen", "part", "part_1", "nowhere")),
    *(rf"\d+ {name}" for name in ("t1", "t3", "t4", "part", "part_2")),
    r"\d shop.orders",
    r'\d+ shop."Odd Table"',
    r"\d t1_pkey",
    r"\dt",
    r"\dt shop.*",
    r"\dt *.t?",
    r"\dt+ t1",
    r"\di",
    r"\dv",
    r"\df nothing",
    r"\dT nothing",
    r"\du",
    r"\du+ alice",
    r"\dg bob",
    r"\dn",
    r"\dn shop",
    r"\dn+ shop",
    r"\dp t1",
    r"\l",
]


def psql(version: int) -> Path:
    return clients().program("psql") if version == 18 else find_installation(16).program("psql")


@pytest.fixture
def roles(database_on: Callable[..., Any]) -> Iterator[Callable[[int], Any]]:
    made: list[Any] = []

    def on(version: int) -> Any:
        server = database_on(version)
        server.execute(objects.ROLES)
        made.append(server)
        server.execute(objects.setup(version))
        return server

    yield on
    for server in made:
        drop_subscription(server)
        server.execute("DROP ROLE alice; DROP ROLE bob")


@pytest.mark.parametrize("version", VERSIONS)
def test_psql_prints_the_same(roles: Callable[[int], Any], version: int) -> None:
    server = roles(version)
    snapshot = dataclasses.replace(
        objects.snapshot(version, server_oids(server)), database=server.name
    )
    facts = dataclasses.replace(
        objects.session(version),
        database=server.name,
        settings={"search_path": '"$user", public', "server_version": f"{version}.0"},
    )
    differences: list[str] = []
    with catalog_server(
        lambda _: CatalogDatabase(snapshot, facts), version, server.name
    ) as conninfo:
        for program in (psql(18), psql(16)):
            script = "\n".join(f"\\echo == {command}\n{command}" for command in COMMANDS)
            theirs = by_command(run_psql(program, server.conninfo, script)[0], server.name)
            ours = by_command(run_psql(program, conninfo, script)[0], server.name)
            differences += [
                f"{command}\n{theirs[command]}\n--- ours\n{ours.get(command)}"
                for command in theirs
                if theirs[command] != ours.get(command)
            ]
            errors = run_psql(program, conninfo, script)[1]
            expected = run_psql(program, server.conninfo, script)[1]
            if first_lines(errors) != first_lines(expected):
                differences.append(f"{first_lines(expected)}\n--- ours\n{first_lines(errors)}")
    assert not differences, "\n".join(differences)


def by_command(output: str, database: str) -> dict[str, str]:
    """What each command has printed, less what a lake has its own way."""
    parts = re.split(r"^== (.*)\n", output, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {command: normal(text, database) for command, text in found.items()}


def normal(text: str, database: str) -> str:
    """Without: the other databases of a server, who owns schema public (pg_database_owner), the
    access method (heap, delta), sizes, the server's bootstrap locale."""
    lines = [
        re.sub(r"\s+", " ", line).strip()
        for line in text.splitlines()
        if not re.match(r"\s*(public\s+\||template\d|postgres \|\s+postgres|\(\d+ rows?\)|=c|-+)", line)
    ]
    return "\n".join(re.sub(r"\b(heap|delta)\b|\b\d+ (bytes|kB)\b", "", line) for line in lines)


def first_lines(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if "ERROR" in line or "Did not" in line]


def test_a_client_library_describes_and_binds() -> None:
    snapshot = objects.snapshot()
    with (
        catalog_server(
            lambda _: CatalogDatabase(snapshot, objects.session()), 18, "lake"
        ) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        query = "SELECT oid, relname, relnatts FROM pg_class WHERE relname = %s AND oid > %s"
        (row,) = connection.execute(query, ("t1", "5")).fetchall()
        assert row == (snapshot.tables[0].oid, "t1", 3)
        (row,) = connection.execute(
            "SELECT array_agg(nspname ORDER BY nspname) FROM pg_namespace WHERE nspname = ANY(%s)",
            (["shop", "public"],),
        ).fetchall()
        assert row == (["public", "shop"],)
