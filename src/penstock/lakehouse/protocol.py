"""Protocol versions and table features: the tables that we may write (protocol: "Table Features").

Commits that do not maintain a table's features would damage it. So a table whose protocol or
metaData has an unknown feature is refused: FeatureNotSupported, with a hint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.errors import FeatureNotSupported

DELETION_VECTORS: Final = "deletionVectors"
TIMESTAMP_NTZ: Final = "timestampNtz"
TYPE_WIDENING: Final = "typeWidening"
VARIANT_TYPE: Final = "variantType"
ENABLE_VECTORS: Final = "delta.enableDeletionVectors"
ENABLE_WIDENING: Final = "delta.enableTypeWidening"

CLUSTERING: Final = "clustering"
DOMAIN_METADATA: Final = "domainMetadata"

_ALWAYS: Final = frozenset(
    {
        DELETION_VECTORS,
        TIMESTAMP_NTZ,
        TYPE_WIDENING,
        VARIANT_TYPE,
        CLUSTERING,
        DOMAIN_METADATA,
        "appendOnly",
        "invariants",
        "changeDataFeed",
    }
)
"""Features that our commits maintain. Our readers give a file's columns the table's types, which
may be wider, and our writers write these types. Clustering needs statistics (``table_layout``);
every other domainMetadata has a feature of its own. A change feed is derived from vectors and whole
files (deletes and inserts, never update images). ``schema`` refuses columns with an invariant."""
_IF_UNUSED: Final[Mapping[str, str]] = {
    "checkConstraints": "delta.constraints.",
    "generatedColumns": "",
    "vacuumProtocolCheck": "",
}
"""Features that we need not maintain unless a property with this prefix exists. ``schema`` checks
the columns."""

_TABLE_FEATURES: Final = 7
"""The writer version whose tables name each feature."""
_IMPLIED: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features by the older writer version that introduced them; later versions include them."""

_READABLE: Final = frozenset(
    {
        DELETION_VECTORS,
        TIMESTAMP_NTZ,
        "columnMapping",
        TYPE_WIDENING,
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that our reader of Delta logs and data files supports."""
_MAPPING_MODE: Final = "delta.columnMapping.mode"

_NEW_TABLE: Final = (
    "Let the subscription create the target table: move the existing one away and refresh."
)


def for_new_table(
    *, timestamp_ntz: bool, clustered: bool = False, variants: bool = False
) -> dict[str, Any]:
    """Return the body of the protocol action for a table that we create."""
    reader, writer = [DELETION_VECTORS], [DELETION_VECTORS, "appendOnly", "invariants"]
    if timestamp_ntz:
        reader.append(TIMESTAMP_NTZ)
        writer.append(TIMESTAMP_NTZ)
    if variants:
        reader.append(VARIANT_TYPE)
        writer.append(VARIANT_TYPE)
    if clustered:
        writer += [DOMAIN_METADATA, CLUSTERING]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": reader,
        "writerFeatures": writer,
    }


def with_features(protocol: Mapping[str, Any], features: Collection[str]) -> dict[str, Any] | None:
    """Return the protocol with features added for readers and writers; None if it has them all."""
    more = [f for f in features if f not in (protocol.get("writerFeatures") or ())]
    if not more:
        return None
    return {
        **protocol,
        "readerFeatures": [*protocol["readerFeatures"], *more],
        "writerFeatures": [*protocol["writerFeatures"], *more],
    }


def check_writable(table: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raise FeatureNotSupported unless our commits keep everything that the table promises."""
    properties: Mapping[str, str] = metadata.get("configuration") or {}
    features = _features(protocol)
    vectors_on = properties.get(ENABLE_VECTORS, "false").lower() == "true"
    if DELETION_VECTORS not in features or not vectors_on:
        raise FeatureNotSupported(
            f'target table "{table}" has no deletion vectors',
            hint=f"ALTER TABLE ... SET TBLPROPERTIES ('{ENABLE_VECTORS}' = 'true')",
        )
    if properties.get("delta.appendOnly", "false").lower() == "true":
        raise FeatureNotSupported(
            f'target table "{table}" takes appended rows only',
            hint="ALTER TABLE ... UNSET TBLPROPERTIES ('delta.appendOnly')",
        )
    check_features(table, protocol, metadata)


def check_appendable(table: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raise FeatureNotSupported unless commits that only add files keep everything that the table
    promises. Tables without deletion vectors and append-only tables are accepted."""
    version = int(protocol.get("minWriterVersion") or 0)
    if version > _TABLE_FEATURES:
        raise FeatureNotSupported(f'target table "{table}" has writer version {version}')
    implied = {
        feature
        for since, features in _IMPLIED.items()
        if since <= version < _TABLE_FEATURES
        for feature in features
    }
    features = [*(protocol.get("writerFeatures") or ()), *implied]
    check_features(table, {**protocol, "writerFeatures": features}, metadata)


def check_features(table: str, protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raise FeatureNotSupported for features that our commits do not maintain."""
    properties: Mapping[str, str] = metadata.get("configuration") or {}
    refused = sorted(f for f in _features(protocol) - _ALWAYS if not _unused(f, properties))
    if refused:
        raise FeatureNotSupported(
            f'target table "{table}" has table features that replication does not maintain: '
            f"{', '.join(refused)}",
            hint=f"ALTER TABLE ... DROP FEATURE {refused[0]}, if Delta can drop it. {_NEW_TABLE}",
        )


def _features(protocol: Mapping[str, Any]) -> set[str]:
    return {*(protocol.get("writerFeatures") or ()), *(protocol.get("readerFeatures") or ())}


def check_readable(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raise FeatureNotSupported if the table has a feature that our reader does not support."""
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - _READABLE)
    if VARIANT_TYPE in unknown:
        raise FeatureNotSupported(
            f"tables with the feature {VARIANT_TYPE} cannot be published, nor read on the port",
            hint="Read it with Spark. Or keep jsonb as text: ALTER SUBSCRIPTION ... SET (jsonb_as "
            "= text), move the table away, and refresh.",
        )
    if unknown:
        raise FeatureNotSupported(
            f"tables with the feature {', '.join(unknown)} cannot be published",
            hint=f"ALTER TABLE ... DROP FEATURE {unknown[0]}, if Delta can drop it.",
        )
    mode = (metadata.get("configuration") or {}).get(_MAPPING_MODE, "none")
    if mode not in ("none", "name"):
        raise FeatureNotSupported(f'tables with {_MAPPING_MODE} "{mode}" cannot be published')


def _unused(feature: str, properties: Mapping[str, str]) -> bool:
    prefix = _IF_UNUSED.get(feature)
    if prefix is None:
        return False
    return not prefix or not any(name.startswith(prefix) for name in properties)
