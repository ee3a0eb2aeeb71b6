"""Logical decoding: turn transactions and their changes into an output plugin's writes
(replication/logical, output_plugin.h).

In: transactions of a source (``reorder_buffer``), a plugin and its options (``output_plugin``,
``registry``). Out: batches of LSN, xid and data (``output``). This room does not know whether
transactions come from the lake or from a server's WAL, nor whether SQL functions or a walsender
read the output. It uses no Delta, no Spark and no catalog of a node.
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
