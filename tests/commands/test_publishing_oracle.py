"""Scripts about publications, roles and tables: the same outcome as PostgreSQL 18, and the same
rows in the catalogs at the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commands.both import Ours, Theirs
from penstock.embedded import EmbeddedPostgres

DATABASE = "publishing_oracle"
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sql"))


@pytest.fixture(scope="module")
def session(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(postgres.conninfo(DATABASE)) as session:
            yield session
            session.rollback()
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, session: psycopg.Connection[Any], tmp_path: Path) -> None:
    session.rollback()
    ours, theirs = Ours(tmp_path, DATABASE), Theirs(session)
    with ours.catalog:
        outcomes = [(text, theirs.run(text), ours.run(text)) for text in statements(script)]
        wrong = [f"{text}\n  {a}\n  {b}" for text, a, b in outcomes if a != b]
        assert not wrong, "\n".join(wrong)
        assert ours.state() == theirs.state()


def statements(script: Path) -> list[str]:
    """One per line; lines with two hyphens are remarks."""
    lines = script.read_text("utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("--")]


SETUP = (
    "CREATE SCHEMA s",
    "CREATE TABLE t (a int PRIMARY KEY, b text)",
    "CREATE TABLE s.t (a int PRIMARY KEY, c text)",
    "CREATE TABLE p (a int, b text) PARTITION BY LIST (a)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
    "CREATE ROLE r",
    "ALTER TABLE s.t OWNER TO r",
)
NAMES = st.sampled_from(["x", "x", "y", "nope"])
TABLES = st.sampled_from(["t", "public.t", "s.t", "p", "p1", "ONLY t", "s.nope", "nope.t"])
LISTS = st.sampled_from(["", "", "", " (a)", " (b)", " (a, b)", " (b, a)", " (c)", " (a, a)"])
FILTERS = st.sampled_from(["", "", "", " WHERE (a > 5)", " WHERE (a < 5)"])
SCHEMAS = st.sampled_from(["TABLES IN SCHEMA s", "TABLES IN SCHEMA CURRENT_SCHEMA, s"])
ONE_TABLE = st.builds("TABLE {}{}{}".format, TABLES, LISTS, FILTERS)
OBJECTS = st.lists(ONE_TABLE | ONE_TABLE | ONE_TABLE | SCHEMAS, min_size=1, max_size=2).map(
    ", ".join
)
OPTIONS = st.sampled_from(
    [
        "publish_via_partition_root",
        "publish_via_partition_root = false",
        "publish = 'insert'",
        "publish = ''",
        "publish_generated_columns = stored",
        "publish = 'all'",
    ]
)
STATEMENTS = st.one_of(
    st.builds("CREATE PUBLICATION {} FOR {}".format, NAMES, OBJECTS),
    st.builds("CREATE PUBLICATION {} FOR {} WITH ({})".format, NAMES, OBJECTS, OPTIONS),
    st.builds("CREATE PUBLICATION {} FOR ALL TABLES".format, NAMES),
    st.builds("ALTER PUBLICATION {} ADD {}".format, NAMES, OBJECTS),
    st.builds("ALTER PUBLICATION {} SET {}".format, NAMES, OBJECTS),
    st.builds("ALTER PUBLICATION {} DROP {}".format, NAMES, OBJECTS),
    st.builds("ALTER PUBLICATION {} SET ({})".format, NAMES, OPTIONS),
    st.builds("ALTER PUBLICATION {} RENAME TO {}".format, NAMES, NAMES),
    st.builds("ALTER PUBLICATION {} OWNER TO {}".format, NAMES, st.sampled_from(["r", "postgres"])),
    st.builds("DROP PUBLICATION IF EXISTS {}".format, NAMES),
    st.builds("DROP TABLE {}".format, st.sampled_from(["t", "p1", "p", "s.t"])),
    st.sampled_from(["SET ROLE r", "SET ROLE NONE"]),
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.builds("CREATE PUBLICATION x FOR {} WITH ({})".format, OBJECTS, OPTIONS),
    st.lists(STATEMENTS, max_size=8),
)
def test_any_script(
    session: psycopg.Connection[Any], tmp_path: Path, first: str, texts: list[str]
) -> None:
    session.rollback()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        ours, theirs = Ours(Path(folder), DATABASE), Theirs(session)
        with ours.catalog:
            for text in SETUP:
                assert ours.run(text) == theirs.run(text) == ()
            theirs.run("GRANT USAGE ON SCHEMA s TO r")  # ours may be used by everybody
            for text in (first, *texts, "SET ROLE NONE"):
                assert (text, ours.run(text)) == (text, theirs.run(text))
            assert ours.state() == theirs.state()
