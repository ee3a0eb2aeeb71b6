"""Divide a net change of a table into items for tasks.

A partitioned table's net change is divided by leaves, too (``parts``). ``job`` runs the items by
their costs. ``apply`` combines the results of the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.columns import Integers
from penstock.pipeline.dead_rows import DeadRows, EndAllItem
from penstock.pipeline.history import HistoryWork
from penstock.pipeline.hits import Hits
from penstock.pipeline.index_lookup import FileName, look_up
from penstock.pipeline.job import HERE_SECONDS, pack
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.locate import LocateItem
from penstock.pipeline.net_change import Incomplete, NetChange
from penstock.pipeline.parts import Leaves, Part, destinations, parts, shares
from penstock.pipeline.payload import Payload, Payloads
from penstock.pipeline.prune import candidates, integer_bounds, may_be_live
from penstock.pipeline.routed_writer import Destination
from penstock.pipeline.tasks import HISTORY, Item, SearchItem, Written
from penstock.pipeline.write import Completion, WriteItem

_ITEM_SECONDS: Final = 0.01
"""The approximate cost of a search before it reads its first byte. This and the constants below
decide how work is packed, and whether there is a job at all."""
_WRITE_SECONDS: Final = 0.0025
"""The cost of one more file, most of it spent waiting for the disk beside other files."""
_SECONDS_PER_ROW: Final = 2e-8
"""Seconds per row of a searched file, and per key."""
_SECONDS_PER_BYTE: Final = 2e-9
_BYTES_PER_OLD_ROW: Final = 64 << 10
"""Bytes of a file that are read for one old row: a page of each column."""
_SECONDS_PER_BYTE_REWRITTEN: Final = 3e-8
"""Seconds per byte of a file whose rows are written again."""


@dataclass(frozen=True)
class ApplyOptions:
    """Options of ``apply``.

    ``min_slice_bytes``, ``max_slice_bytes``: Arrow data that one write task takes; in between, a
    table's rows are spread over all cores. ``here_seconds``: no job is run for less work than this.
    ``narrow_cores``: the cluster's cores if they are known without a session.
    ``own``: an app id; changes of rows that another app has written are reported. None: no check.
    ``indexes``: key indexes; None: the files themselves are always searched.
    """

    min_slice_bytes: int = 24 << 20
    max_slice_bytes: int = 256 << 20
    here_seconds: float = HERE_SECONDS
    narrow_cores: int | None = None
    own: str | None = None
    indexes: KeyIndexes | None = None

    @property
    def little_seconds(self) -> float:
        """Work that is not worth dividing."""
        return min(self.here_seconds, HERE_SECONDS)

    def cores(self, spark: Spark) -> int:
        """Return the cores that share the work."""
        return self.narrow_cores or int(spark.sparkContext.defaultParallelism)


@dataclass(frozen=True)
class TableWork:
    """A net change to carry out on a table.

    ``leaves``: the leaves of a partitioned table; ``table`` then only names it and has no rows.
    ``check_absent``: check that keys that the batch inserts do not exist. It is off only for
    measurements: a unique index at the publisher says nothing about rows whose deletion was never
    sent. ``written``: the net change's complete rows if they are in files already
    (``write_before_commit``) and no longer in ``net``. ``history``: where the row versions of
    ``net`` are written. ``doubted``: rows were not
    found; search the files themselves, and check them.
    """

    table: DeltaTable
    net: NetChange
    check_absent: bool = True
    leaves: Leaves | None = None
    written: tuple[Written, ...] = ()
    history: HistoryWork | None = None
    doubted: bool = False

    def table_of(self, part: int) -> DeltaTable:
        """Return the table that gets the files of a part."""
        if part == HISTORY and self.history is not None:
            return self.history.table
        return self.parts[part].table

    @property
    def history_incomplete(self) -> int:
        """The number of rows of the history that need old rows."""
        if self.history is None or self.net.versions is None:
            return 0
        return self.history.incomplete_count(self.net.versions)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The tables that may hold the relation's rows."""
        return parts(self.table, self.leaves, self.net.schema)

    def folded_again(self, net: NetChange) -> TableWork:
        """Return the work with another net change. Files written for the old one are removed."""
        self.remove_written()
        return replace(self, net=net, written=())

    def remove_written(self) -> None:
        """Remove the files of ``written``."""
        for written in self.written:
            self.remove_files(written)

    def remove_files(self, written: Written) -> None:
        """Remove files as far as possible: the Delta log does not name them, so the next VACUUM
        removes the rest."""
        table = self.table_of(written.part)
        for file in written.files:
            table.storage.remove(f"{table.uri}/{file.path}")


def new_rows(
    number: int, work: TableWork, area: Payloads, options: ApplyOptions, spark: Spark
) -> list[tuple[float, Item]]:
    """Return the items of one work that need no old row, with their costs in seconds."""
    places = tuple(part.destination() for part in work.parts)
    items = write_items(number, work, places, area, options, spark)
    items += _history_items(number, work, area, options, spark)
    return items + _end_all_items(number, work)


