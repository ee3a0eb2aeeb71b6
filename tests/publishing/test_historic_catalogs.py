"""Output plugins look into the catalogs, as they were at the change that they are called for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.decoding import OutputPlugin, RelationData, registry
from penstock.lakehouse.schema import SOURCE
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark]

_READ = "SELECT data FROM pg_logical_slot_peek_changes('s', NULL, NULL{})"


class Looks(OutputPlugin):
    """Writes what the catalogs say of the tables whose oids are given, and of the changed one."""

    def startup(self, ctx: Any, options: Any, is_init: bool) -> None:
        assert ctx.catalogs is None
        given = dict(ctx.options)
        self._oids = [int(oid) for oid in given.get("oids", "").split()]
        self._catalog = given.get("catalog")
        self._published = "published" in given

    def begin(self, ctx: Any, txn: Any) -> None:
        assert ctx.catalogs.relation(1) is None

    def change(self, ctx: Any, txn: Any, relation: RelationData, change: Any) -> None:
        assert ctx.catalogs.relation(relation.oid) == relation
        if self._catalog is not None:
            ctx.catalogs.rows(self._catalog)
        said = [
            _said(ctx.catalogs.relation(oid), ctx.catalogs) for oid in self._oids or [relation.oid]
        ]
        if self._published:
            said = _published(ctx.catalogs)
        ctx.prepare_write()
        ctx.out.append(json.dumps(said))
        ctx.write()

    def commit(self, ctx: Any, txn: Any, commit_lsn: Any) -> None: ...


def _said(relation: RelationData | None, catalogs: Any) -> object:
    """The same twice: by ``relation``, and checked with ``rows``."""
    if relation is None:
        return None
    schemas = {row["oid"]: row["nspname"] for row in catalogs.rows("pg_namespace")}
    types = {row["oid"]: row["typname"] for row in catalogs.rows("pg_type")}
    (row,) = (row for row in catalogs.rows("pg_class") if row["oid"] == relation.oid)
    assert schemas[row["relnamespace"]] == relation.schema
    assert (row["relname"], row["relreplident"]) == (
        relation.name,
        relation.replica_identity.value,
    )
    columns = [row for row in catalogs.rows("pg_attribute") if row["attrelid"] == relation.oid]
    columns = [row for row in columns if row["attnum"] > 0]
    assert [(c["attname"], c["atttypid"]) for c in columns] == [
        (a.name, a.type_oid) for a in relation.attributes
    ]
    keys = [row for row in catalogs.rows("pg_index") if row["indrelid"] == relation.oid]
    primary = [a.position for a in relation.attributes if a.primary_key]
    assert [list(k["indkey"]) for k in keys if k["indisprimary"]] == ([primary] if primary else [])
    described = " ".join(f"{c['attname']}:{types[c['atttypid']]}" for c in columns)
    return f"{relation.quoted_name} {relation.replica_identity.value} {described}"


def _published(catalogs: Any) -> list[object]:
    """Publications, and what is in them."""
    names = {row["oid"]: row["pubname"] for row in catalogs.rows("pg_publication")}
    return [
        sorted(names.values()),
        [
            [names[row["prpubid"]], row["prattrs"] and list(row["prattrs"]), row["prqual"]]
            for row in catalogs.rows("pg_publication_rel")
        ],
        [names[row["pnpubid"]] for row in catalogs.rows("pg_publication_namespace")],
    ]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeNode]:
    place = f"{__name__}:Looks"
    load = EntryPoint.load
    monkeypatch.setitem(registry.BUNDLED, "looks", place)
    monkeypatch.setattr(EntryPoint, "load", lambda p: Looks if p.value == place else load(p))
    with LakeNode(tmp_path / "node", None, output_plugin_libraries=["looks"]) as started:
        yield started


def _slot(lake: LakeNode) -> None:
    lake.execute("SELECT 1 FROM pg_create_logical_replication_slot('s', 'looks')")


def _read(lake: LakeNode, *options: str) -> list[Any]:
    given = "".join(f", '{option}'" for option in options)
    return [json.loads(data) for (data,) in lake.rows(_READ.format(given))]


def _rename_column(lake: LakeNode, old: str, new: str) -> None:
    """As Spark does it: an entry with another schema, whose column has the same files."""
    folder = lake.node.folder / "warehouse" / "public" / "t" / "_delta_log"
    entries = sorted(folder.glob("*.json"))
    actions = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    (field,) = (f for f in schema["fields"] if f["name"] == old)
    field["name"] = new
    field["metadata"].pop(SOURCE, None)
    entry = {"metaData": {**metadata, "schemaString": json.dumps(schema)}}
    path = folder / f"{len(entries):020}.json"
    path.write_text(json.dumps(entry) + "\n")


def _oid(lake: LakeNode, name: str) -> str:
    ((oid,),) = lake.rows(f"SELECT '{name}'::regclass::oid")
    return str(oid)


def test_each_change_sees_the_table_of_its_time(lake: LakeNode) -> None:
    _slot(lake)
    lake.execute(
        "CREATE SCHEMA archive",
        "CREATE TABLE t (id integer PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN n bigint",
        "INSERT INTO t VALUES (2, 'b', 2)",
        "ALTER TABLE t DROP COLUMN n",
        "INSERT INTO t VALUES (3, 'c')",
    )
    _rename_column(lake, "v", "w")
    lake.execute(
        "INSERT INTO t VALUES (4, 'd')",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (5, 'e')",
        "ALTER TABLE t SET SCHEMA archive",
        "INSERT INTO archive.t VALUES (6, 'f')",
    )
    expected = [
        "public.t d id:int4 v:text",
        "public.t d id:int4 v:text n:int8",
        "public.t d id:int4 v:text",
        "public.t d id:int4 w:text",
        "public.t f id:int4 w:text",
        "archive.t f id:int4 w:text",
    ]
    assert _read(lake) == [[said] for said in expected]


def test_publications_are_of_that_time(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE SCHEMA s")
    lake.execute("CREATE TABLE gone (id integer PRIMARY KEY)")
    _slot(lake)
    lake.execute(
        "INSERT INTO t VALUES (1, 'a')",
        "CREATE PUBLICATION p FOR TABLE t (id, v), gone",
        "CREATE PUBLICATION q FOR TABLES IN SCHEMA s",
        "INSERT INTO t VALUES (2, 'b')",
        "ALTER PUBLICATION p SET TABLE t",
        "ALTER PUBLICATION q RENAME TO r",
        "INSERT INTO t VALUES (3, 'c')",
        "DROP PUBLICATION p",
        "DROP PUBLICATION r",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (4)",
    )
    lists = [["p", [1, 2], None], ["p", None, None]]
    expected = [
        [[], [], []],
        [["p", "q"], lists, ["q"]],
        [["p", "r"], lists[1:], ["r"]],
        [[], [], []],
    ]
    assert _read(lake, "published", "") == expected
    # A table and a schema that there are no more are in no catalog, and in no publication.
    lake.execute("DROP TABLE gone", "DROP SCHEMA s")
    expected[1:3] = [["p", "q"], lists[:1], []], [["p", "r"], lists[1:], []]
    assert _read(lake, "published", "") == expected


def test_other_tables_are_of_that_time_too(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE o (id integer)")
    lake.execute("CREATE TABLE gone (id integer PRIMARY KEY)")
    _slot(lake)
    oids = [_oid(lake, "o"), _oid(lake, "gone")]
    lake.execute(
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE o ADD COLUMN v text",
        "INSERT INTO t VALUES (2)",
        "CREATE TABLE late (id integer)",
        "INSERT INTO t VALUES (3)",
    )
    assert len(_read(lake)) == 3  # it is in the log
    lake.execute(
        "ALTER TABLE o REPLICA IDENTITY NOTHING",
        "INSERT INTO t VALUES (4)",
    )
    oids.append(_oid(lake, "late"))
    old, new = "public.o d id:int4", "public.o d id:int4 v:text"
    gone, late = "public.gone d id:int4", "public.late d id:int4"
    last = "public.o n id:int4 v:text"
    asked = ("oids", " ".join(oids))
    assert _read(lake, *asked) == [
        [old, gone, None],
        [new, gone, None],
        [new, gone, late],
        [last, gone, late],
    ]
    lake.execute("DROP TABLE gone")  # of which nothing is left
    assert [said[1] for said in _read(lake, *asked)] == [None] * 4


@pytest.mark.parametrize("name", ["t", "pg_authid", "pg_subscription", "no_such"])
def test_what_is_no_catalog_is_not_there(lake: LakeNode, name: str) -> None:
    _slot(lake)
    lake.execute("CREATE TABLE t (id integer)", "INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.errors.UndefinedTable, match=f'relation "{name}" does not exist'):
        _read(lake, "catalog", name)
