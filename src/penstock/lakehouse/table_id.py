"""A table's own id (metaData.id) without its files.

In: a table's URI. Out: the id; a table that is made again in the same place has another one, and
its versions begin again.
"""

from __future__ import annotations

import pyarrow.parquet as pq

from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.storage import Storage, resolve, storage_errors


def table_id(storage: Storage, uri: str) -> str | None:
    """Of the newest version; None when there is no table. Raises StorageError.

    Costs one column of the newest checkpoint and the entries since.
    """
    listing = list_log(storage, uri)
    newest = max(listing.checkpoints, default=-1)
    for version in sorted((v for v in listing.entries if v > newest), reverse=True):
        for action in read_entry(storage, uri, version) or ():
            if body := action.get("metaData"):
                return str(body["id"])
    for part in listing.checkpoints.get(newest, ()):
        with storage_errors("read file", part):
            filesystem, path = resolve(part)
            with filesystem.open_input_file(path) as source, pq.ParquetFile(source) as parquet:
                ids = parquet.read(columns=["metaData.id"]).flatten().column(0).drop_null()
        if len(ids):
            return str(ids[0].as_py())
    return None
