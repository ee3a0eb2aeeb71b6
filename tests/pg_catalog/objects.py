"""The same objects twice: as SQL for a PostgreSQL server, and as a snapshot of a node.

Oids of the snapshot are the server's where there is one, so that rows can be compared as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.attribute import AttGenerated, Attribute, TupleDesc
from penstock.catalog.pg_authid import Role
from penstock.catalog.pg_class import LakeTable
from penstock.catalog.pg_publication import Publication, PublicationNamespace, PublicationRel
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.lsn import Lsn
from penstock.pg_catalog import (
    CatalogSnapshot,
    CatalogTable,
    SessionFacts,
)
from penstock.relation import ReplicaIdentity

SETUP = """
CREATE SCHEMA shop;
CREATE TABLE t1 (a int PRIMARY KEY, b text, c varchar(20));
CREATE TABLE t2 (a int, b numeric(10,2), "Weird Name" text, PRIMARY KEY (a, b));
CREATE TABLE t3 (x timestamptz, y text[], z bytea);
ALTER TABLE t3 REPLICA IDENTITY FULL;
CREATE TABLE t4 (a int NOT NULL, b char(3) NOT NULL, c timestamp(3));
CREATE UNIQUE INDEX t4_a_b_idx ON t4 (a, b);
ALTER TABLE t4 REPLICA IDENTITY USING INDEX t4_a_b_idx;
CREATE TABLE shop.orders (id bigint PRIMARY KEY, at timestamp, total double precision, ok boolean);
CREATE TABLE shop."Odd Table" (id bigint);
ALTER TABLE shop."Odd Table" REPLICA IDENTITY NOTHING;
CREATE TABLE gen (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a * 2) STORED, b text);
CREATE TABLE part (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE PUBLICATION p_all FOR ALL TABLES;
CREATE PUBLICATION p_all_root FOR ALL TABLES WITH (publish_via_partition_root = true);
CREATE PUBLICATION p_t FOR TABLE t1, t2, gen WITH (publish = 'insert, update');
CREATE PUBLICATION p_part FOR TABLE part;
CREATE PUBLICATION p_root FOR TABLE part, part_1 WITH (publish_via_partition_root = true);
CREATE PUBLICATION p_leaf FOR TABLE part_1;
CREATE PUBLICATION "P 'Odd'";
CREATE SUBSCRIPTION s1 CONNECTION 'host=nowhere' PUBLICATION pub1, "Pub 2"
    WITH (connect = false, slot_name = s1_slot, streaming = off);
"""
SETUP_15 = """
CREATE PUBLICATION p_f FOR TABLE t1 (b, a) WHERE (a > 5 AND c = 'NSW'),
    shop.orders WHERE (total > 1.5) WITH (publish = 'insert');
CREATE PUBLICATION p_f2 FOR TABLE t1 (a, b) WHERE (a < 3);
CREATE PUBLICATION p_s FOR TABLES IN SCHEMA shop;
CREATE PUBLICATION p_s2 FOR TABLE t1 WHERE (a = 1), TABLES IN SCHEMA shop;
CREATE PUBLICATION p_l FOR TABLE t1 (a), gen (a, b), part;
CREATE PUBLICATION p_list_all FOR TABLE t1 (a, b, c);
"""
SETUP_18 = """
CREATE PUBLICATION p_gen FOR TABLE gen WITH (publish_generated_columns = stored);
"""
GRANTS = "GRANT SELECT ON t1 TO alice;"
ROLES = """
CREATE ROLE alice LOGIN REPLICATION PASSWORD 'secret' CONNECTION LIMIT 3;
CREATE ROLE bob NOLOGIN;
"""

_INT4, _INT8, _TEXT = 23, 20, 25
_NUMERIC_10_2 = ((10 << 16) | 2) + 4
_COLUMNS: dict[str, tuple[Attribute, ...]] = {
    "public.t1": (
        Attribute("a", _INT4),
        Attribute("b", _TEXT),
        Attribute("c", 1043, 24),
    ),
    "public.t2": (
        Attribute("a", _INT4),
        Attribute("b", 1700, _NUMERIC_10_2),
        Attribute("Weird Name", _TEXT),
    ),
    "public.t3": (Attribute("x", 1184), Attribute("y", 1009), Attribute("z", 17)),
    "public.t4": (
        Attribute("a", _INT4),
        Attribute("b", 1042, 7),
        Attribute("c", 1114, 3),
    ),
    "shop.orders": (
        Attribute("id", _INT8),
        Attribute("at", 1114),
        Attribute("total", 701),
        Attribute("ok", 16),
    ),
    "shop.Odd Table": (Attribute("id", _INT8),),
    "public.gen": (
        Attribute("a", _INT4),
        Attribute("g", _INT4, generated=AttGenerated.STORED, generation="(a * 2)"),
        Attribute("b", _TEXT),
    ),
    "public.part": (Attribute("a", _INT4), Attribute("b", _TEXT)),
    "public.part_1": (Attribute("a", _INT4), Attribute("b", _TEXT)),
    "public.part_2": (Attribute("a", _INT4), Attribute("b", _TEXT)),
}
_FACTS: dict[str, dict[str, Any]] = {
    "public.t1": {"primary_key": ("a",)},
    "public.t2": {"primary_key": ("a", "b")},
    "public.t3": {"replica_identity": ReplicaIdentity.FULL},
    "public.t4": {"replica_identity": ReplicaIdentity.INDEX, "identity_key": ("a", "b")},
    "shop.orders": {"primary_key": ("id",)},
    "shop.Odd Table": {"replica_identity": ReplicaIdentity.NOTHING},
    "public.gen": {"primary_key": ("a",)},
    "public.part": {"primary_key": ("a",), "partition_key": "RANGE (a)"},
    "public.part_1": {"primary_key": ("a",), "bound": "FOR VALUES FROM (0) TO (10)"},
    "public.part_2": {"primary_key": ("a",), "bound": "FOR VALUES FROM (10) TO (20)"},
}
_PUBLICATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "p_all": (14, {"all_tables": True}),
    "p_all_root": (14, {"all_tables": True, "via_root": True}),
    "p_t": (14, {"delete": False, "truncate": False}),
    "p_part": (14, {}),
    "p_root": (14, {"via_root": True}),
    "p_leaf": (14, {}),
    "P 'Odd'": (14, {}),
    "p_f": (15, {"update": False, "delete": False, "truncate": False}),
    "p_f2": (15, {}),
    "p_s": (15, {}),
    "p_s2": (15, {}),
    "p_l": (15, {}),
    "p_list_all": (15, {}),
    "p_gen": (18, {"generated_columns": "s"}),
}
_MEMBERS: list[tuple[str, str, tuple[str, ...] | None, str | None]] = [
    ("p_t", "public.t1", None, None),
    ("p_t", "public.t2", None, None),
    ("p_t", "public.gen", None, None),
    ("p_part", "public.part", None, None),
    ("p_root", "public.part", None, None),
    ("p_root", "public.part_1", None, None),
    ("p_leaf", "public.part_1", None, None),
    ("p_f", "public.t1", ("b", "a"), "((a > 5) AND ((c)::text = 'NSW'::text))"),
    ("p_f", "shop.orders", None, "(total > (1.5)::double precision)"),
    ("p_f2", "public.t1", ("a", "b"), "(a < 3)"),
    ("p_s2", "public.t1", None, "(a = 1)"),
    ("p_l", "public.t1", ("a",), None),
    ("p_l", "public.gen", ("a", "b"), None),
    ("p_l", "public.part", None, None),
    ("p_list_all", "public.t1", ("a", "b", "c"), None),
    ("p_gen", "public.gen", None, None),
]
_SCHEMAS = [("p_s", "shop"), ("p_s2", "shop")]


def setup(version: int) -> str:
    """What makes the objects on a server of that version; ROLES not included."""
    return SETUP + (SETUP_15 if version >= 15 else "") + (SETUP_18 if version >= 18 else "")


def publication_names(version: int) -> list[str]:
    """Publications that there are at a version."""
    return [name for name, (since, _) in _PUBLICATIONS.items() if version >= since]


def snapshot(version: int = 18, oids: Mapping[str, int] | None = None) -> CatalogSnapshot:
    """The objects as a node has them. ``oids``: of relations, publications, roles by name."""
    numbers = {
        name: 16384 + n for n, name in enumerate((*_COLUMNS, *_PUBLICATIONS, "alice", "bob"))
    }
    numbers |= {"postgres": 10, "s1": 17000, "database": 5} | dict(oids or {})
    present = set(publication_names(version))
    rels = tuple(
        PublicationRel(18000 + n, numbers[publication], numbers[table], columns, row_filter)
        for n, (publication, table, columns, row_filter) in enumerate(_MEMBERS)
        if publication in present
    )
    schemas = tuple(
        PublicationNamespace(19000 + n, numbers[publication], schema)
        for n, (publication, schema) in enumerate(_SCHEMAS)
        if publication in present
    )
    return CatalogSnapshot(
        database="lake",
        roles=(
            Role(
                numbers["alice"],
                "alice",
                login=True,
                replication=True,
                connection_limit=3,
                verifier="SCRAM-SHA-256$4096:c2FsdA==$c3Q=:c2s=",
            ),
            Role(numbers["bob"], "bob"),
        ),
        tables=tuple(_table(name, numbers) for name in _COLUMNS),
        publications=tuple(
            Publication(numbers[name], name, **attributes)
            for name, (since, attributes) in _PUBLICATIONS.items()
            if version >= since
        ),
        publication_rels=rels,
        publication_namespaces=schemas,
        subscriptions=(
            Subscription(
                oid=numbers["s1"],
                name="s1",
                enabled=False,
                conninfo="host=nowhere",
                slot_name="s1_slot",
                publications=("pub1", "Pub 2"),
                app_id="app",
                streaming="off",
            ),
        ),
        owner="postgres",
        database_oid=numbers["database"],
    )


def _table(name: str, numbers: Mapping[str, int]) -> CatalogTable:
    schema, _, table = name.partition(".")
    facts = dict(_FACTS[name])
    if "bound" in facts:
        facts["parent"] = numbers["public.part"]
    uri = None if "partition_key" in facts else f"file:///lake/{schema}/{table}"
    return CatalogTable(
        LakeTable(numbers[name], schema, table, uri, **facts), TupleDesc(_COLUMNS[name])
    )


def subscribed(base: CatalogSnapshot, schema: str, table: str) -> tuple[SubscriptionRel, ...]:
    """One table that subscription s1 fills."""
    (subscription,) = base.subscriptions
    ready = SubscriptionRelState.READY
    return (SubscriptionRel(subscription.oid, schema, table, ready, Lsn(1), "x"),)


def session(version: int = 18, *, user: str = "postgres", superuser: bool = True) -> SessionFacts:
    """Who asks."""
    settings = {"server_version": f"{version}.0", "server_encoding": "UTF8"}
    return SessionFacts(user, "lake", version, settings, superuser=superuser, pid=7)