def searches(
    number: int, work: TableWork, area: Payloads, options: ApplyOptions, spark: Spark
) -> list[tuple[float, Item]]:
    """Return the items of one work that search for old rows, with their costs in seconds."""
    net, items = work.net, list[tuple[float, Item]]()
    places = tuple(part.destination() for part in work.parts)
    keys = net.removed
    if work.check_absent and net.absent.num_rows:
        keys = pa.concat_tables([keys, net.absent])
    files = [(part, file) for part in work.parts for file in _candidates(part, keys)]
    if not files:
        return items
    probe = area.put(probe_table(net, keys))
    completing = _completing(work, places, area, options)
    dead = _dead_rows(net, area)
    known: Mapping[FileName, Hits] = {}
    if options.indexes is not None and not work.doubted and net.schema.key:
        known = look_up(options.indexes, spark, net.schema, keys, files)
    together: dict[int, list[tuple[float, LocateItem]]] = {}
    for part, file in files:
        hits = known.get((part.number, file.path))
        if hits is not None and not len(hits.probe):
            continue
        where = locate_item(number, part, net, file, probe, hits, checked=work.doubted)
        if completing or dead is not None:
            seconds = search_seconds(file, keys) + _read_seconds(file, completing)
            together.setdefault(part.number, []).append((seconds, where))
            continue
        search = SearchItem((where,), net.removed.num_rows)
        items.append((0.0 if search.is_known else search_seconds(file, keys), search))
    for at, searched in together.items():
        part = work.parts[at]
        completions = tuple(each.of(part) for each in completing)
        stay = None if dead is None else _dead_of(part, net, dead)
        for group in _groups(searched, options, spark):
            wheres = tuple(where for _, where in group)
            search = SearchItem(wheres, net.removed.num_rows, completions, stay)
            items.append((sum(seconds for seconds, _ in group), search))
    return items


def _groups(
    searched: Sequence[tuple[float, LocateItem]], options: ApplyOptions, spark: Spark
) -> list[tuple[tuple[float, LocateItem], ...]]:
    """Divide files whose rows are written again among as many tasks as pay: each task writes files
    of its own, and a file for each file that was searched would double their number with each
    batch."""
    count = math.ceil(sum(seconds for seconds, _ in searched) / max(options.little_seconds, 1e-3))
    if count > 1:  # a small batch needs no Spark session
        count = min(count, options.cores(spark), len(searched))
    return pack([(each[0], each) for each in searched], max(count, 1))


def _read_seconds(file: DataFile, completing: Sequence[_Completing]) -> float:
    """Estimate the cost of reading old rows of a file and writing them again."""
    rows: int = sum(each.incomplete.rows.num_rows for each in completing)
    size: int = min(file.size, rows * _BYTES_PER_OLD_ROW)
    return size * _SECONDS_PER_BYTE


def search_seconds(file: DataFile, keys: pa.Table) -> float:
    """Estimate the cost of looking for keys in a file."""
    rows: int = file.rows + keys.num_rows
    return _ITEM_SECONDS + rows * _SECONDS_PER_ROW


def write_items(
    number: int,
    work: TableWork,
    places: Sequence[Destination],
    area: Payloads,
    options: ApplyOptions,
    spark: Spark,
    mark: str = "",
) -> list[tuple[float, Item]]:
    items: list[tuple[float, Item]] = []
    for at, share in shares(work.net.rows, work.leaves).items():
        to = places[at]
        for rows in _slices(to.given(share), options, spark):
            payload = area.put(rows)
            item = WriteItem(
                number, to.storage, to.table_uri, payload, to.generated, to.layout, at, mark
            )
            items.append((_WRITE_SECONDS + rows.nbytes * _SECONDS_PER_BYTE, item))
    return items


def _history_items(
    number: int, work: TableWork, area: Payloads, options: ApplyOptions, spark: Spark
) -> list[tuple[float, Item]]:
    """Return the items that write complete rows of the history."""
    items: list[tuple[float, Item]] = []
    if work.history is None or work.net.versions is None:
        return items
    to = work.history.destination()
    for made in work.history.complete(work.net.versions, options.max_slice_bytes):
        for rows in _slices(made, options, spark):
            payload = area.put(rows)
            item = WriteItem(
                number, to.storage, to.table_uri, payload, to.generated, to.layout, HISTORY
            )
            items.append((_WRITE_SECONDS + rows.nbytes * _SECONDS_PER_BYTE, item))
    return items


def _candidates(part: Part, keys: pa.Table) -> list[DataFile]:
    if not keys.num_rows:
        return []
    found = candidates(part.table.files.values(), part.keys(keys))
    return [file for file in found if may_be_live(file, part.deleted_at)]


