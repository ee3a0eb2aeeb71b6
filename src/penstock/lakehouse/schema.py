"""The schema of a relation as a Delta table: columns, names, types, key.

A ``TableSchema`` is made from a publisher's Relation or a Delta table's metadata, and written as
Arrow schema and as Delta's schema JSON (protocol: "Schema Serialization Format"). ``pgtypes`` maps
PostgreSQL's types, ``names`` maps names, ``schema_changes`` decides how a table follows a change.

The publisher's column name and type stay in a field's metadata ("penstock.source", "penstock.type"
= "type oid,typmod"); the key is the table property "penstock.key".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lakehouse.names import column_names
from penstock.pgtypes.variant import VARIANT
from penstock.relation import Relation, ReplicaIdentity

SOURCE: Final = "penstock.source"
TYPE: Final = "penstock.type"
KEY: Final = "penstock.key"
LOCAL: Final = "penstock.local"
"""Metadata: CREATE TABLE on the node has made the column, whether or not it is published."""
PRIMARY: Final = "penstock.primary"
"""Metadata: the column is part of the PRIMARY KEY of CREATE TABLE on the node."""
PUBLISHED: Final = "penstock.published"
"""Metadata: a column that the node has made is published, too."""
DEFAULT: Final = "penstock.default"
"""Metadata: the default of a column that the node has made (``defaults``)."""
UNFILLED: Final = "penstock.unfilled"
"""Property: columns that were added later; older rows lack the publisher's values there."""
DROPPED: Final = "penstock.dropped"
"""Property: columns (PostgreSQL's names) that DROP COLUMN on the node has removed; a subscription
does not add them again."""
GENERATED: Final = "penstock.generated"
"""Metadata: the expression that computes a column's values from the row's other values."""
VIRTUAL: Final = "penstock.virtual"
"""Metadata: the generated column is VIRTUAL to PostgreSQL; files have its values nevertheless."""
NOT_NULL: Final = "penstock.notNull"
"""Metadata: sessions of the node put no NULL into the column. Delta does not know of it."""
STAMP: Final = "penstock.stamp"
"""Metadata: the column records which change wrote its row (``metadata_columns``)."""
DELETED_AT: Final = "_deleted_at"
"""The column that records when the publisher deleted a row (``soft_delete``)."""
AS_TEXT: Final = "penstock.text"
"""Metadata: the column has the texts of the publisher's values (out_of_range = text)."""
GENERATION: Final = "delta.generationExpression"
"""Metadata: the Spark expression of a column that Delta generates."""
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
"""Metadata: a column's name in the data files."""
FOREIGN_TYPES: Final = 1 << 31
"""A number added to the oid of a publisher's user-defined type, so that it is not taken for a type
of the node."""
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata: a column is CHAR or VARCHAR to Spark, which checks the length of what it writes."""
FIRST_NORMAL_OID: Final = 16384
"""FirstNormalObjectId (transam.h): the first oid of user-defined types."""
_FOREIGN_METADATA: Final = (
    "delta.invariants",
    GENERATION,
    "delta.identity.start",
    "delta.columnMapping.id",
)


@dataclass(frozen=True)
class Column:
    """A column: its name in Delta, its attribute in PostgreSQL, its Arrow type.

    ``attribute``: the publisher's, or that of CREATE TABLE on the node; its type is 0 if another
    writer has made the column. ``local``: CREATE TABLE on the node has made the column, so a
    publication may lack it; ``primary``: it is part of the PRIMARY KEY there; ``published``: a
    publication has it. ``stamp``: it records which change wrote the row. ``as_text``: a
    subscription has made it text, because the type here cannot hold all of PostgreSQL's values.
    """

    name: str
    attribute: Attribute
    type: pa.DataType
    local: bool = False
    published: bool = False
    primary: bool = False
    stamp: bool = False
    as_text: bool = False

    @property
    def source(self) -> str:
        """The column's name in PostgreSQL."""
        return self.attribute.name

    @property
    def converts(self) -> bool:
        """Return whether the column's type may differ from the publisher's, whose values are then
        converted (``conversion``)."""
        return self.own or self.as_text or self.type == VARIANT

    @property
    def own(self) -> bool:
        """Return whether the column was made, and its type chosen, by anyone but a subscription."""
        return self.local or (not self.attribute.type_oid and self != ROW)


ROW: Final = Column("penstock_row", Attribute("", 0), pa.bool_())
"""The column of tables without columns, always NULL: without a column a Delta table has no rows.
No column of PostgreSQL has its empty name, so nobody sends or sees it."""


