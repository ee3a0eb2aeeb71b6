"""psql prints of a node what it prints of a server with the same objects."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults
from penstock.embedded import clients, find_installation
from penstock.pg_catalog import CatalogDatabase
from pg_catalog import objects
from pg_catalog.catalog_server import catalog_server, run_psql
from pg_catalog.test_subscriber_queries import drop_subscription, server_oids

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


@pytest.mark.parametrize("version", [*map(in_make_faults, (14, 15, 16, 17)), 18])
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
            script = "\n".join(
                f"\\echo == {number}\n{command}" for number, command in enumerate(COMMANDS)
            )
            expected, expected_errors = run_psql(program, server.conninfo, script)
            printed, errors = run_psql(program, conninfo, script)
            theirs, ours = by_command(expected), by_command(printed)
            assert len(theirs) == len(COMMANDS)
            differences += [
                f"{command}\n{theirs[command]}\n--- ours\n{ours.get(command)}"
                for command in theirs
                if theirs[command] != ours.get(command)
            ]
            if first_lines(errors) != first_lines(expected_errors):
                differences.append(f"{first_lines(expected_errors)}\n--- {first_lines(errors)}")
    assert not differences, "\n".join(differences)


def by_command(output: str) -> dict[str, str]:
    """What each command has printed, less what a lake has its own way."""
    parts = re.split(r"^== (.*)\n", output, flags=re.MULTILINE)
    found = zip(parts[1::2], parts[2::2], strict=True)
    commands = ((COMMANDS[int(number)], text) for number, text in found)
    return {command: normal(command, text) for command, text in commands}


def normal(command: str, text: str) -> str:
    r"""With a node's size of an empty table; without the constraint that a partition's bounds are.

    \l lists a server's other databases; schema public is pg_database_owner's on a server.
    """
    text = re.sub(r"^(No p|P)artition constraint.*\n", "", text, flags=re.MULTILINE)
    if command.startswith("\\dt+"):
        return re.sub(r"\d+ (bytes|kB)|[ -]+", " ", text)
    if command in ("\\l", "\\dn"):
        lines = (" ".join(line.split()) for line in text.splitlines())
        return "\n".join(line for line in lines if not _OTHERS.match(line))
    return text


_OTHERS = re.compile(r"public \||template\d|postgres \||\||\(\d+ rows?\)|-|List of")


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
