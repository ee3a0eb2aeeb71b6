"""The catalog as a transaction block sees it: what it makes is its own until it is entered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fix_catalog import upgraded
from penstock.catalog import (
    BlockCatalog,
    BlockCommit,
    Catalog,
    MadeTable,
    SequenceParameters,
    SessionSequences,
    store,
)
from penstock.errors import FeatureNotSupported
from penstock.relation import ReplicaIdentity
from penstock.sqlstate import DuplicateTable, SequenceGeneratorLimitExceeded


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'state.db'}"


_PARAMETERS = SequenceParameters(23, 1, 1, 1, 3, 1, False)
_ENTRY = ('{"metaData":{"id":"x"}}',)


def made_in(block: BlockCatalog) -> MadeTable:
    with block.write() as t:
        table = t.tables.create("public", "t", "file:///t", primary_key=("a",))
        t.tables.save(replace(table, replica_identity=ReplicaIdentity.FULL))
        t.sequences.create("t_a_seq", table.oid, "a", "", _PARAMETERS)
    row = block.tables[table.oid]
    return MadeTable(row, tuple(block.own_sequences.values()), _ENTRY)


def test_what_a_block_makes_is_its_own(catalog: Catalog) -> None:
    with catalog.write() as t:
        there = t.tables.create("public", "there", "file:///there")
    block = BlockCatalog(catalog, (), {})
    made = made_in(block)
    with catalog.read() as t:
        assert t.tables.all() == (there,)
        assert t.sequences.all() == ()
    with block.read() as t:
        assert t.tables.all() == (there, made.row)
        assert t.tables.find("public", "t") == t.tables.find_oid(made.row.oid) == made.row
        assert t.sequences.of_table(made.row.oid) == made.sequences
        assert t.is_taken("public", "t_a_seq") and t.is_taken("public", "t_pkey")
    with pytest.raises(DuplicateTable), block.write() as t:
        t.tables.delete(made.row.oid)
        t.tables.create("public", "there", "file:///there")
    assert made.row.oid in block.tables, "an error takes back what was done"
    with pytest.raises(FeatureNotSupported), block.write() as t:
        t.tables.save(replace(there, owner=1))
    again = BlockCatalog(catalog, [made], {})
    with again.write() as t:
        t.delete_table(made.row)
    assert (again.tables, again.own_sequences) == ({}, {})


def test_values_of_its_sequences(catalog: Catalog) -> None:
    values: dict[int, tuple[int, bool]] = {}
    made = made_in(block := BlockCatalog(catalog, (), values))
    (sequence,) = made.sequences
    session = SessionSequences()
    assert block.sequences.state(sequence.oid) == (1, False)
    assert [*block.sequences.take(sequence.oid, 2, session)] == [1, 2]
    again = BlockCatalog(catalog, [made], values).sequences
    assert again.state(sequence.oid) == (2, True)
    assert again.current(sequence.oid, session) == again.last(session) == 2
    with pytest.raises(SequenceGeneratorLimitExceeded):
        again.take(sequence.oid, 2, session)
    assert again.set(sequence.oid, 1, session, is_called=False) == 1
    assert [*again.take(sequence.oid, 1, session)] == [1]
    again.restart(sequence.oid)
    assert again.state(sequence.oid) == (1, False)


def test_its_names_are_taken_as_long_as_it_is_noted(catalog: Catalog) -> None:
    made = made_in(BlockCatalog(catalog, (), {}))
    with catalog.write() as t:
        t.block_commits.put(BlockCommit("b", (), "[]", made=(made,)))
    with catalog.read() as t:
        (noted,) = t.block_commits.all()
        assert noted.made == t.block_commits.made() == (made,)
        for name in ("t", "t_pkey", "t_a_seq"):
            assert t.is_taken("public", name) and not t.is_taken("other", name)
        assert t.tables.all() == ()
        assert made.table_id == "x"


def test_tables_of_blocks_came_with_version_23(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = BlockCommit("b", (1,), "[]")
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 22)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.block_commits.put(commit)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_block_commit DROP COLUMN made"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.read() as t:
        assert t.block_commits.all() == (commit,)
        assert not t.block_commits.makes("public", "t")
