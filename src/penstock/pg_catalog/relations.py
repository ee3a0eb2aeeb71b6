"""Objects derived from lake tables: schemas' oids, and indexes and constraints for keys.

The catalogs' rows are made from these objects. A lake table has no index; where PostgreSQL's
catalogs need an index (primary key, replica identity), one is shown with an oid of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.attribute import TupleDesc
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable
from penstock.relation import ReplicaIdentity

PG_CATALOG: Final = 11
PUBLIC: Final = 2200
INFORMATION_SCHEMA: Final = 12000
_SCHEMA_OIDS: Final = 1 << 28
_PRIMARY_OIDS: Final = 1 << 30
_IDENTITY_OIDS: Final = 2 << 30
_CONSTRAINT_OIDS: Final = 3 << 30
_COMING_OIDS: Final = 3 << 30 | 3 << 28
_COMING: Final = (1 << 28) - 1
"""The mask of the oids for tables that do not exist yet; these oids begin at 3 << 30 | 3 << 28, the
last part of all oids."""
FIXED_SCHEMAS: Final[Mapping[str, int]] = {
    "pg_catalog": PG_CATALOG,
    "public": PUBLIC,
    "information_schema": INFORMATION_SCHEMA,
}


CATALOG_OIDS: Final[Mapping[str, int]] = {
    "pg_default_acl": 826,
    "pg_tablespace": 1213,
    "pg_shdepend": 1214,
    "pg_type": 1247,
    "pg_attribute": 1249,
    "pg_proc": 1255,
    "pg_class": 1259,
    "pg_authid": 1260,
    "pg_auth_members": 1261,
    "pg_database": 1262,
    "pg_foreign_server": 1417,
    "pg_user_mapping": 1418,
    "pg_sequence": 2224,
    "pg_foreign_data_wrapper": 2328,
    "pg_shdescription": 2396,
    "pg_aggregate": 2600,
    "pg_am": 2601,
    "pg_amop": 2602,
    "pg_amproc": 2603,
    "pg_attrdef": 2604,
    "pg_cast": 2605,
    "pg_constraint": 2606,
    "pg_conversion": 2607,
    "pg_depend": 2608,
    "pg_description": 2609,
    "pg_index": 2610,
    "pg_inherits": 2611,
    "pg_language": 2612,
    "pg_largeobject": 2613,
    "pg_namespace": 2615,
    "pg_opclass": 2616,
    "pg_operator": 2617,
    "pg_rewrite": 2618,
    "pg_statistic": 2619,
    "pg_trigger": 2620,
    "pg_opfamily": 2753,
    "pg_db_role_setting": 2964,
    "pg_largeobject_metadata": 2995,
    "pg_extension": 3079,
    "pg_foreign_table": 3118,
    "pg_policy": 3256,
    "pg_partitioned_table": 3350,
    "pg_statistic_ext": 3381,
    "pg_init_privs": 3394,
    "pg_statistic_ext_data": 3429,
    "pg_collation": 3456,
    "pg_event_trigger": 3466,
    "pg_enum": 3501,
    "pg_range": 3541,
    "pg_transform": 3576,
    "pg_shseclabel": 3592,
    "pg_seclabel": 3596,
    "pg_ts_dict": 3600,
    "pg_ts_parser": 3601,
    "pg_ts_config": 3602,
    "pg_ts_config_map": 3603,
    "pg_ts_template": 3764,
    "pg_replication_origin": 6000,
    "pg_subscription": 6100,
    "pg_subscription_rel": 6102,
    "pg_publication": 6104,
    "pg_publication_rel": 6106,
    "pg_publication_namespace": 6237,
    "pg_parameter_acl": 6243,
}
"""The oids of the catalogs themselves, for regclass; they have no rows in pg_class."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index that stands for a key. ``columns``: in the key's order. ``constraint``: it belongs
    to UNIQUE or PRIMARY KEY. ``partition``: it is a partition of a partitioned table's index."""

    oid: int
    name: str
    table: CatalogTable
    columns: tuple[str, ...]
    primary: bool
    replica_identity: bool
    constraint: bool = False
    partition: bool = False

    @property
    def numbers(self) -> list[int]:
        """The column numbers, as pg_index.indkey."""
        return [self.table.columns.number(column) or 0 for column in self.columns]

    @property
    def constraint_oid(self) -> int:
        """The pg_constraint.oid of a constraint."""
        return _CONSTRAINT_OIDS + (self.table.oid if self.primary else self.oid)


def coming_tables(snapshot: CatalogSnapshot) -> Mapping[int, tuple[str, str]]:
    """Return subscriptions' tables that do not exist yet, by oids that no other relation has."""
    there = {(table.lake.schema, table.lake.name) for table in snapshot.tables}
    found: dict[int, tuple[str, str]] = {}
    for row in snapshot.subscription_rels:
        if row.table_name in there or row.table_name in found.values():
            continue
        number = zlib.crc32(row.qualified_name.encode()) & _COMING
        while _COMING_OIDS + number in found:
            number = (number + 1) & _COMING
        found[_COMING_OIDS + number] = row.table_name
    return found


