"""Logical decoding: transactions and their changes to what an output plugin writes
(replication/logical, output_plugin.h).

In: transactions of a source (``reorder_buffer``), a plugin and its options (``output_plugin``,
``registry``). Out: batches of LSN, xid and data (``output``). Where transactions come from, the
lake or a server's WAL, and who reads the output, SQL functions or a walsender, is not known here:
no Delta, no Spark, no catalog of a node.
"""

from penstock.decoding.logical import LogicalDecodingContext
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
    "LogicalDecodingContext",
    "MessageChange",
    "Output",
    "OutputPlugin",
    "OutputPluginOptions",
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
