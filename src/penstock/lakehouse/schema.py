"""A relation as a Delta table: columns, names, types, key.

In: a Relation of the publisher, or a Delta table's metadata. Out: TableSchema, as Arrow schema and
as Delta's schema JSON (protocol: "Schema Serialization Format"). What PostgreSQL's types become is
left to ``penstock.pgtypes``, what names become to ``names``, how a table may follow a change to
``schema_changes``.

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
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lakehouse.names import column_names
from penstock.pgtypes.variant import VARIANT
from penstock.relation import AttGenerated, Relation, ReplicaIdentity

SOURCE: Final = "penstock.source"
TYPE: Final = "penstock.type"
KEY: Final = "penstock.key"
LOCAL: Final = "penstock.local"
"""Metadata: the column was made by CREATE TABLE on the node, whatever is published."""
PRIMARY: Final = "penstock.primary"
"""Metadata: such a column is of the PRIMARY KEY that CREATE TABLE had."""
PUBLISHED: Final = "penstock.published"
"""Metadata: a publication has sent such a column."""
DEFAULT: Final = "penstock.default"
"""Metadata: such a column's default (``defaults``)."""
UNFILLED: Final = "penstock.unfilled"
"""Property: columns in which rows from before they were added lack the publisher's values."""
DROPPED: Final = "penstock.dropped"
"""Property: columns (PostgreSQL's names) that DROP COLUMN on the node has taken away; a
subscription does not bring them back."""
GENERATED: Final = "penstock.generated"
"""Metadata: such a column's expression, where its values are made of the others of the row."""
VIRTUAL: Final = "penstock.virtual"
"""Metadata: such a column is VIRTUAL to PostgreSQL; files have its values all the same."""
NOT_NULL: Final = "penstock.notNull"
"""Metadata: sessions of the node put no NULL there. Delta itself knows nothing of it."""
STAMP: Final = "penstock.stamp"
"""Metadata: such a column tells which change wrote its row (``metadata_columns``)."""
DELETED_AT: Final = "_deleted_at"
"""The column that says of a row that the publisher has deleted it (``soft_delete``)."""
AS_TEXT: Final = "penstock.text"
"""Metadata: such a column has the texts of the publisher's values (out_of_range = text)."""
GENERATION: Final = "delta.generationExpression"
"""Metadata of a column that Delta generates, by an expression of Spark's."""
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
"""Metadata: a column's name in the data files."""
FOREIGN_TYPES: Final = 1 << 31
"""Added to the oid of a type that a publisher's users made, so that it is none of the node's."""
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata: a column is CHAR or VARCHAR to Spark, which checks the length of what it writes."""
FIRST_NORMAL_OID: Final = 16384
"""FirstNormalObjectId (transam.h): from here on oids are of types that somebody has created."""
_FOREIGN_METADATA: Final = (
    "delta.invariants",
    GENERATION,
    "delta.identity.start",
    "delta.columnMapping.id",
)


@dataclass(frozen=True)
class Column:
    """One column: its name in Delta, its name and type at the publisher, its Arrow type.

    ``type_oid`` is 0 where the table was not created by us. ``local``: made by CREATE TABLE on the
    node, so that a publication may lack it; ``primary``: of its PRIMARY KEY there; ``published``:
    one has had it; ``default``: for rows without a value then. ``generated``: the expression, in
    PostgreSQL's words and names, that makes its values; ``virtual``: it is VIRTUAL to PostgreSQL.
    ``stamp``: it tells which change wrote its row. ``as_text``: a subscription has made it to have
    the texts of values that their own type here might not hold. ``not_null``: NOT NULL was said
    of it on the node.
    """

    name: str
    source: str
    type: pa.DataType
    type_oid: int = 0
    typmod: int = -1
    local: bool = False
    published: bool = False
    default: str | None = None
    generated: str | None = None
    virtual: bool = False
    primary: bool = False
    stamp: bool = False
    as_text: bool = False
    not_null: bool = False

    @property
    def converts(self) -> bool:
        """Whether it may be of another type than the publisher's, and have its values all the same
        (``conversion``)."""
        return self.own or self.as_text or self.type == VARIANT

    @property
    def own(self) -> bool:
        """Whether somebody else than a subscription has made it, who has chosen its type."""
        return self.local or (not self.type_oid and self != ROW)


ROW: Final = Column("penstock_row", "", pa.bool_())
"""Of tables without columns, whose rows have to be somewhere: NULL in each of them. No column of
PostgreSQL has its name there, so nobody sends or sees it."""


@dataclass(frozen=True)
class TableSchema:
    """Columns in the order of the Delta table. ``key``: Delta names; () = no key (a multiset)."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    @classmethod
    def of_relation(cls, relation: Relation, key: Sequence[str] | None = None) -> TableSchema:
        """The schema that a published relation gets.

        ``key``: names at the publisher; by default the replica identity's columns, and none for
        REPLICA IDENTITY FULL and NOTHING.
        """
        names = column_names(a.name for a in relation.attributes)
        columns = tuple(
            Column(
                name=names[a.name],
                source=a.name,
                type=pgtypes.arrow_type(a.type_oid, a.typmod),
                type_oid=a.type_oid,
                typmod=a.typmod,
            )
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
        """The schema of an existing table. Raises FeatureNotSupported for what we cannot write."""
        columns = tuple(_column(field) for field in json.loads(schema_json)["fields"])
        key = json.loads(properties.get(KEY, "[]"))
        return cls(columns, tuple(key))

    @cached_property
    def by_source(self) -> Mapping[str, Column]:
        """Columns by their names at the publisher."""
        return {column.source: column for column in self.columns}

    @property
    def has_own_key(self) -> bool:
        """Whether there is a key, of columns that CREATE TABLE on the node has made."""
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
        """Delta names of what tells rows apart: the key, or without one all columns but generated
        ones, which follow from the others (tuples_equal), and those that tell who wrote them."""
        return self.key or tuple(
            c.name for c in self.columns if c.generated is None and not c.stamp
        )

    @property
    def stamps(self) -> tuple[Column, ...]:
        """The columns that tell which change wrote a row."""
        return tuple(column for column in self.columns if column.stamp)

    @property
    def deleted_at(self) -> str | None:
        """Delta name of the column that is NULL in live rows, where some may be dead: rows are
        looked for among live ones."""
        return next((c.name for c in self.stamps if c.source == DELETED_AT), None)

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """(name at the publisher, name in Delta) of the columns where the two differ."""
        return tuple((c.source, c.name) for c in self.columns if c.source != c.name)

    @property
    def needs_timestamp_ntz(self) -> bool:
        """True when the table needs the feature timestampNtz."""
        return any(has_timestamp_ntz(column.type) for column in self.columns)

    @property
    def has_variants(self) -> bool:
        """True when the table needs the feature variantType."""
        return any(column.type == VARIANT for column in self.columns)

    def arrow(self) -> pa.Schema:
        """The Arrow schema of complete rows: Delta names, all nullable."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def delta_json(self) -> str:
        """The value of metaData.schemaString."""
        return json.dumps({"type": "struct", "fields": [_field(c) for c in self.columns]})

    def with_row(self) -> TableSchema:
        """This schema with a column, whatever it has."""
        return self if self.columns else TableSchema((ROW,))

    def with_columns(self, added: Sequence[Column]) -> TableSchema:
        """This schema with columns appended."""
        return TableSchema((*self.columns, *added), self.key)

    def without(self, dropped: Collection[str]) -> TableSchema:
        """This schema without some columns (Delta names); a key that has one of them goes too."""
        columns = tuple(column for column in self.columns if column.name not in dropped)
        return TableSchema(columns, () if set(dropped) & set(self.key) else self.key)

    def taken(self) -> TableSchema:
        """This schema, of a table that a subscription finds: what another writer has made is the
        table's own, as what CREATE TABLE on the node has."""
        columns = tuple(replace(c, local=True) if c.own else c for c in self.columns)
        return TableSchema(columns, self.key)

    def with_published(self, sources: Collection[str]) -> TableSchema:
        """This schema with those of its own columns marked that a publication has (names there)."""
        columns = tuple(
            replace(c, published=True) if c.local and c.source in sources else c
            for c in self.columns
        )
        return TableSchema(columns, self.key)

    def as_leaf_of(self, root: TableSchema) -> TableSchema:
        """This schema, of a partition without rows, where the root's columns that a subscription
        has made are of other types by now, or are gone."""
        made = {column.source: column for column in root.columns if not column.own}
        columns = tuple(
            replace(c, type=m.type, type_oid=m.type_oid, typmod=m.typmod, as_text=m.as_text)
            if (m := made.get(c.source)) is not None
            else c
            for c in self.columns
            if c.own or c.source in root.by_source
        )
        names = {column.name for column in columns}
        return TableSchema(columns, self.key if names.issuperset(self.key) else ())

    def with_not_null(self, not_null: Mapping[str, bool]) -> TableSchema:
        """This schema with NOT NULL said of columns, or not, by their names at the publisher."""
        columns = (replace(c, not_null=not_null.get(c.source, c.not_null)) for c in self.columns)
        return TableSchema(tuple(columns), self.key)

    def with_primary_key(self, sources: Collection[str]) -> TableSchema:
        """This schema with another PRIMARY KEY of the node's own, which is the key of its rows from
        then on. Without one, the key that rows are known by stays."""
        columns = tuple(replace(c, primary=c.source in sources) for c in self.columns)
        names = {column.source: column.name for column in columns}
        return TableSchema(columns, tuple(names[source] for source in sources) or self.key)

    def lacking(self, wanted: Sequence[Column]) -> tuple[Column, ...]:
        """Those of ``wanted`` that are not here, with the names that they get here."""
        taken = {column.source: column.name for column in self.columns}
        names = column_names([c.source for c in wanted], taken)
        return tuple(
            Column(
                *(names[c.source], c.source, c.type, c.type_oid, c.typmod),
                local=c.stamp,
                stamp=c.stamp,
                as_text=c.as_text,
            )
            for c in wanted
            if c.source not in taken
        )


def check_lengths(schema_json: str) -> None:
    """Raise FeatureNotSupported where Spark keeps the texts of a column to a length. Rows of a
    publisher have its lengths; those of sessions do not."""
    if _LENGTH in schema_json:
        raise FeatureNotSupported("Spark keeps texts of the table to a length")


def attgenerated(metadata: Mapping[str, Any]) -> AttGenerated:
    """Whether a column's values are made of others, by the node or by Delta's writers."""
    if metadata.get(VIRTUAL) == "true":
        return AttGenerated.VIRTUAL
    generated = GENERATED in metadata or GENERATION in metadata
    return AttGenerated.STORED if generated else AttGenerated.NOT


def recorded_type(metadata: Mapping[str, Any]) -> tuple[int, int]:
    """(type oid, typmod) that a field's metadata has, (0, -1) where it has none.

    Oids from 16384 on are the node's own types in columns that CREATE TABLE has made, and types of
    the publisher in all others.
    """
    oid, _, typmod = str(metadata.get(TYPE, "0,-1")).partition(",")
    foreign = int(oid) >= FIRST_NORMAL_OID and metadata.get(LOCAL) != "true"
    return int(oid) | (FOREIGN_TYPES if foreign else 0), int(typmod or -1)


def own_types(schema_json: str) -> set[int]:
    """Types of columns that are the node's, and not PostgreSQL's."""
    fields = json.loads(schema_json)["fields"]
    found = {recorded_type(field.get("metadata") or {})[0] for field in fields}
    return {oid for oid in found if oid >= FIRST_NORMAL_OID}


def alter_schema_json(schema_json: str, kept: Sequence[Column], added: Sequence[Column]) -> str:
    """A table's schema JSON with those of its columns that are kept, and with columns appended;
    what others wrote to the rest (comments) stays."""
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
    for name, said in ((PRIMARY, column.primary), (NOT_NULL, column.not_null)):
        field["metadata"].pop(name, None)
        if said:
            field["metadata"][name] = "true"
    return field


def _field(column: Column) -> dict[str, Any]:
    metadata = {SOURCE: column.source}
    if column.type_oid:
        metadata[TYPE] = f"{column.type_oid},{column.typmod}"
    if column.local:
        metadata[LOCAL] = "true"
    if column.published:
        metadata[PUBLISHED] = "true"
    if column.primary:
        metadata[PRIMARY] = "true"
    if column.default is not None:
        metadata[DEFAULT] = column.default
    if column.generated is not None:
        metadata[GENERATED] = column.generated
    if column.virtual:
        metadata[VIRTUAL] = "true"
    if column.stamp:
        metadata[STAMP] = "true"
    if column.as_text:
        metadata[AS_TEXT] = "true"
    if column.not_null:
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
    oid, _, typmod = str(metadata.get(TYPE, "0,-1")).partition(",")
    return Column(
        name=field["name"],
        source=metadata.get(SOURCE, field["name"]),
        type=arrow_type(field["type"]),
        type_oid=int(oid),
        typmod=int(typmod or -1),
        local=metadata.get(LOCAL) == "true",
        published=metadata.get(PUBLISHED) == "true",
        default=metadata.get(DEFAULT),
        generated=metadata.get(GENERATED),
        virtual=metadata.get(VIRTUAL) == "true",
        primary=metadata.get(PRIMARY) == "true",
        stamp=metadata.get(STAMP) == "true",
        as_text=metadata.get(AS_TEXT) == "true",
        not_null=metadata.get(NOT_NULL) == "true",
    )


# Arrow types <-> type names of Delta's schema JSON (protocol: "Schema Serialization Format").
#
# In and out: pa.DataType and the JSON value of a field's "type". PostgreSQL's types are left to
# ``penstock.pgtypes``.

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
    """Delta's type of an Arrow type: a string, an object for arrays; or FeatureNotSupported."""
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
    """The Arrow type of Delta's type. Raises FeatureNotSupported for structs, maps, arrays of
    variants."""
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
    """A type as Spark SQL prints it, for messages: ``array<integer>``."""
    if isinstance(delta, dict):
        if delta.get("type") == "array":
            return f"array<{type_text(delta['elementType'])}>"
        return str(delta.get("type"))
    return str(delta)


def has_timestamp_ntz(arrow: pa.DataType) -> bool:
    """True when the table feature timestampNtz is needed for a column of this type."""
    if pa.types.is_list(arrow):
        return has_timestamp_ntz(arrow.value_type)
    return bool(arrow == TIMESTAMP_NTZ)