def relation_oids(snapshot: CatalogSnapshot) -> Mapping[tuple[str, str], int]:
    """Return the oids of tables by schema and name, also of those that do not exist yet."""
    oids = {(table.lake.schema, table.lake.name): table.oid for table in snapshot.tables}
    return oids | {name: oid for oid, name in coming_tables(snapshot).items()}


def schema_oids(snapshot: CatalogSnapshot) -> dict[str, int]:
    """Return the oids of all schemas: the same for the same name, unless two names collide."""
    names = {table.lake.schema for table in snapshot.tables} | set(snapshot.schemas)
    names |= {row.schema for row in snapshot.publication_namespaces}
    out = dict(FIXED_SCHEMAS)
    taken = set(out.values())
    for name in sorted(names - set(out)):
        oid = _SCHEMA_OIDS + zlib.crc32(name.encode()) % _SCHEMA_OIDS
        while oid in taken:
            oid += 1
        taken.add(oid)
        out[name] = oid
    return out


def with_parents_columns(snapshot: CatalogSnapshot) -> CatalogSnapshot:
    """Give partitioned parents without columns of their own the columns of their partitions."""
    tables = tuple(
        replace(table, columns=_columns_below(snapshot, table.oid))
        if is_partitioned(table) and not table.columns
        else table
        for table in snapshot.tables
    )
    return snapshot if tables == snapshot.tables else replace(snapshot, tables=tables)


def _columns_below(snapshot: CatalogSnapshot, oid: int) -> TupleDesc:
    for child, _ in descendants(snapshot, oid):
        table = snapshot.table_by_oid.get(child)
        if table is not None and table.columns:
            return table.columns
    return TupleDesc()


def indexes(table: CatalogTable) -> tuple[Index, ...]:
    """Return the indexes that stand for a table's keys, primary key first.

    A key whose columns are gone, or cannot be read, has no index.
    """
    return tuple(index for index in _keys(table) if all(index.numbers))


def _keys(table: CatalogTable) -> tuple[Index, ...]:
    lake = table.lake
    by_key = lake.replica_identity is ReplicaIdentity.INDEX
    out: list[Index] = []
    if lake.primary_key:
        chosen = any(index.replica_identity for index in lake.indexes)
        same = by_key and lake.identity_key == lake.primary_key and not chosen
        name = lake.primary_key_name
        key, part = lake.primary_key, lake.parent is not None
        out.append(Index(_PRIMARY_OIDS + lake.oid, name, table, key, True, same, True, part))
    for own in lake.indexes:
        chosen, part = by_key and own.replica_identity, own.parent is not None
        index = Index(own.oid, own.name, table, own.columns, False, chosen, own.constraint, part)
        out.append(index)
    if any(index.replica_identity for index in out):
        return tuple(out)
    if by_key and lake.identity_key:
        name = "_".join((lake.name, *lake.identity_key, "idx"))
        out.append(Index(_IDENTITY_OIDS + lake.oid, name, table, lake.identity_key, False, True))
    return tuple(out)


def replica_identity_index(table: CatalogTable) -> Index | None:
    """Return the index of the replica identity, or the primary key's (RelationGetReplicaIndex)."""
    match table.lake.replica_identity:
        case ReplicaIdentity.INDEX:
            return next((i for i in indexes(table) if i.replica_identity), None)
        case ReplicaIdentity.DEFAULT:
            return next((i for i in indexes(table) if i.primary), None)
    return None


def not_null_columns(table: CatalogTable) -> frozenset[str]:
    """Return the columns that hold no NULL: columns of keys, and those declared NOT NULL."""
    found = [index for index in indexes(table) if index.primary or index.replica_identity]
    keys = {column for index in found for column in index.columns}
    return frozenset(keys | {column.name for column in table.columns if column.not_null})


def ancestors(snapshot: CatalogSnapshot, oid: int) -> tuple[int, ...]:
    """Return a partition's parents, nearest first (get_partition_ancestors)."""
    out: list[int] = []
    table = snapshot.table_by_oid.get(oid)
    while table is not None and table.lake.parent is not None and table.lake.parent not in out:
        out.append(table.lake.parent)
        table = snapshot.table_by_oid.get(table.lake.parent)
    return tuple(out)


def descendants(snapshot: CatalogSnapshot, oid: int) -> tuple[tuple[int, int], ...]:
    """Return (oid, depth) of a table and all its partitions, from the top down
    (find_all_inheritors)."""
    out = [(oid, 0)]
    for parent, depth in out:
        children = (t.oid for t in snapshot.tables if t.lake.parent == parent)
        out += [(child, depth + 1) for child in sorted(children) if (child, depth + 1) not in out]
    return tuple(out)


def is_partitioned(table: CatalogTable) -> bool:
    """Tell whether the table is a partitioned parent (relkind p)."""
    return table.lake.partition_key is not None
