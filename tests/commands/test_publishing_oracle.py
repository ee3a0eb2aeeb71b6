"""Scripts about publications, roles and tables: the same outcome as PostgreSQL 18, and the same
rows in the catalogs at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commands.both import Ours, Theirs
from penstock.embedded import EmbeddedPostgres

DATABASE = "publishing_oracle"
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sql"))


@pytest.fixture(scope="module")
def session(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}")  # type: ignore[call-overload]
        with psycopg.connect(postgres.conninfo(DATABASE)) as session:
            yield session
            session.rollback()
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")  # type: ignore[call-overload]


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