def locate_item(
    number: int,
    part: Part,
    net: NetChange,
    file: DataFile,
    probe: Payload,
    known: Hits | None = None,
    *,
    checked: bool = False,
) -> LocateItem:
    """Return the item that looks for the keys of ``probe`` (``LocateItem.probe``) in one file."""
    key = tuple(part.names[name] for name in net.schema.identity)
    schema = part.table.schema.arrow()
    return LocateItem(
        work=number,
        table_uri=part.table.uri,
        path=file.path,
        rows=file.rows,
        deletion_vector=file.deletion_vector,
        partition_values=file.partition_values,
        key=key,
        probe=probe,
        multiset=not net.schema.key,
        first_between=integer_bounds(file, key[0], schema) if net.schema.key else None,
        part=part.number,
        deleted_at=part.deleted_at,
        known=known,
        checked=checked,
    )


def _end_all_items(number: int, work: TableWork) -> list[tuple[float, Item]]:
    """Return an item for every file with live rows if all rows become dead rows."""
    net, items = work.net, list[tuple[float, Item]]()
    if net.all_ended is None:
        return items
    stamps = {name: net.all_ended[name][0] for name in net.all_ended.column_names}
    for part in work.parts:
        assert part.deleted_at is not None
        for file in part.table.files.values():
            if file.live_rows and may_be_live(file, part.deleted_at):
                item = EndAllItem(
                    work=number,
                    storage=part.table.storage,
                    table_uri=part.table.uri,
                    path=file.path,
                    rows=file.rows,
                    deletion_vector=file.deletion_vector,
                    schema=part.table.schema.arrow(),
                    layout=part.table.layout,
                    deleted_at=part.deleted_at,
                    stamps={part.names[name]: value for name, value in stamps.items()},
                    part=part.number,
                    partition_values=file.partition_values,
                )
                items.append((_ITEM_SECONDS + file.size * _SECONDS_PER_BYTE_REWRITTEN, item))
    return items


def _dead_rows(net: NetChange, area: Payloads) -> Payload | None:
    """Return the payload for ``DeadRows.rows``; None if no old row becomes a dead row."""
    if net.ended is None:
        return None
    columns = {f"s{i}": column for i, column in enumerate(net.ended.stamps.columns)}
    return area.put(pa.table({**columns, "old": pa.array(net.ended.old)}))


def _dead_of(part: Part, net: NetChange, rows: Payload) -> DeadRows:
    """Return the dead rows as tasks need them for files of one part."""
    assert net.ended is not None
    stamps = tuple(part.names[name] for name in net.ended.stamps.column_names)
    table = part.table
    return DeadRows(table.storage, table.schema.arrow(), table.layout, stamps, rows)


def probe_table(net: NetChange, keys: pa.Table) -> pa.Table:
    """Return the table for ``LocateItem.probe``."""
    probe = keys.rename_columns([f"k{i}" for i in range(keys.num_columns)])
    if net.copies is not None:
        probe = probe.append_column("copies", pa.array(net.copies))
    return probe


@dataclass(frozen=True)
class _Completing:
    """Rows that need cells of old rows, in whatever part the old rows are."""

    incomplete: Incomplete
    schema: pa.Schema
    to: Mapping[int, Destination]
    rows: Payload

    def of(self, part: Part) -> Completion:
        """Return the completion for files of one part. The new rows may go to other parts."""
        missing = {name: part.names[name] for name in self.incomplete.missing}
        return Completion(self.schema, missing, self.to, self.rows)


def _completing(
    work: TableWork, places: Sequence[Destination], area: Payloads, options: ApplyOptions
) -> list[_Completing]:
    found = []
    incomplete, versions = work.net.incomplete, work.net.versions
    if incomplete is not None:
        rows = _completion_table(incomplete, destinations(incomplete.rows, work.leaves))
        schema = work.net.schema.arrow()
        found.append(_Completing(incomplete, schema, dict(enumerate(places)), area.put(rows)))
    if versions is not None and work.history is not None:
        place = work.history.destination()
        for made in work.history.incomplete(versions, options.max_slice_bytes):
            rows = _completion_table(made, np.full(made.rows.num_rows, HISTORY))
            found.append(_Completing(made, place.schema, {HISTORY: place}, area.put(rows)))
    return found


def _completion_table(incomplete: Incomplete, to: Integers) -> pa.Table:
    """Return the table for ``Completion.rows``."""
    columns = {f"v{i}": column for i, column in enumerate(incomplete.rows.columns)}
    columns |= {f"m{i}": pa.array(m) for i, m in enumerate(incomplete.missing.values())}
    return pa.table({**columns, "old": pa.array(incomplete.old), "to": pa.array(to)})


def _slices(rows: pa.Table, options: ApplyOptions, spark: Spark) -> list[pa.Table]:
    if not rows.num_rows:
        return []
    size = rows.nbytes
    count = size // options.min_slice_bytes
    if count > 1:  # a small batch needs no Spark session
        count = min(count, options.cores(spark))
    step = -(-rows.num_rows // max(count, -(-size // options.max_slice_bytes), 1))
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]