@dataclass(frozen=True)
class TableSchema:
    """Columns in the order of the Delta table. ``key``: Delta names; () = no key (a multiset)."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @classmethod
    def of_relation(cls, relation: Relation, key: Sequence[str] | None = None) -> TableSchema:
        """Return the schema that a published relation gets.

        ``key``: names at the publisher; by default the replica identity's columns, and none for
        REPLICA IDENTITY FULL and NOTHING. Raises PenstockError if a key column is not published.
        """
        names = column_names(a.name for a in relation.attributes)
        columns = tuple(
            Column(names[a.name], replace(a, key=False), pgtypes.arrow_type(a.type_oid, a.typmod))
            for a in relation.attributes
        )
        if key is None:
            keyless = relation.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING)
            key = () if keyless else relation.key
        missing = [source for source in key if source not in names]
        if missing:
            raise PenstockError(f'key column "{missing[0]}" is not among the published columns')
        return cls(columns, tuple(names[source] for source in key))

    @classmethod
    def of_delta(cls, schema_json: str, properties: Mapping[str, str]) -> TableSchema:
        """Return the schema of an existing table. Raises FeatureNotSupported for columns that we
        cannot write."""
        columns = tuple(_column(field) for field in json.loads(schema_json)["fields"])
        key = json.loads(properties.get(KEY, "[]"))
        return cls(columns, tuple(key))

    @cached_property
    def by_source(self) -> Mapping[str, Column]:
        """Columns by their names at the publisher."""
        return {column.source: column for column in self.columns}

    @property
    def has_own_key(self) -> bool:
        """Return whether there is a key, and CREATE TABLE on the node has made all its columns."""
        local = {column.name for column in self.columns if column.local}
        return bool(self.key) and local.issuperset(self.key)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The PRIMARY KEY that CREATE TABLE on the node had, by its names at the publisher."""
        return tuple(column.source for column in self.columns if column.primary)

    @property
    def source_key(self) -> tuple[str, ...]:
        """The key by its names at the publisher."""
        sources = {column.name: column.source for column in self.columns}
        return tuple(sources[name] for name in self.key)

    @property
    def identity(self) -> tuple[str, ...]:
        """Delta names of the columns that identify rows: the key; without a key all columns except
        stamps and generated columns, which follow from the others (tuples_equal)."""
        return self.key or tuple(
            c.name for c in self.columns if c.attribute.generation is None and not c.stamp
        )

    @property
    def stamps(self) -> tuple[Column, ...]:
        """The columns that record which change wrote a row."""
        return tuple(column for column in self.columns if column.stamp)

    @property
    def deleted_at(self) -> str | None:
        """Delta name of the column that is NULL in live rows, if the table has it. Dead rows are
        never found by a search."""
        return next((c.name for c in self.stamps if c.source == DELETED_AT), None)

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """(name at the publisher, name in Delta) of the columns whose names differ."""
        return tuple((c.source, c.name) for c in self.columns if c.source != c.name)

    @property
    def needs_timestamp_ntz(self) -> bool:
        """Return whether the table needs the feature timestampNtz."""
        return any(has_timestamp_ntz(column.type) for column in self.columns)

    @property
    def has_variants(self) -> bool:
        """Return whether the table needs the feature variantType."""
        return any(column.type == VARIANT for column in self.columns)

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema of complete rows: Delta names, all nullable."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def delta_json(self) -> str:
        """Return the value of metaData.schemaString."""
        return json.dumps({"type": "struct", "fields": [_field(c) for c in self.columns]})

    def with_row(self) -> TableSchema:
        """Return this schema, with the column ``ROW`` if it has none."""
        return self if self.columns else TableSchema((ROW,))

    def with_columns(self, added: Sequence[Column]) -> TableSchema:
        """Return this schema with columns appended."""
        return TableSchema((*self.columns, *added), self.key)

    def without(self, dropped: Collection[str]) -> TableSchema:
        """Return this schema without some columns (Delta names). A key with one of them is dropped,
        too."""
        columns = tuple(column for column in self.columns if column.name not in dropped)
        return TableSchema(columns, () if set(dropped) & set(self.key) else self.key)

    def taken(self) -> TableSchema:
        """Return this schema for a subscription that finds the table: another writer's columns
        count as the table's own, like those of CREATE TABLE on the node."""
        columns = tuple(replace(c, local=True) if c.own else c for c in self.columns)
        return TableSchema(columns, self.key)

    def with_published(self, sources: Collection[str]) -> TableSchema:
        """Return this schema; its own columns among ``sources`` are marked as published."""
        columns = tuple(
            replace(c, published=True) if c.local and c.source in sources else c
            for c in self.columns
        )
        return TableSchema(columns, self.key)

    def as_leaf_of(self, root: TableSchema) -> TableSchema:
        """Return this schema of an empty partition, adapted to its root. Columns that a
        subscription has made get the root's types, or are dropped if the root lacks them."""
        made = {column.source: column for column in root.columns if not column.own}
        columns = tuple(
            replace(c, attribute=c.attribute.of_type(m.attribute), type=m.type, as_text=m.as_text)
            if (m := made.get(c.source)) is not None
            else c
            for c in self.columns
            if c.own or c.source in root.by_source
        )
        names = {column.name for column in columns}
        return TableSchema(columns, self.key if names.issuperset(self.key) else ())

    def with_not_null(self, not_null: Mapping[str, bool]) -> TableSchema:
        """Return this schema with NOT NULL set or cleared, by columns' names at the publisher."""
        columns = (
            replace(c, attribute=replace(c.attribute, not_null=not_null[c.source]))
            if c.source in not_null
            else c
            for c in self.columns
        )
        return TableSchema(tuple(columns), self.key)

    def with_primary_key(self, sources: Collection[str]) -> TableSchema:
        """Return this schema with another PRIMARY KEY of the node, which becomes the key of its
        rows. If ``sources`` is empty, the present key stays."""
        columns = tuple(replace(c, primary=c.source in sources) for c in self.columns)
        names = {column.source: column.name for column in columns}
        return TableSchema(columns, tuple(names[source] for source in sources) or self.key)

    def lacking(self, wanted: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of ``wanted`` that this schema lacks, with the names they get here."""
        taken = {column.source: column.name for column in self.columns}
        names = column_names([c.source for c in wanted], taken)
        return tuple(
            Column(
                names[c.source],
                Attribute(c.source, c.attribute.type_oid, c.attribute.typmod),
                c.type,
                local=c.stamp,
                stamp=c.stamp,
                as_text=c.as_text,
            )
            for c in wanted
            if c.source not in taken
        )


def check_lengths(schema_json: str) -> None:
    """Raise FeatureNotSupported if Spark limits the length of a column's texts. A publisher's rows
    respect the limit; rows of sessions may exceed it."""
    if _LENGTH in schema_json:
        raise FeatureNotSupported("Spark keeps texts of the table to a length")


def attribute_of(field: Mapping[str, Any], pair: tuple[int, int]) -> Attribute:
    """Return the attribute that a field of Delta's schema records. ``pair``: (type oid, typmod).

    Its ``generation`` is set only if the node generates the column: Delta's own expressions are not
    PostgreSQL's.
    """
    metadata = field.get("metadata") or {}
    return Attribute(
        metadata.get(SOURCE, field["name"]),
        *pair,
        not_null=field.get("nullable") is False or metadata.get(NOT_NULL) == "true",
        generated=_attgenerated(metadata),
        default=metadata.get(DEFAULT),
        generation=metadata.get(GENERATED),
    )


def _attgenerated(metadata: Mapping[str, Any]) -> AttGenerated:
    """Return how the node or Delta's writers generate a column, if they do."""
    if metadata.get(VIRTUAL) == "true":
        return AttGenerated.VIRTUAL
    generated = GENERATED in metadata or GENERATION in metadata
    return AttGenerated.STORED if generated else AttGenerated.NOT


def recorded_type(metadata: Mapping[str, Any]) -> tuple[int, int]:
    """Return (type oid, typmod) in a field's metadata, (0, -1) if it has none.

    An oid from 16384 on is a type of the node if CREATE TABLE has made the column. In other columns
    it is a type of the publisher, and FOREIGN_TYPES is added.
    """
    oid, typmod = _stored_type(metadata)
    foreign = oid >= FIRST_NORMAL_OID and metadata.get(LOCAL) != "true"
    return oid | (FOREIGN_TYPES if foreign else 0), typmod


def _stored_type(metadata: Mapping[str, Any]) -> tuple[int, int]:
    oid, _, typmod = str(metadata.get(TYPE, "0,-1")).partition(",")
    return int(oid), int(typmod or -1)


def own_types(schema_json: str) -> set[int]:
    """Return the oids of columns' user-defined types (``recorded_type``)."""
    fields = json.loads(schema_json)["fields"]
    found = {recorded_type(field.get("metadata") or {})[0] for field in fields}
    return {oid for oid in found if oid >= FIRST_NORMAL_OID}


def alter_schema_json(schema_json: str, kept: Sequence[Column], added: Sequence[Column]) -> str:
    """Return a table's schema JSON with only ``kept`` of its columns, and with ``added`` appended.
    Other metadata in it, such as comments, stays."""
    schema = json.loads(schema_json)
    fields = {field["name"]: field for field in schema["fields"]}
    schema["fields"] = [
        *(_marked(fields[column.name], column) for column in kept),
        *(_field(column) for column in added),
    ]
    return json.dumps(schema)


def _marked(field: dict[str, Any], column: Column) -> dict[str, Any]:
    if column.published:
        field["metadata"][PUBLISHED] = "true"
    if column.local:
        field["metadata"][LOCAL] = "true"
    for name, said in ((PRIMARY, column.primary), (NOT_NULL, column.attribute.not_null)):
        field["metadata"].pop(name, None)
        if said:
            field["metadata"][name] = "true"
    return field


def _field(column: Column) -> dict[str, Any]:
    own = column.attribute
    metadata = {SOURCE: own.name}
    if own.type_oid:
        metadata[TYPE] = f"{own.type_oid},{own.typmod}"
    if column.local:
        metadata[LOCAL] = "true"
    if column.published:
        metadata[PUBLISHED] = "true"
    if column.primary:
        metadata[PRIMARY] = "true"
    if own.default is not None:
        metadata[DEFAULT] = own.default
    if own.generation is not None:
        metadata[GENERATED] = own.generation
    if own.generated is AttGenerated.VIRTUAL:
        metadata[VIRTUAL] = "true"
    if column.stamp:
        metadata[STAMP] = "true"
    if column.as_text:
        metadata[AS_TEXT] = "true"
    if own.not_null:
        metadata[NOT_NULL] = "true"
    return {
        "name": column.name,
        "type": delta_type(column.type),
        "nullable": True,
        "metadata": metadata,
    }


def _column(field: Mapping[str, Any]) -> Column:
    metadata = field.get("metadata") or {}
    foreign = [key for key in _FOREIGN_METADATA if key in metadata]
    if foreign:
        raise FeatureNotSupported(
            f'column "{field["name"]}" has {foreign[0]}, which replication does not maintain'
        )
    if field.get("nullable") is False:
        raise FeatureNotSupported(
            f'column "{field["name"]}" is NOT NULL, which replication does not check',
            hint=f"ALTER TABLE ... ALTER COLUMN {field['name']} DROP NOT NULL",
        )
    return Column(
        field["name"],
        attribute_of(field, _stored_type(metadata)),
        arrow_type(field["type"]),
        local=metadata.get(LOCAL) == "true",
        published=metadata.get(PUBLISHED) == "true",
        primary=metadata.get(PRIMARY) == "true",
        stamp=metadata.get(STAMP) == "true",
        as_text=metadata.get(AS_TEXT) == "true",
    )


# Conversion between Arrow types and the types in Delta's schema JSON, the value of a field's "type"
# (protocol: "Schema Serialization Format"). ``penstock.pgtypes`` maps PostgreSQL's types.

TIMESTAMP: Final = pa.timestamp("us", "UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    VARIANT: "variant",
}
_TYPES: Final = {name: arrow for arrow, name in _NAMES.items()}
_DECIMAL: Final = re.compile(r"^decimal\((\d+),\s*(\d+)\)$")


def delta_type(arrow: pa.DataType) -> Any:
    """Return Delta's type of an Arrow type: a string, or an object for arrays. Raises
    FeatureNotSupported."""
    name = _NAMES.get(arrow)
    if name is not None:
        return name
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_list(arrow) and arrow.value_type != VARIANT:
        element = delta_type(arrow.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    raise FeatureNotSupported(f"Delta tables have no type for Arrow's {arrow}")


def arrow_type(delta: Any) -> pa.DataType:
    """Return the Arrow type of Delta's type. Raises FeatureNotSupported for structs, maps and
    arrays of variants."""
    if isinstance(delta, dict) and delta.get("type") == "array":
        element = arrow_type(delta["elementType"])
        if element != VARIANT:
            return pa.list_(element)
    if isinstance(delta, str):
        if delta in _TYPES:
            return _TYPES[delta]
        match = _DECIMAL.match(delta)
        if match is not None:
            return pa.decimal128(int(match[1]), int(match[2]))
    raise FeatureNotSupported(f"columns of Delta's type {type_text(delta)} cannot be written")


def type_text(delta: Any) -> str:
    """Return a type as Spark SQL prints it, for messages: ``array<integer>``."""
    if isinstance(delta, dict):
        if delta.get("type") == "array":
            return f"array<{type_text(delta['elementType'])}>"
        return str(delta.get("type"))
    return str(delta)


def has_timestamp_ntz(arrow: pa.DataType) -> bool:
    """Return whether a column of this type needs the table feature timestampNtz."""
    if pa.types.is_list(arrow):
        return has_timestamp_ntz(arrow.value_type)
    return bool(arrow == TIMESTAMP_NTZ)
