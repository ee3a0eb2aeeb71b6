"""Logical decoding: turn transactions and their changes into an output plugin's writes
(replication/logical, output_plugin.h).

A source gives transactions (``reorder_buffer``). A plugin with options (``output_plugin``,
``registry``) writes them as batches of LSN, xid and data (``output``). Transactions may come from
the lake or from a server's WAL, and SQL functions or a walsender may read the output: this room
depends on none of these. It uses no Delta, no Spark and no catalog of a node.
"""

from penstock.decoding.logical import (
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    MemoryLimits,
    OutputReader,
)
from penstock.decoding.output import Output
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions, OutputType
from penstock.decoding.registry import find_plugin
from penstock.decoding.relation_data import AttributeData, RelationData
from penstock.decoding.reorder_buffer import (
    Action,
    Change,
    MessageChange,
    Prepared,
    ReorderBufferTXN,
    RowBatch,
    StreamAbort,
    StreamBlock,
    Transaction,
    TransactionKind,
    TruncateChange,
)
from penstock.decoding.tuple_columns import Tuple, TupleColumn, TupleColumns, Unsent

__all__ = [
    "Action",
    "AttributeData",
    "Change",
    "DecodedDatabase",
    "DecodedSlot",
    "LogicalDecodingContext",
    "MemoryLimits",
    "MessageChange",
    "Output",
    "OutputPlugin",
    "OutputPluginOptions",
    "OutputReader",
    "OutputType",
    "Prepared",
    "RelationData",
    "ReorderBufferTXN",
    "RowBatch",
    "StreamAbort",
    "StreamBlock",
    "Transaction",
    "TransactionKind",
    "TruncateChange",
    "Tuple",
    "TupleColumn",
    "TupleColumns",
    "Unsent",
    "find_plugin",
]
