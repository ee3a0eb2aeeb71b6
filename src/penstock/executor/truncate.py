"""TRUNCATE of tables of the lake (tablecmds.c, ExecuteTruncate).

In: the tables. Out: one commit of each leaf, marked as what it is, also where there were no rows:
subscribers may have rows of others in it. By Spark where only Delta itself knows what the table
asks of its writers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Final

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported
from penstock.executor.row_moves import APP_ID
from penstock.executor.rows import delta_table
from penstock.executor.spark_rewrites import USER_METADATA
from penstock.lakehouse.actions import commit_info, lines, now_ms
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.session import session_of_a_statement
from penstock.lakehouse.state import load
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.user_metadata import grouped_mark
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.commits import newest_version
from penstock.walsender.sequencer import Sequencer

_IN_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_OPERATION: Final = "TRUNCATE"


class TruncateTables:
    """For every session."""

    def __init__(self, spark: Spark, warehouse: Warehouse, sequencer: Sequencer) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._sequencer = sequencer

    def run(self, members: Mapping[int, LakeTable]) -> None:
        """``members``: by oid, with partitioned tables. Raises PenstockError, PySparkException."""
        mark = grouped_mark(str(uuid.uuid4()), members)
        with self._sequencer.one_transaction():
            for member in members.values():
                if member.partition_key is None and not self._by_files(member, mark):
                    self._by_spark(member, mark)

    def _by_files(self, leaf: LakeTable, mark: Mapping[str, object]) -> bool:
        """Everything that is there when it is committed goes."""
        storage, store = self._warehouse.storage, self._warehouse.store
        while True:
            try:
                table = DeltaTable.load(storage, store, leaf.uri or "", leaf.qualified_name)
            except FeatureNotSupported:
                return False
            if table is None:
                return False
            table.stage(remove_all=True)
            try:
                table.commit(
                    app_id=APP_ID,
                    operation=_OPERATION,
                    user_metadata=mark,
                )
            except CommitConflict:
                continue
            return True

    def _by_spark(self, leaf: LakeTable, mark: Mapping[str, object]) -> None:
        storage, uri = self._warehouse.storage, leaf.uri or ""
        session = session_of_a_statement(self._spark)
        session.conf.set(USER_METADATA, json.dumps(mark))
        before = newest_version(storage, uri)
        session.sql(f"DELETE FROM {delta_table(leaf)}").collect()
        if before is None or newest_version(storage, uri) != before:
            return
        state = load(storage, uri)
        configuration = {} if state is None else state.metadata.get("configuration") or {}
        if configuration.get(_IN_COMMIT_TIMESTAMPS) == "true":
            return  # Spark alone writes its log
        info = commit_info(
            _OPERATION, now=now_ms(), user_metadata=mark, blind_append=False, read_version=before
        )
        self._warehouse.store.put(uri, before + 1, lines([info]))
